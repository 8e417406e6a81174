//! The `serve-bench` binary: a thin command line over the library.

#![expect(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "a command-line tool answers on its standard streams"
)]

use std::error::Error;
use std::fs::File;
use std::io::{BufReader, BufWriter, IsTerminal, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use clap::{Args, Parser, Subcommand, ValueEnum};
use serve_bench::analyse::{Slo, Summary};
use serve_bench::drive::drive;
use serve_bench::http::Target;
use serve_bench::record::{self, Outcome, Record};
use serve_bench::table::table;
use serve_bench::workload::{Arrivals, Prompts, Workload};
use serve_core::Span;
use tokio::sync::watch;

/// Measures a server that speaks the OpenAI API.
#[derive(Debug, Parser)]
#[command(
    version,
    after_help = "Exit code 0: at least one answer came whole; 1: none did, or the run could not be \
        made; 2: bad arguments."
)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Send a workload, keep one row for each attempt, print one table
    Run(Run),
    /// Print the table of a file of rows again
    Analyse {
        /// The rows, one JSON object a line
        file: PathBuf,
        #[command(flatten)]
        slo: SloArgs,
    },
}

#[derive(Args, Debug)]
struct Run {
    /// The server
    #[arg(long, default_value = "http://127.0.0.1:8000")]
    url: String,
    /// The model to ask for [default: the first that the server lists]
    #[arg(long)]
    model: Option<String>,
    /// Sent as a bearer token
    #[arg(long, env = "OPENAI_API_KEY", hide_env_values = true)]
    api_key: Option<String>,
    #[command(flatten)]
    load: Load,
    /// How an open loop spaces its requests
    #[arg(long, value_enum, default_value_t = Spacing::Poisson, conflicts_with = "clients")]
    arrivals: Spacing,
    /// How many requests to send
    #[arg(long, default_value_t = 100)]
    requests: u64,
    /// Tokens that each answer may have
    #[arg(long, default_value_t = 64)]
    max_tokens: u32,
    /// Fixes arrivals, prompts and sampling
    #[arg(long, default_value_t = 0)]
    seed: u64,
    /// Prompts to draw from, one JSON object with a string `prompt` a line [default: a small mix]
    #[arg(long, value_name = "FILE")]
    prompts: Option<PathBuf>,
    /// Seconds after which an answer that has not ended has failed
    #[arg(long, value_name = "SECONDS", default_value_t = 600)]
    timeout: u64,
    /// Where to write the rows
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
    #[command(flatten)]
    slo: SloArgs,
}

#[derive(Args, Debug)]
#[group(required = true, multiple = false)]
struct Load {
    /// Open loop: requests a second, however many are under way
    #[arg(long, value_name = "PER_SECOND")]
    rate: Option<f64>,
    /// Closed loop: clients that each wait for their answer
    #[arg(long)]
    clients: Option<u32>,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Spacing {
    /// Exponentially distributed gaps
    Poisson,
    /// Equal gaps
    Constant,
}

#[derive(Args, Debug)]
struct SloArgs {
    /// Count as goodput only answers whose first token came within this time
    #[arg(long, value_name = "MS")]
    slo_ttft_ms: Option<u64>,
    /// Count as goodput only answers whose further tokens took at most this time each
    #[arg(long, value_name = "MS")]
    slo_tpot_ms: Option<u64>,
    /// Count as goodput only answers that ended within this time
    #[arg(long, value_name = "MS")]
    slo_e2e_ms: Option<u64>,
}

impl SloArgs {
    fn slo(&self) -> Slo {
        Slo {
            ttft: self.slo_ttft_ms.map(Span::from_millis),
            tpot: self.slo_tpot_ms.map(Span::from_millis),
            e2e: self.slo_e2e_ms.map(Span::from_millis),
        }
    }
}

#[tokio::main]
async fn main() -> ExitCode {
    let result = match Cli::parse().command {
        Command::Run(options) => run(options).await,
        Command::Analyse { file, slo } => analyse(&file, &slo.slo()),
    };
    match result {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Whether any answer came whole.
async fn run(options: Run) -> Result<bool, Box<dyn Error>> {
    let workload = workload(&options)?;
    let mut out = options.out.as_deref().map(create).transpose()?;
    let target = Target::new(&options.url, options.model, options.api_key).await?;
    println!("server     {} with model {}", options.url, target.model());
    println!("workload   {}, seed {}", workload.arrivals(), options.seed);

    let (sender, stop) = watch::channel(false);
    tokio::spawn(async move {
        // Without a handler for the signal, Ctrl-C ends the process, which is what it is for.
        if tokio::signal::ctrl_c().await.is_ok() {
            eprintln!("stopping; what was measured is kept");
            let _ = sender.send(true);
        }
    });
    let mut records = Vec::new();
    let mut written = Ok(());
    let mut progress = Progress::new(workload.requests());
    let patience = Duration::from_secs(options.timeout);
    drive(&workload, target, patience, stop, |record| {
        if let (Some(out), Ok(())) = (&mut out, &written) {
            written = record::write(&record, out);
        }
        progress.add(&record);
        records.push(record);
    })
    .await;
    progress.end();
    written?;
    if let Some(out) = &mut out {
        out.flush()?;
    }
    Ok(report(&records, &options.slo.slo()))
}

fn workload(options: &Run) -> Result<Workload, Box<dyn Error>> {
    let arrivals = match (options.load.rate, options.load.clients, options.arrivals) {
        (None, clients, _) => Arrivals::Closed {
            clients: clients.unwrap_or(0),
        },
        (Some(rate_per_s), _, Spacing::Poisson) => Arrivals::Poisson { rate_per_s },
        (Some(rate_per_s), _, Spacing::Constant) => Arrivals::Constant { rate_per_s },
    };
    let prompts = match &options.prompts {
        Some(path) => {
            let text = std::fs::read_to_string(path);
            Prompts::parse(&text.map_err(|error| format!("{}: {error}", path.display()))?)?
        }
        None => Prompts::builtin(),
    };
    let (requests, tokens) = (options.requests, options.max_tokens);
    Ok(Workload::new(
        arrivals,
        prompts,
        requests,
        tokens,
        options.seed,
    )?)
}

fn create(path: &Path) -> Result<BufWriter<File>, String> {
    let file = File::create(path).map_err(|error| format!("{}: {error}", path.display()))?;
    Ok(BufWriter::new(file))
}

fn analyse(path: &Path, slo: &Slo) -> Result<bool, Box<dyn Error>> {
    let file = File::open(path).map_err(|error| format!("{}: {error}", path.display()))?;
    Ok(report(&record::read(BufReader::new(file))?, slo))
}

fn report(records: &[Record], slo: &Slo) -> bool {
    let summary = Summary::of(records, slo);
    print!("{}", table(&summary, slo));
    let wrong = |record: &&Record| matches!(record.outcome, Outcome::Refused | Outcome::Failed);
    if let Some(first) = records.iter().find(wrong) {
        let cause = first.error.as_deref().unwrap_or("no cause was given");
        println!("\nfirst that went wrong: request {}: {cause}", first.index);
    }
    summary.counts.ok > 0
}

/// A line on the terminal that is written over; nothing when standard error is no terminal.
struct Progress {
    total: u64,
    done: u64,
    wrong: u64,
    shown: Option<Instant>,
    start: Instant,
    live: bool,
}

impl Progress {
    fn new(total: u64) -> Self {
        Self {
            total,
            done: 0,
            wrong: 0,
            shown: None,
            start: Instant::now(),
            live: std::io::stderr().is_terminal(),
        }
    }

    fn add(&mut self, record: &Record) {
        self.done += 1;
        self.wrong += u64::from(record.outcome != Outcome::Ok);
        let due = self
            .shown
            .is_none_or(|shown| shown.elapsed() > Duration::from_millis(200));
        if self.live && due {
            let elapsed_s = self.start.elapsed().as_secs_f64();
            let left_s = elapsed_s / self.done as f64 * (self.total - self.done) as f64;
            let (done, total, wrong) = (self.done, self.total, self.wrong);
            eprint!("\r{done}/{total} ended, {wrong} not ok, about {left_s:.0} s left   ");
            self.shown = Some(Instant::now());
        }
    }

    fn end(&self) {
        if self.live {
            eprint!("\r{:60}\r", "");
        }
    }
}
