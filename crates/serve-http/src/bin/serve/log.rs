//! The log: which lines, in which form.

use clap::ValueEnum;
use serde::Serialize;
use tracing::level_filters::LevelFilter;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{EnvFilter, Registry, fmt, reload};

use crate::console::Console;
use crate::failure::Failure;
use crate::nearest::nearest;

const LEVELS: [&str; 6] = ["error", "warn", "info", "debug", "trace", "off"];

/// How a line of the log is written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, ValueEnum)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Format {
    /// For people
    #[default]
    Text,
    /// A JSON object a line, for programs
    Json,
}

/// The filter of a running log, which can be changed.
#[derive(Clone, Debug)]
pub(crate) struct Log(reload::Handle<EnvFilter, Registry>);

impl Log {
    /// Starts the log of this process.
    ///
    /// # Errors
    ///
    /// [`Failure::Usage`] for a filter that is none.
    pub(crate) fn start(filter: &str, form: Format, console: &Console) -> Result<Self, Failure> {
        let (filter, handle) = reload::Layer::new(self::filter(filter)?);
        let speaker = console;
        let console = console.clone();
        let lines = fmt::layer()
            .with_writer(move || console.log())
            // A line that cannot be written is no reason to write another one to the same place.
            .log_internal_errors(false)
            .with_target(false);
        let registry = tracing_subscriber::registry().with(filter);
        match form {
            Format::Text => registry
                .with(lines.with_ansi(Console::is_terminal()).compact())
                .init(),
            Format::Json => registry
                .with(
                    lines
                        .json()
                        .flatten_event(true)
                        .with_current_span(true)
                        .with_span_list(false),
                )
                .init(),
        }
        if form == Format::Json {
            speaker.speak_json();
        }
        Ok(Self(handle))
    }

    /// Filters by something else from now on.
    ///
    /// # Errors
    ///
    /// [`Failure::Usage`] for a filter that is none; the old one holds on.
    pub(crate) fn change(&self, filter: &str) -> Result<(), Failure> {
        let filter = self::filter(filter)?;
        self.0
            .reload(filter)
            .map_err(|error| Failure::Runtime(std::io::Error::other(error)))
    }
}

/// Reads a filter. A bare word is a level and nothing else: a mistyped level would be the name of a
/// module that logs nothing, and so turn off the whole log.
pub(crate) fn filter(text: &str) -> Result<EnvFilter, Failure> {
    let failure = |cause: String| Failure::Usage {
        setting: "--log".to_owned(),
        cause,
    };
    let words = text.split(',').map(str::trim);
    for word in words.filter(|word| !word.contains(['=', '['])) {
        if word.parse::<LevelFilter>().is_err() || word.parse::<u8>().is_ok() || word.is_empty() {
            let near = nearest(word, LEVELS)
                .map_or_else(String::new, |level| format!("; did you mean {level}?"));
            return Err(failure(format!(
                "{word:?} is not a level: it must be {}, or MODULE=LEVEL, several separated by \
                 commas{near}",
                LEVELS.join(", ")
            )));
        }
    }
    EnvFilter::builder().parse(text).map_err(|error| {
        failure(format!(
            "{error}; it must be {}, or MODULE=LEVEL",
            LEVELS.join(", ")
        ))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mistyped_level_is_told_with_the_nearest_one() {
        for right in [
            "info",
            "WARN",
            "off",
            "info,hyper=debug",
            "serve_http::worker=trace,error",
        ] {
            assert!(filter(right).is_ok(), "{right}");
        }
        let said = |text: &str| filter(text).unwrap_err().to_string();
        assert!(
            said("inof").ends_with("did you mean info?"),
            "{}",
            said("inof")
        );
        assert!(said("info,debgu").ends_with("did you mean debug?"));
        for wrong in ["", "3", "serve_http", "info,", "hyper=loud", "xyz"] {
            assert!(
                said(wrong).contains("error, warn, info"),
                "{wrong}: {}",
                said(wrong)
            );
        }
    }
}
