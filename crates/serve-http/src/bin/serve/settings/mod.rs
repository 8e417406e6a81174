//! The settings of the binary: one definition each, with its flag, its environment variable, and its
//! name in the settings file.

mod file;
mod keys;
mod network;
mod requests;
mod scheduler;
mod units;
mod upstream;
mod variables;

use std::path::PathBuf;

use clap::{Parser, Subcommand, ValueEnum};
use serde::Serialize;
use serde_json::Value;
use serve_sched::Settings;
use serve_sched::settings::{MOCK, Row};
use serve_sched::table::{Entry, table};

use crate::failure::{EXIT_CODES, Failure};
use crate::{log, version};
pub(crate) use file::read;
use keys::KeySettings;
pub(crate) use keys::Tenants;
use network::NetworkSettings;
pub(crate) use requests::CapacityStatus;
use requests::RequestSettings;
use scheduler::SchedulerSettings;
pub(crate) use upstream::UpstreamLimit;
use upstream::{UpstreamSettings, is_of_gate};

/// Serves a language model behind an OpenAI-compatible API.
///
/// Without arguments it serves a small model that is part of the binary. Every setting can also be
/// given as the environment variable shown beside it, or in a TOML file under the flag's name with
/// underscores (`max_batch = 8`). A flag wins over a variable, and a variable over the file.
#[derive(Clone, Debug, Parser, Serialize)]
#[command(name = "serve", version = version::LINE.as_str(), after_help = EXIT_CODES, max_term_width = 100,
          next_help_heading = "Model")]
pub(crate) struct Cli {
    /// Something else than serving
    #[command(subcommand)]
    #[serde(skip)]
    pub(crate) command: Option<Command>,

    /// What --model takes
    #[arg(value_name = "MODEL")]
    #[serde(skip)]
    model_first: Option<String>,

    /// A TOML file with settings and API keys; docs/serve.toml is an example
    #[arg(
        long,
        env = "SERVE_CONFIG",
        value_name = "FILE",
        help_heading = "General"
    )]
    #[serde(skip)]
    pub(crate) config: Option<PathBuf>,

    /// A folder in the Hugging Face layout, ORG/NAME of a model on the hub, or random:SHAPE for
    /// random weights, such as random:qwen2.5-0.5b [default: the small model inside the binary]
    #[arg(long, env = "SERVE_MODEL", value_name = "PATH|ORG/NAME|random:SHAPE")]
    pub(crate) model: Option<String>,

    /// The branch, tag or commit of a model on the hub [default: main]
    #[arg(long, env = "SERVE_REVISION")]
    pub(crate) revision: Option<String>,

    /// A file with a chat template in Jinja, in place of the model's own [default: the model's own]
    #[cfg(feature = "model")]
    #[arg(long, env = "SERVE_CHAT_TEMPLATE", value_name = "FILE")]
    pub(crate) chat_template: Option<PathBuf>,

    /// What runs the steps
    #[arg(long, env = "SERVE_BACKEND", value_enum, default_value_t = Backend::DEFAULT)]
    pub(crate) backend: Backend,

    /// Where the model runs: auto (an NVIDIA GPU if one is ready, else the CPU), cpu, cuda, or, for
    /// testing, webgpu and flex (Burn's own operations on the CPU) [default: auto]
    #[cfg(feature = "model")]
    #[arg(long, env = "SERVE_DEVICE", value_name = "DEVICE")]
    pub(crate) device: Option<serve_model::decode::DeviceKind>,

    /// What the model computes in: f32, bf16 or int8. On a GPU the type of weights, activations and
    /// cache, f32 or bf16; on the CPU what the factors of matrix products are rounded to, which makes
    /// batches and prompts faster and answers not quite the same: bf16 where the processor has
    /// AVX512_BF16, int8 with --quantize [default: bf16 if a GPU has it; f32 on the CPU, int8 with
    /// --quantize]
    #[cfg(feature = "model")]
    #[arg(long, env = "SERVE_PRECISION", value_name = "TYPE")]
    pub(crate) precision: Option<serve_model::numbers::Precision>,

    /// Record decode steps on a GPU and replay them, instead of launching each operation [default: true]
    #[cfg(feature = "model")]
    #[arg(long, env = "SERVE_GRAPHS", value_name = "BOOL", num_args = 0..=1, require_equals = true,
          default_missing_value = "true", action = clap::ArgAction::Set,
          value_parser = clap::builder::BoolishValueParser::new())]
    pub(crate) graphs: Option<bool>,

    /// The name that clients ask for [default: the model's own]
    #[arg(long, env = "SERVE_SERVED_MODEL_NAME", value_name = "NAME")]
    pub(crate) served_model_name: Option<String>,

    /// Make the weights smaller when they are loaded: q8 (8 bits in blocks of 32) or q4 (4 bits);
    /// faster, and not quite the same answers [default: as they are stored]
    #[cfg(feature = "model")]
    #[arg(long, env = "SERVE_QUANTIZE", value_name = "TYPE")]
    pub(crate) quantize: Option<serve_model::numbers::Quantization>,

    /// What is logged to stderr: a level (error, warn, info, debug, trace, off), or levels of modules
    /// such as `info,serve_http=debug`
    #[arg(
        long,
        env = "SERVE_LOG",
        value_name = "FILTER",
        default_value = "info",
        help_heading = "General"
    )]
    pub(crate) log: String,

    /// How a line of the log is written
    #[arg(
        long,
        env = "SERVE_LOG_FORMAT",
        value_enum,
        default_value = "text",
        help_heading = "General"
    )]
    pub(crate) log_format: log::Format,

    /// Tokens in a block of a prompt: a line of the log has a hash for each whole block, under a key that each
    /// start draws anew, so that serve-bench can replay a log without its texts; 0 tells none
    #[arg(
        long,
        env = "SERVE_LOG_PROMPT_BLOCKS",
        value_name = "TOKENS",
        default_value_t = 0,
        help_heading = "General"
    )]
    pub(crate) log_prompt_blocks: u32,

    #[command(flatten)]
    #[serde(flatten)]
    pub(crate) network: NetworkSettings,

    #[command(flatten)]
    #[serde(flatten)]
    pub(crate) scheduler: SchedulerSettings,

    #[command(flatten)]
    #[serde(flatten)]
    pub(crate) requests: RequestSettings,

    #[command(flatten)]
    #[serde(flatten)]
    pub(crate) upstream: UpstreamSettings,

    /// From the settings file alone.
    #[arg(skip)]
    pub(crate) keys: Vec<KeySettings>,
}

/// Something else than serving.
#[derive(Clone, Copy, Debug, Subcommand)]
pub(crate) enum Command {
    /// Reads an API key from stdin and prints the hash that a settings file holds instead of it
    HashKey {
        /// Make a key and print it with its hash
        #[arg(long)]
        generate: bool,
    },
}

/// What runs the steps.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, ValueEnum)]
#[serde(rename_all = "lowercase")]
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
        if self.upstream.is_on() {
            return self.validate_front();
        }
        let mock = self.backend == Backend::Mock;
        let contradictions = [
            (
                "--model",
                mock && self.model.is_some(),
                "--backend mock loads no model",
            ),
            #[cfg(feature = "model")]
            (
                "--device",
                mock && self.device.is_some(),
                "--backend mock runs on no device",
            ),
            #[cfg(feature = "model")]
            (
                "--chat-template",
                mock && self.chat_template.is_some(),
                "--backend mock writes chats in its own way",
            ),
            #[cfg(feature = "model")]
            (
                "--graphs",
                self.graphs.is_some() && self.device == Some(serve_model::decode::DeviceKind::Cpu)
                    || mock && self.graphs.is_some(),
                "steps are recorded on GPUs alone",
            ),
            #[cfg(feature = "model")]
            (
                "--precision",
                mock && self.precision.is_some(),
                "--backend mock computes nothing",
            ),
            #[cfg(feature = "model")]
            (
                "--quantize",
                mock && self.quantize.is_some(),
                "--backend mock has no weights",
            ),
            (
                "--revision",
                self.model.is_none() && self.revision.is_some(),
                "it belongs to a model on the hub, and --model names none",
            ),
        ];
        self.refuse(contradictions)?;
        let is_given = |row: &&&Row| self.settings().is_given(row.name);
        match MOCK.iter().find(is_given).filter(|_| !mock) {
            Some(row) => Err(usage(&row.flag(), "it needs --backend mock".to_owned())),
            None => Ok(self.settings().check()?),
        }
    }

    /// The same in front of somebody else's engine, which has a model, a device and batches of its own.
    fn validate_front(&self) -> Result<(), Failure> {
        let given = [
            ("--model", self.model.is_some()),
            ("--revision", self.revision.is_some()),
            ("--backend", self.backend != Backend::DEFAULT),
            ("--log-prompt-blocks", self.log_prompt_blocks > 0),
            #[cfg(feature = "model")]
            ("--chat-template", self.chat_template.is_some()),
            #[cfg(feature = "model")]
            ("--device", self.device.is_some()),
            #[cfg(feature = "model")]
            ("--precision", self.precision.is_some()),
            #[cfg(feature = "model")]
            ("--graphs", self.graphs.is_some()),
            #[cfg(feature = "model")]
            ("--quantize", self.quantize.is_some()),
        ];
        const OWN: &str = "the engine behind the gate has its own";
        if let Some((setting, _)) = given.into_iter().find(|(_, is_given)| *is_given) {
            return Err(usage(setting, OWN.to_owned()));
        }
        let is_engines =
            |entry: &Entry| !is_of_gate(entry) && self.settings().is_given(entry.row.name);
        if let Some(entry) = table().into_iter().find(is_engines) {
            return Err(usage(&entry.row.flag(), OWN.to_owned()));
        }
        self.refuse([])?;
        if let Some(cause) = self.upstream.wrong_command() {
            return Err(usage("--upstream-command", cause));
        }
        Ok(self.settings().check()?)
    }

    /// Refuses the first of `own` contradictions that applies, or of those that there can be whatever is served, or a
    /// log that is none.
    fn refuse<const N: usize>(
        &self,
        own: [(&'static str, bool, &'static str); N],
    ) -> Result<(), Failure> {
        let anonymous = (
            "--allow-anonymous",
            self.network.allow_anonymous && !self.keys.is_empty(),
            "there are API keys, and each request needs one of them",
        );
        let all = own
            .into_iter()
            .chain([anonymous])
            .chain(self.network.contradictions())
            .chain(self.requests.contradictions())
            .chain(self.upstream.contradictions());
        match all.into_iter().find(|(_, applies, _)| *applies) {
            Some((setting, _, cause)) => Err(usage(setting, cause.to_owned())),
            None => log::filter(&self.log).map(drop),
        }
    }

    /// What `GET /v1/config` shows: every setting as it holds, and what this binary is.
    ///
    /// # Errors
    ///
    /// Where a value cannot be written as JSON.
    pub(crate) fn shown(&self) -> Result<Value, Failure> {
        let failed = |error: serde_json::Error| Failure::Runtime(error.into());
        let mut shown = serde_json::to_value(self).map_err(failed)?;
        shown["version"] = env!("CARGO_PKG_VERSION").into();
        shown["build"] = version::build();
        if let Some(program) = self.upstream.program() {
            shown["upstream_command"] = program.into();
        }
        Ok(shown)
    }

    /// What was given of the settings that the scheduler has a table of.
    pub(crate) fn settings(&self) -> &Settings {
        &self.scheduler.0
    }
}

fn usage(setting: &str, cause: String) -> Failure {
    Failure::Usage {
        setting: setting.to_owned(),
        cause,
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn a_setting_of_zero_that_must_not_be_says_what_is_accepted() {
        for flag in ["--max-batch", "--step-tokens", "--context", "--kv-tokens"] {
            let error = Cli::try_parse_from(["serve", flag, "0"]).unwrap_err();
            let message = error.to_string();
            assert!(message.contains(flag), "{message}");
            assert!(message.contains("a whole number from 1 up"), "{message}");
        }
    }

    #[test]
    fn step_times_of_the_mock_are_checked() {
        let message = |flag: &str| {
            let error = Cli::try_parse_from(["serve", flag]).unwrap_err();
            error.to_string()
        };
        for wrong in ["16000", "0=5", "1=-5", "1=inf", "a=1"] {
            let message = message(&format!("--mock-decode-us={wrong}"));
            assert!(message.contains("BATCH=MICROSECONDS"), "{message}");
        }
    }

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn what_is_the_engines_own_is_refused_in_front_of_one() {
        let message = |arguments: &[&str]| {
            let all = ["serve", "--upstream", "http://127.0.0.1:1"]
                .iter()
                .chain(arguments);
            let cli = Cli::try_parse_from(all).unwrap();
            cli.validate().err().map(|failure| failure.to_string())
        };
        for (flag, value) in [
            ("--model", "x"),
            ("--max-batch", "4"),
            ("--mock-speed", "2"),
            ("--victim", "least-progress-lost"),
            ("--prefix-cache", "=false"),
        ] {
            let given = match value.strip_prefix('=') {
                Some(_) => vec![format!("{flag}{value}")],
                None => vec![flag.to_owned(), value.to_owned()],
            };
            let given: Vec<&str> = given.iter().map(String::as_str).collect();
            let said = message(&given).unwrap();
            assert_eq!(
                said,
                format!("{flag}: the engine behind the gate has its own")
            );
        }
        for right in [
            &["--queue-cap", "3"][..],
            &["--order", "fair-tenants", "--input-weight", "2"],
            &["--upstream-limit", "8"],
        ] {
            assert_eq!(message(right), None);
        }
        let cli = Cli::try_parse_from(["serve", "--upstream-limit", "8"]).unwrap();
        let said = cli.validate().unwrap_err().to_string();
        assert_eq!(
            said,
            "--upstream-limit: it needs --upstream or --upstream-command"
        );
    }

    #[test]
    fn a_contradiction_names_the_setting() {
        let cli = Cli::try_parse_from(["serve", "--backend", "mock", "--model", "x"]).unwrap();
        let message = cli.validate().unwrap_err().to_string();
        assert_eq!(message, "--model: --backend mock loads no model");
    }
}
