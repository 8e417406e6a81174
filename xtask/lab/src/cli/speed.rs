//! The command line of the programs that measure a speed.

use std::path::PathBuf;

use clap::{Args, Subcommand, ValueEnum};

use super::Weights;

#[derive(Debug, Subcommand)]
pub(crate) enum Speed {
    /// Prefill and decode of a model at several batch sizes, beside the memory's own speed
    Decode(SpeedDecode),
    /// Decode against the speed of memory and prefill against a matrix product, with random weights
    /// in bf16, q8 and q4
    Cpu(SpeedCpu),
    /// The decoder on the CPU beside candle and llama.cpp, on the same random weights
    Peers(SpeedPeers),
    /// From the start of the server to its being ready, and the memory that takes
    StartUp(SpeedStartUp),
    /// The scheduler: submit, cancel and step
    Sched(SpeedSched),
    /// The virtual-time simulation
    Sim(SpeedSim),
    /// The server's edge: what a streamed token costs
    Edge(SpeedEdge),
    /// Any of these, of this build and of another one by turns
    Turns(SpeedTurns),
}

#[derive(Args, Debug)]
#[command(
    after_help = "Each build measures with what lies beside its lab: its own `serve`. Of each number stand there the \
    median of this build, that of the other, and this one through the other: the median over rounds, the least and the \
    most. Exit code 1: a build failed, or they have no number in common."
)]
pub(crate) struct SpeedTurns {
    /// The other build's lab, such as ../before/target/release/lab
    #[arg(value_name = "LAB")]
    pub(crate) other: PathBuf,
    /// Runs of each build
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) rounds: u32,
    /// One JSON object a line
    #[arg(long)]
    pub(crate) json: bool,
    /// What to measure, as after `cargo xtask speed`
    #[arg(last = true, required = true, value_name = "SPEED")]
    pub(crate) what: Vec<String>,
}

#[derive(Args, Debug)]
#[command(
    after_help = "Medians, in tokens per second, and how far each decode step is from the memory's own speed. \
    Exit code 2: bad arguments, or the model cannot be used."
)]
pub(crate) struct SpeedDecode {
    /// A model's folder, `embedded` or austen-2m for the model inside the binary, or `random:SHAPE` for random weights
    /// of a known shape, such as `random:qwen2.5-0.5b`
    pub(crate) model: PathBuf,
    /// Sequences in a decode step
    #[arg(long, value_name = "LIST", value_delimiter = ',', default_values_t = [1, 4, 16], value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) batches: Vec<u32>,
    /// Tokens of each sequence before the first decode step, and of the prefill
    #[arg(long, value_name = "LIST", value_delimiter = ',', default_values_t = [128], value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) contexts: Vec<u32>,
    #[command(flatten)]
    pub(crate) weights: Weights,
    /// On a GPU, launch each operation of a decode step instead of replaying a recorded one
    #[arg(long)]
    pub(crate) no_graphs: bool,
    /// On CUDA, let Burn's tuner choose the products of few rows too
    #[arg(long)]
    pub(crate) tuned_decode: bool,
    /// Steps of each kind whose median counts [default: as many as take a second, and at least 9]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) samples: Option<u32>,
    /// One JSON object a line
    #[arg(long)]
    pub(crate) json: bool,
    /// Print the config.json of a random:SHAPE and measure nothing
    #[arg(long)]
    pub(crate) print_config: bool,
}

#[derive(Args, Debug)]
#[command(after_help = "Exit code 2: bad arguments, or the weights cannot be made.")]
pub(crate) struct SpeedCpu {
    /// The shape of the weights
    #[arg(default_value = "qwen2.5-0.5b")]
    pub(crate) shape: String,
    /// Rounds; each number is the median of one measurement in each
    #[arg(long, default_value_t = 15, value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) rounds: u32,
    /// One JSON object a line: name, value, unit, weights, factors
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Args, Clone, Debug)]
#[command(
    after_help = "The first run builds candle (a crate of its own, xtask/peers) and llama.cpp (llama-cpp-python \
    from PyPI, in a virtual environment) for this very CPU: half an hour on two cores. Everything is kept in \
    target/peers; later runs take about eight minutes. Python with pip is needed, and a C++ compiler (PYTHON \
    names another interpreter). Exit code 0: everything was measured; 1: something was not, which is named."
)]
pub(crate) struct SpeedPeers {
    /// The shape of the random weights: qwen2.5-0.5b, qwen2.5-1.5b or qwen2.5-7b
    #[arg(default_value = "qwen2.5-0.5b")]
    pub(crate) shape: String,
    /// Turns of each engine but candle, which has one; a number is the median of the turns
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) rounds: u32,
    /// One JSON object a line
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Args, Debug)]
pub(crate) struct SpeedStartUp {
    /// A model as `serve --model` takes it [default: the one inside the binary]
    pub(crate) model: Option<String>,
    /// Starts that are counted
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=1_000))]
    pub(crate) runs: u32,
    /// One JSON object a line
    #[arg(long)]
    pub(crate) json: bool,
    /// More settings of the server, as in `-- --quantize q8`
    #[arg(last = true)]
    pub(crate) serve: Vec<String>,
}

#[derive(Args, Debug)]
#[command(
    after_help = "Each number is the median over seven processes; beside it stand the least and the most."
)]
pub(crate) struct SpeedSched {
    /// One JSON object a line
    #[arg(long)]
    pub(crate) json: bool,
    /// Measure this case in this process and print the number alone
    #[arg(long, hide = true)]
    pub(crate) case: Option<String>,
}

#[derive(Args, Debug)]
#[command(after_help = "Exit code 2: bad arguments, or the trace cannot be read.")]
pub(crate) struct SpeedSim {
    /// One JSON object a line
    #[arg(long)]
    pub(crate) json: bool,
    /// A request trace to replay, of Azure's layout or of Mooncake's
    #[arg(long, value_name = "FILE")]
    pub(crate) trace: Option<PathBuf>,
}

#[derive(Args, Debug)]
#[command(
    after_help = "Requests and tokens a second, processor time of the server for each token, and the first-token \
    time that HTTP adds, of `serve` on the mock. Exit code 0: measured, without an error; 1: a request failed, or \
    nothing could be measured; 2: bad arguments."
)]
pub(crate) struct SpeedEdge {
    /// The server [default: the `serve` beside this program]
    #[arg(long, value_name = "PATH")]
    pub(crate) serve: Option<PathBuf>,
    /// Streams at once
    #[arg(long, value_name = "N", value_delimiter = ',', default_value = "1,64,256,2000",
          value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub(crate) streams: Vec<u32>,
    /// How fast the mock is
    #[arg(long, value_enum, value_delimiter = ',', default_value = "free,paced")]
    pub(crate) pace: Vec<Pace>,
    /// Fixes prompts and answers
    #[arg(long, value_name = "SEED", default_value_t = 1)]
    pub(crate) seed: u64,
    /// One JSON object a line
    #[arg(long)]
    pub(crate) json: bool,
}

/// How fast the mock is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Pace {
    /// It takes no time
    Free,
    /// Each step takes as long as half a step of the measured GPU
    Paced,
}
