//! `serve-bench run`: one load against one server.

use std::error::Error;
use std::fs::File;
use std::io::{BufWriter, IsTerminal};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use clap::{Args, ValueEnum};
use serve_bench::drive::drive;
use serve_bench::http::Target;
use serve_bench::record::{Outcome, Record, RowWriter};
use serve_bench::workload::{Arrivals, Prompts, Workload};
use tokio::sync::watch;

use super::analyse::report;
use super::{CommandResult, SloArgs};

/// Arguments of the command.
#[derive(Args, Debug)]
pub(crate) struct Run {
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

/// Sends, writes and prints.
pub(crate) async fn run(options: Run) -> CommandResult {
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
            written = out.write(&record);
        }
        progress.add(&record);
        records.push(record);
    })
    .await;
    progress.end();
    written?;
    if let Some(out) = out {
        out.finish()?;
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

fn create(path: &Path) -> Result<RowWriter<BufWriter<File>>, String> {
    let writer = File::create(path).and_then(|file| RowWriter::new(BufWriter::new(file)));
    writer.map_err(|error| format!("{}: {error}", path.display()))
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
