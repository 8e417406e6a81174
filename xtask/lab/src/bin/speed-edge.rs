//! `speed-edge`: what a streamed token costs the server.

use std::io::{self, Write};
use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Parser, ValueEnum};
use lab::edge::{self, Trial};

/// Starts `serve` on the mock and reads streams from it: requests and tokens a second, processor
/// time of the server for each token, and the first-token time that HTTP adds.
#[derive(Debug, Parser)]
#[command(
    after_help = "Exit code 0: measured, without an error; 1: a request failed, or nothing could \
                        be measured; 2: bad arguments."
)]
struct Cli {
    /// The server [default: the `serve` beside this program]
    #[arg(long, value_name = "PATH")]
    serve: Option<PathBuf>,
    /// Streams at once
    #[arg(long, value_name = "N", value_delimiter = ',', default_value = "1,64,256,2000",
          value_parser = clap::value_parser!(u32).range(1..=10_000))]
    streams: Vec<u32>,
    /// How fast the mock is: it takes no time, or half of the measured GPU's
    #[arg(long, value_enum, value_delimiter = ',', default_value = "free,paced")]
    pace: Vec<Pace>,
    /// Fixes prompts and answers
    #[arg(long, value_name = "SEED", default_value_t = 1)]
    seed: u64,
    /// One JSON object a line: name, value, unit
    #[arg(long)]
    json: bool,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Pace {
    Free,
    Paced,
}

fn main() -> ExitCode {
    match run(Cli::parse()) {
        Ok(0) => ExitCode::SUCCESS,
        Ok(errors) => complain(&format!("{errors} requests failed")),
        Err(error) => complain(&error.to_string()),
    }
}

fn run(cli: Cli) -> Result<u64, Box<dyn std::error::Error>> {
    let trial = Trial {
        serve: cli.serve,
        streams: cli.streams,
        paces: cli
            .pace
            .into_iter()
            .map(|pace| match pace {
                Pace::Free => edge::Pace::Free,
                Pace::Paced => edge::Pace::Paced,
            })
            .collect(),
        seed: cli.seed,
    };
    let mut builder = tokio::runtime::Builder::new_multi_thread();
    let runtime = builder.enable_all().build()?;
    let mut written = Ok(());
    let errors = runtime.block_on(edge::edge(&trial, |figure| {
        let line = writeln!(io::stdout(), "{}", figure.line(cli.json));
        if written.is_ok() {
            written = line;
        }
    }))?;
    written?;
    Ok(errors)
}

fn complain(message: &str) -> ExitCode {
    // Nothing is left to report a failure of standard error to.
    let _ = writeln!(io::stderr(), "speed-edge: {message}");
    ExitCode::FAILURE
}
