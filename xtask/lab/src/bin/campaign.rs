//! `campaign`: the fault campaign as a command.

use std::io::{self, Write};
use std::process::ExitCode;

use clap::Parser;
use lab::campaign::{self, Settings};
use lab::figure::Figure;
use lab::provenance::provenance;

/// Runs a server at twice its capacity while clients misbehave and its device fails, and checks that
/// nothing is lost, counted twice or left behind.
#[derive(Debug, Parser)]
#[command(
    after_help = "Exit code 0: every invariant held; 1: one broke, which is named; 2: bad \
                        arguments."
)]
struct Cli {
    /// Requests in all
    #[arg(long, value_name = "N", default_value_t = 20_000, value_parser = clap::value_parser!(u64).range(100..=10_000_000))]
    requests: u64,
    /// Fixes who asks for what, who leaves when, and which steps fail
    #[arg(long, value_name = "SEED", default_value_t = 1)]
    seed: u64,
    /// One JSON object a line: name, value, unit
    #[arg(long)]
    json: bool,
}

fn main() -> ExitCode {
    match run(&Cli::parse()) {
        Ok(code) => code,
        Err(error) => {
            // Nothing is left to report a failure of standard error to.
            let _ = writeln!(io::stderr(), "campaign: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run(cli: &Cli) -> Result<ExitCode, Box<dyn std::error::Error>> {
    let Cli {
        requests,
        seed,
        json,
    } = *cli;
    campaign::quiet_panics();
    let mut builder = tokio::runtime::Builder::new_multi_thread();
    let runtime = builder.enable_all().build()?;
    let outcome = runtime.block_on(campaign::campaign(Settings { requests, seed }))?;
    let mut out = io::stdout().lock();
    let broken = Figure::new("invariants_broken", outcome.broken.len() as f64, "1");
    let figures = provenance(seed).into_iter().chain(outcome.figures);
    for figure in figures.chain([broken]) {
        writeln!(out, "{}", figure.line(json))?;
    }
    for broken in &outcome.broken {
        writeln!(io::stderr(), "campaign: seed {seed} broke: {broken}")?;
    }
    Ok(match outcome.broken.is_empty() {
        true => ExitCode::SUCCESS,
        false => ExitCode::FAILURE,
    })
}
