//! The settings of an engine of somebody else's behind the gate, and which of the others hold for it.

use std::fmt;
use std::num::NonZeroU32;
use std::str::FromStr;
use std::time::Duration;

use clap::Args;
use clap::builder::BoolishValueParser;
use serde::{Serialize, Serializer};
use serve_http::{
    EngineCommand, InvalidCommand, InvalidKey, UpstreamKey, UpstreamPlace,
    UpstreamSettings as Attached, UpstreamUrl,
};
use serve_sched::admit::ADMISSIONS;
use serve_sched::limit::{Concurrency, Fixed, LIMITS};
use serve_sched::order::ORDER;
use serve_sched::settings::{CLASSES, QUEUE_TIMEOUT, REQUEST_TIMEOUT};
use serve_sched::table::{Entry, Needs};

use super::units::Seconds;

/// How long an engine that is started may take to serve: large models are read from slow disks.
const START_TIMEOUT: Duration = Duration::from_secs(600);

/// What is told of an engine behind the gate.
#[derive(Args, Clone, Debug, Serialize)]
#[command(next_help_heading = "An engine of others")]
pub(crate) struct UpstreamSettings {
    /// Where an OpenAI-compatible server runs, such as http://127.0.0.1:8080, in front of which this one is to stand
    /// instead of a model of its own
    #[arg(long, env = "SERVE_UPSTREAM", value_name = "URL")]
    #[serde(serialize_with = "as_text")]
    pub(crate) upstream: Option<UpstreamUrl>,

    /// A command that starts such a server, with {port} where its port belongs, such as 'llama-server -m model.gguf
    /// --port {port}'; it is watched, started again when it ends, and ended with this server
    #[arg(
        long,
        env = "SERVE_UPSTREAM_COMMAND",
        value_name = "COMMAND",
        hide_env_values = true
    )]
    pub(crate) upstream_command: Option<String>,

    /// Seconds that a started server may take until it has made a token; then it is killed and started again
    /// [default: 600]
    #[arg(long, env = "SERVE_UPSTREAM_START_TIMEOUT", value_name = "SECONDS")]
    pub(crate) upstream_start_timeout: Option<Seconds>,

    /// What that server calls its model [default: the first that it lists]
    #[arg(long, env = "SERVE_UPSTREAM_MODEL", value_name = "NAME")]
    pub(crate) upstream_model: Option<String>,

    /// The API key that it wants. A flag can be read by everybody on this machine: better the variable or the file
    #[arg(
        long,
        env = "SERVE_UPSTREAM_API_KEY",
        value_name = "KEY",
        hide_env_values = true
    )]
    #[serde(skip)]
    pub(crate) upstream_api_key: Option<Secret>,

    /// Requests that may be with it at once: a number, or gradient or aimd, which measure it [default: gradient]
    #[arg(long, env = "SERVE_UPSTREAM_LIMIT", value_name = "N|gradient|aimd")]
    #[serde(serialize_with = "as_text")]
    pub(crate) upstream_limit: Option<UpstreamLimit>,

    /// Read the answers to cancelled requests to their end instead of closing the connection, for an engine that fails
    /// when its client leaves [default: false]
    #[arg(long, env = "SERVE_UPSTREAM_FINISH_CANCELLED", value_name = "BOOL", num_args = 0..=1,
          require_equals = true, default_missing_value = "true", action = clap::ArgAction::Set,
          value_parser = BoolishValueParser::new())]
    pub(crate) upstream_finish_cancelled: Option<bool>,
}

/// A text that no message repeats, not even one that says that it is wrong.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Secret(String);

impl From<&str> for Secret {
    fn from(text: &str) -> Self {
        Self(text.to_owned())
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(..)")
    }
}

/// How many requests may be with the engine at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum UpstreamLimit {
    Fixed(NonZeroU32),
    /// A limit that measures, by its name.
    Measured(&'static str),
}

impl UpstreamLimit {
    /// What holds where nobody says anything.
    const USUAL: Self = Self::Measured("gradient");

    fn built(self) -> Box<dyn Concurrency> {
        let named = |name: &str| LIMITS.iter().find(|policy| policy.name == name);
        match self {
            Self::Fixed(limit) => Box::new(Fixed::new(limit.get())),
            Self::Measured(name) => {
                let policy = named(name);
                policy.map_or_else(
                    || Box::new(Fixed::default()) as _,
                    |policy| policy.by_default(),
                )
            }
        }
    }
}

impl FromStr for UpstreamLimit {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let measured: Vec<&str> = LIMITS
            .iter()
            .map(|policy| policy.name)
            .filter(|name| *name != "fixed")
            .collect();
        let named = LIMITS
            .iter()
            .find(|policy| policy.name == text && measured.contains(&text));
        match (text.parse(), named) {
            (Ok(limit), _) => Ok(Self::Fixed(limit)),
            (_, Some(policy)) => Ok(Self::Measured(policy.name)),
            _ => Err(format!(
                "it must be a whole number from 1 up, or {}",
                measured.join(" or ")
            )),
        }
    }
}

impl fmt::Display for UpstreamLimit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Fixed(limit) => limit.fmt(f),
            Self::Measured(name) => f.write_str(name),
        }
    }
}

impl UpstreamSettings {
    /// Whether there is an engine behind the gate.
    pub(crate) fn is_on(&self) -> bool {
        self.upstream.is_some() || self.upstream_command.is_some()
    }

    /// Where the engine is, if there is one.
    pub(crate) fn place(&self) -> Option<UpstreamPlace> {
        let started = || self.command()?.ok().map(UpstreamPlace::Started);
        let at = self.upstream.clone().map(UpstreamPlace::At);
        at.or_else(started)
    }

    fn command(&self) -> Option<Result<EngineCommand, InvalidCommand>> {
        let timeout = self.upstream_start_timeout;
        let timeout = timeout.map_or(START_TIMEOUT, Seconds::duration);
        let command = self.upstream_command.as_ref()?;
        Some(EngineCommand::new(command, timeout))
    }

    /// The program that is started, without its arguments: a key may be among them.
    pub(crate) fn program(&self) -> Option<&str> {
        self.upstream_command.as_deref()?.split_whitespace().next()
    }

    /// What is wrong with the command.
    pub(crate) fn wrong_command(&self) -> Option<String> {
        let command = self.command()?;
        command.err().map(|error| error.to_string())
    }

    pub(crate) fn limit(&self) -> UpstreamLimit {
        self.upstream_limit.unwrap_or(UpstreamLimit::USUAL)
    }

    pub(crate) fn concurrency(&self) -> Box<dyn Concurrency> {
        self.limit().built()
    }

    fn key(&self) -> Result<Option<UpstreamKey>, InvalidKey> {
        let key = self.upstream_api_key.as_ref();
        key.map(|Secret(key)| key.parse()).transpose()
    }

    /// What the edge is told of the engine.
    pub(crate) fn attached(
        &self,
        place: UpstreamPlace,
        served_model_name: Option<String>,
    ) -> Attached {
        Attached {
            place,
            key: self.key().ok().flatten(),
            model: self.upstream_model.clone(),
            served_model_name,
            finish_cancelled: self.upstream_finish_cancelled.unwrap_or(false),
        }
    }

    /// Settings that cannot be meant.
    pub(crate) fn contradictions(&self) -> [(&'static str, bool, &'static str); 7] {
        const NEEDS: &str = "it needs --upstream or --upstream-command";

        let off = !self.is_on();
        [
            (
                "--upstream-command",
                self.upstream.is_some() && self.upstream_command.is_some(),
                "--upstream says that the engine runs already",
            ),
            (
                "--upstream-start-timeout",
                self.upstream_command.is_none() && self.upstream_start_timeout.is_some(),
                "it needs --upstream-command",
            ),
            (
                "--upstream-model",
                off && self.upstream_model.is_some(),
                NEEDS,
            ),
            (
                "--upstream-api-key",
                off && self.upstream_api_key.is_some(),
                NEEDS,
            ),
            (
                "--upstream-api-key",
                self.key().is_err(),
                "it must be visible ASCII text",
            ),
            (
                "--upstream-limit",
                off && self.upstream_limit.is_some(),
                NEEDS,
            ),
            (
                "--upstream-finish-cancelled",
                off && self.upstream_finish_cancelled.is_some(),
                NEEDS,
            ),
        ]
    }
}

/// Whether a setting of the scheduler is the gate's, which holds for any engine: batches, steps and KV blocks are the
/// engine's own affair.
pub(crate) fn is_of_gate(entry: &Entry) -> bool {
    const OF_KV: [&str; 2] = ["tenant_kv_tokens", "class_kv_tokens"];

    let name = entry.row.name;
    let own = [
        &CLASSES.row,
        &QUEUE_TIMEOUT.row,
        &REQUEST_TIMEOUT.row,
        &ORDER.row,
    ];
    let admissions = ADMISSIONS.iter().flat_map(|policy| policy.settings);
    let is_named = own.iter().chain(admissions).any(|row| row.name == name);
    let is_of_order = match &entry.needs {
        Some(Needs::Policy { family, .. }) => family.name == ORDER.row.name,
        _ => false,
    };
    (is_named || is_of_order) && !OF_KV.contains(&name)
}

fn as_text<T: fmt::Display, S: Serializer>(
    value: &Option<T>,
    serializer: S,
) -> Result<S::Ok, S::Error> {
    match value {
        Some(value) => serializer.collect_str(value),
        None => serializer.serialize_none(),
    }
}

#[cfg(test)]
mod tests {
    use serve_sched::table::table;

    use super::*;

    #[test]
    fn a_limit_is_a_number_or_measures() {
        for (text, shown) in [
            ("1", "1"),
            ("64", "64"),
            ("gradient", "gradient"),
            ("aimd", "aimd"),
        ] {
            let limit: UpstreamLimit = text.parse().unwrap();
            assert_eq!(limit.to_string(), shown);
            let built = limit.built();
            match limit {
                UpstreamLimit::Fixed(limit) => assert_eq!(built.limit(), limit.get()),
                UpstreamLimit::Measured(name) => assert_eq!(built.name(), name),
            }
        }
        for wrong in ["0", "-1", "fixed", "Gradient", "", "1.5"] {
            let said = wrong.parse::<UpstreamLimit>().unwrap_err();
            assert!(said.contains("gradient or aimd"), "{wrong}: {said}");
        }
    }

    #[test]
    fn the_gate_has_what_decides_who_is_let_in_and_who_is_next() {
        let of_gate = |name: &str| {
            table()
                .iter()
                .any(|entry| entry.row.name == name && is_of_gate(entry))
        };
        for name in [
            "queue_cap",
            "order",
            "age_after",
            "tenant_requests_per_s",
            "tokens_per_s",
            "classes",
            "request_timeout",
            "latency_budget",
            "tenant_in_flight",
            "concurrency_limit",
        ] {
            assert!(of_gate(name), "{name}");
        }
        for name in [
            "max_batch",
            "kv_tokens",
            "context",
            "mock_speed",
            "batch",
            "budget",
            "victim",
            "prefix_cache",
            "tenant_kv_tokens",
            "preempt_by_class",
            "watermark_blocks",
        ] {
            assert!(!of_gate(name), "{name}");
        }
    }
}
