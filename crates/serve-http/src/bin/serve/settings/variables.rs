//! The environment: which of its variables are settings, and what is said of those that are none.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;

use clap::error::{ContextKind, ContextValue};
use clap::{Command, CommandFactory};

use super::Cli;
use crate::failure::Failure;
use crate::nearest::nearest;

/// What every variable of ours begins with.
const PREFIX: &str = "SERVE_";

/// The variable of a setting.
pub(crate) fn variable(name: &str) -> String {
    format!("{PREFIX}{}", name.to_uppercase())
}

/// The variables that begin like ours.
pub(super) struct Variables(BTreeMap<String, String>);

impl Variables {
    pub(super) fn of_process() -> Self {
        let all = std::env::vars_os().filter_map(|(name, value)| {
            let name = name.into_string().ok()?;
            let value = value.to_string_lossy().into_owned();
            name.starts_with(PREFIX).then_some((name, value))
        });
        Self(all.collect())
    }

    /// The command line without the variable of the port, if that is one of Kubernetes': it tells every
    /// pod where a service called `serve` is, as `SERVE_PORT=tcp://10.96.0.12:8000` and more of the kind.
    pub(super) fn command(&self) -> Command {
        match self.is_of_kubernetes("SERVE_PORT") {
            true => Cli::command().mut_arg("port", |port| port.env(None::<&'static str>)),
            false => Cli::command(),
        }
    }

    /// Refuses variables that begin like ours and mean nothing.
    ///
    /// # Errors
    ///
    /// [`Failure::Usage`] that names the variable and the nearest that there is.
    pub(super) fn check(&self) -> Result<(), Failure> {
        let command = Cli::command();
        let variables = command
            .get_arguments()
            .filter_map(|argument| argument.get_env());
        let known: BTreeSet<&str> = variables.filter_map(|name| name.to_str()).collect();
        let is_unknown =
            |name: &&String| !known.contains(name.as_str()) && !self.is_of_kubernetes(name);
        let Some(name) = self.0.keys().find(is_unknown) else {
            return Ok(());
        };
        let near = nearest(name, known).map_or_else(
            || "; --help lists them".to_owned(),
            |near| format!("; did you mean {near}?"),
        );
        Err(Failure::Usage {
            setting: name.clone(),
            cause: format!("no setting has this variable{near}"),
        })
    }

    /// Whether Kubernetes has set this variable for a service called `serve` or `serve-..`.
    fn is_of_kubernetes(&self, name: &str) -> bool {
        let value = self.0.get(name).map_or("", String::as_str);
        let is_address = ["tcp://", "udp://", "sctp://"]
            .iter()
            .any(|is| value.starts_with(is));
        let is_of_port = ["_TCP", "_UDP", "_SCTP"].iter().any(|protocol| {
            let (_, rest) = name.split_once("_PORT_").unwrap_or_default();
            let end = rest.find(protocol);
            end.is_some_and(|end| rest[..end].bytes().all(|digit| digit.is_ascii_digit()))
        });
        name.ends_with("_SERVICE_HOST")
            || name.contains("_SERVICE_PORT")
            || name.ends_with("_PORT") && is_address
            || is_of_port
    }

    /// A wrong value of a variable by the variable's name, which clap calls by its flag.
    pub(super) fn named(&self, error: clap::Error, arguments: &[OsString]) -> Failure {
        let Some((flag, cause)) = wrong_value(&error) else {
            return error.into();
        };
        let is_flag = |argument: &OsString| {
            let argument = argument.to_string_lossy();
            let rest = argument.strip_prefix(flag.as_str());
            rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('='))
        };
        let variable = variable(&flag.trim_start_matches("--").replace('-', "_"));
        match self.0.contains_key(&variable) && !arguments.iter().any(is_flag) {
            true => Failure::Usage {
                setting: variable,
                cause,
            },
            false => error.into(),
        }
    }
}

/// The flag whose value is wrong, and what is wrong with it, in clap's words.
pub(super) fn wrong_value(error: &clap::Error) -> Option<(String, String)> {
    let Some(ContextValue::String(argument)) = error.get(ContextKind::InvalidArg) else {
        return None;
    };
    let flag = argument
        .split([' ', '=', '['])
        .next()
        .unwrap_or_default()
        .to_owned();
    let told = error.to_string();
    let told = told.strip_prefix("error: ").unwrap_or(&told);
    let told = told
        .split("\n\nFor more information")
        .next()
        .unwrap_or(told);
    let cause = told.replace(&format!(" for '{argument}'"), "");
    Some((flag, cause.trim_end().to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn checked(variables: &[(&str, &str)]) -> Result<(), String> {
        let owned = |&(name, value): &(&str, &str)| (name.to_owned(), value.to_owned());
        let variables = Variables(variables.iter().map(owned).collect());
        variables.check().map_err(|failure| failure.to_string())
    }

    #[test]
    fn a_variable_that_means_nothing_is_told_with_the_nearest() {
        let right = [("SERVE_MAX_BATCH", "8"), ("SERVE_PORT", "80")];
        assert_eq!(checked(&right), Ok(()));
        let message = checked(&[("SERVE_MAXBATCH", "8")]).unwrap_err();
        assert_eq!(
            message,
            "SERVE_MAXBATCH: no setting has this variable; did you mean SERVE_MAX_BATCH?"
        );
    }

    #[test]
    fn what_kubernetes_sets_for_a_service_is_left_alone() {
        const ADDRESS: &str = "tcp://10.96.0.12:8000";
        let variables = [
            ("SERVE_PORT", ADDRESS),
            ("SERVE_SERVICE_HOST", "10.96.0.12"),
            ("SERVE_SERVICE_PORT", "8000"),
            ("SERVE_SERVICE_PORT_HTTP", "8000"),
            ("SERVE_PORT_8000_TCP", ADDRESS),
            ("SERVE_PORT_8000_TCP_ADDR", "10.96.0.12"),
            ("SERVE_PORT_8000_TCP_PORT", "8000"),
            ("SERVE_PORT_8000_TCP_PROTO", "tcp"),
            ("SERVE_METRICS_SERVICE_HOST", "10.96.0.12"),
            ("SERVE_METRICS_PORT", ADDRESS),
            ("SERVE_METRICS_PORT_9000_TCP_ADDR", "10.96.0.12"),
        ];
        assert_eq!(checked(&variables), Ok(()));
        for name in ["SERVE_PORT_NUMBER", "SERVE_HEALTH_PORT"] {
            assert!(checked(&[(name, "8001")]).is_err(), "{name}");
        }
    }
}
