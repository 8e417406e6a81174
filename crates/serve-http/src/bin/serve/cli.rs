//! The settings of the binary: flags, and environment variables where a flag is not given.

use std::num::NonZeroU32;
use std::time::Duration;

use clap::{Parser, ValueEnum};

use crate::failure::{EXIT_CODES, Failure};

/// Serves a language model behind an OpenAI-compatible API.
///
/// Without arguments it serves a small model that is part of the binary. Every setting can also be
/// given as the environment variable shown beside it; a flag wins.
#[derive(Clone, Debug, Parser)]
#[command(name = "serve", version, after_help = EXIT_CODES, max_term_width = 100)]
pub(crate) struct Cli {
    /// A folder in the Hugging Face layout, or ORG/NAME of a model on the hub [default: the small
    /// model inside the binary]
    #[arg(long, env = "SERVE_MODEL", value_name = "PATH|ORG/NAME")]
    pub(crate) model: Option<String>,

    /// The branch, tag or commit of a model on the hub [default: main]
    #[arg(long, env = "SERVE_REVISION")]
    pub(crate) revision: Option<String>,

    /// What runs the steps
    #[arg(long, env = "SERVE_BACKEND", value_enum, default_value_t = Backend::DEFAULT)]
    pub(crate) backend: Backend,

    /// The name that clients ask for [default: the model's own]
    #[arg(long, env = "SERVE_SERVED_MODEL_NAME", value_name = "NAME")]
    pub(crate) served_model_name: Option<String>,

    /// The address to listen on
    #[arg(long, env = "SERVE_HOST", default_value = "127.0.0.1")]
    pub(crate) host: String,

    /// The port to listen on; 0 takes a free one, which is printed
    #[arg(long, env = "SERVE_PORT", default_value_t = 8000)]
    pub(crate) port: u16,

    /// Requests in one step at most; 1 turns batching off
    #[arg(long, env = "SERVE_MAX_BATCH", value_name = "N", default_value = "16")]
    pub(crate) max_batch: NonZeroU32,

    /// Requests that may wait beside those that run; more are refused; 0 lets any number wait
    #[arg(long, env = "SERVE_QUEUE_CAP", value_name = "N", default_value_t = 256)]
    pub(crate) queue_cap: u32,

    /// Tokens in one step at most, prompts cut to fit
    #[arg(
        long,
        env = "SERVE_STEP_TOKENS",
        value_name = "N",
        default_value = "512"
    )]
    pub(crate) step_tokens: NonZeroU32,

    /// Tokens of one request at most, prompt and answer together [default: the model's own limit;
    /// mock: 2048]
    #[arg(long, env = "SERVE_CONTEXT", value_name = "N")]
    pub(crate) context: Option<NonZeroU32>,

    /// Tokens in the KV cache of all requests together [default: a whole context for each of
    /// --max-batch requests, or what half of the free memory holds]
    #[arg(long, env = "SERVE_KV_TOKENS", value_name = "N")]
    pub(crate) kv_tokens: Option<NonZeroU32>,

    /// Seconds that accepted requests may still take once the server is told to stop
    #[arg(long, env = "SERVE_DRAIN_TIMEOUT", value_name = "SECONDS", default_value = "30",
          value_parser = seconds)]
    pub(crate) drain_timeout: Duration,

    /// How much faster than the measured GPU the mock pretends to be; `inf` takes no time [default: 1]
    #[arg(long, env = "SERVE_MOCK_SPEED", value_name = "FACTOR", value_parser = speed)]
    pub(crate) mock_speed: Option<f64>,

    /// Fixes what the mock says [default: 0]
    #[arg(long, env = "SERVE_MOCK_SEED", value_name = "SEED")]
    pub(crate) mock_seed: Option<u64>,

    /// What is logged to stderr: a level (error, warn, info, debug, trace, off) or directives such as
    /// `serve_http=debug`
    #[arg(long, env = "SERVE_LOG", value_name = "FILTER", default_value = "info")]
    pub(crate) log: String,
}

/// What runs the steps.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Backend {
    /// A decoder with real weights
    #[cfg(feature = "model")]
    Model,
    /// A pretended device with a measured GPU's timing, which answers in invented words
    Mock,
}

impl Backend {
    #[cfg(feature = "model")]
    const DEFAULT: Self = Self::Model;
    #[cfg(not(feature = "model"))]
    const DEFAULT: Self = Self::Mock;
}

impl Cli {
    /// Checks what no single setting can know.
    pub(crate) fn validate(&self) -> Result<(), Failure> {
        let mock = self.backend == Backend::Mock;
        let contradictions = [
            (
                "--model",
                mock && self.model.is_some(),
                "--backend mock loads no model",
            ),
            (
                "--revision",
                self.model.is_none() && self.revision.is_some(),
                "it belongs to a model on the hub, and --model names none",
            ),
            (
                "--mock-speed",
                !mock && self.mock_speed.is_some(),
                "it needs --backend mock",
            ),
            (
                "--mock-seed",
                !mock && self.mock_seed.is_some(),
                "it needs --backend mock",
            ),
        ];
        match contradictions.into_iter().find(|(_, applies, _)| *applies) {
            None => Ok(()),
            Some((setting, _, cause)) => Err(Failure::Usage {
                setting,
                cause: cause.to_owned(),
            }),
        }
    }
}

fn seconds(text: &str) -> Result<Duration, String> {
    let accepted = "a number of seconds from 0 to 86400";
    let seconds: f64 = text.parse().map_err(|_| accepted.to_owned())?;
    if (0.0..=86_400.0).contains(&seconds) {
        Ok(Duration::from_secs_f64(seconds))
    } else {
        Err(accepted.to_owned())
    }
}

fn speed(text: &str) -> Result<f64, String> {
    let accepted = "a number above 0, or inf";
    let speed: f64 = text.parse().map_err(|_| accepted.to_owned())?;
    if speed > 0.0 {
        Ok(speed)
    } else {
        Err(accepted.to_owned())
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn a_contradiction_names_the_setting() {
        let cli = Cli::try_parse_from(["serve", "--backend", "mock", "--model", "x"]).unwrap();
        let message = cli.validate().unwrap_err().to_string();
        assert_eq!(message, "--model: --backend mock loads no model");
    }
}
