//! What a person reads on stderr: progress, errors and the log.

use std::fmt::Display;
use std::io::{IsTerminal, Write, stderr};

use tracing_subscriber::EnvFilter;

use crate::failure::Failure;

/// Where messages go. A message that cannot be written is given up: a closed terminal is no reason
/// to stop serving.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Console;

impl Console {
    /// One line of progress.
    pub(crate) fn line(&self, text: &str) {
        let _ = writeln!(stderr(), "serve: {text}");
    }

    pub(crate) fn error(&self, error: &dyn Display) {
        let _ = writeln!(stderr(), "serve: error: {error}");
    }
}

/// Logs go to stderr, filtered.
pub(crate) fn log_to_stderr(filter: &str) -> Result<(), Failure> {
    let filter = EnvFilter::builder()
        .parse(filter)
        .map_err(|error| Failure::Usage {
            setting: "--log".to_owned(),
            cause: format!(
                "{error}; it must be error, warn, info, debug, trace, off, or directives"
            ),
        })?;
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(stderr)
        .with_ansi(stderr().is_terminal())
        .with_target(false)
        .compact()
        .init();
    Ok(())
}
