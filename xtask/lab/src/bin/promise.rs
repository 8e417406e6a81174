//! `promise`: what the server promises under overload, and what it does.

use std::io::{self, Write};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::Parser;
use lab::promise::{Promise, Trial, Verdict, promises};
use lab::provenance::provenance;

/// Loads servers on the mock beyond their capacity and compares what is promised with what was measured: with and
/// without admission by a latency target, at twice the load and, short of slots and short of memory, at four times;
/// paid and free requests with and without aging; a light tenant beside one that floods, in a fair order and first
/// come, first served, behind each admission. It takes some two and a half times `--seconds`, and up to a minute more.
#[derive(Debug, Parser)]
#[command(
    after_help = "Exit code 0: every promise was kept; 1: one was broken, or kept by its control too \
                        (VOID), or nothing could be measured; 2: bad arguments."
)]
struct Cli {
    /// The server [default: the `serve` beside this program]
    #[arg(long, value_name = "PATH")]
    serve: Option<PathBuf>,
    /// Seconds during which requests come; at four times the load and beside a flood half of that
    #[arg(long, value_name = "N", default_value_t = 60, value_parser = clap::value_parser!(u64).range(10..=3_600))]
    seconds: u64,
    /// Fixes when requests come
    #[arg(long, value_name = "SEED", default_value_t = 1)]
    seed: u64,
    /// One JSON object a line: name, value, unit
    #[arg(long)]
    json: bool,
}

fn main() -> ExitCode {
    match run(Cli::parse()) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            // Nothing is left to report a failure of standard error to.
            let _ = writeln!(io::stderr(), "promise: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run(cli: Cli) -> Result<bool, Box<dyn std::error::Error>> {
    let trial = Trial {
        serve: cli.serve,
        lasts: Duration::from_secs(cli.seconds),
        seed: cli.seed,
    };
    let mut builder = tokio::runtime::Builder::new_multi_thread();
    let runtime = builder.enable_all().build()?;
    let promises = runtime.block_on(promises(&trial))?;
    let mut out = io::stdout().lock();
    for figure in provenance(cli.seed) {
        writeln!(out, "{}", figure.line(cli.json))?;
    }
    match cli.json {
        true => {
            let figures = promises.iter().flat_map(Promise::figures);
            figures
                .into_iter()
                .try_for_each(|figure| writeln!(out, "{}", figure.line(true)))?;
        }
        false => table(&promises, &mut out)?,
    }
    let is_kept = |promise: &Promise| promise.verdict == Verdict::Kept;
    Ok(promises.iter().all(is_kept))
}

fn table(promises: &[Promise], out: &mut impl Write) -> io::Result<()> {
    let columns = ("promise", "promised", "measured", "control", "verdict");
    let (name, promised, measured, control, verdict) = columns;
    writeln!(
        out,
        "\n{name:<34} {promised:<28} {measured:>14} {control:>14} {verdict}"
    )?;
    for promise in promises {
        let number = |value: f64| format!("{value:.1} {}", promise.unit.trim_start_matches('1'));
        let (name, promised) = (&promise.name, &promise.promised);
        let measured = number(promise.measured);
        let control = promise.control.map_or_else(|| "-".to_owned(), number);
        let verdict = match promise.verdict {
            Verdict::Kept => "kept",
            Verdict::Broken => "BROKEN",
            Verdict::Void => "VOID: the control kept it",
        };
        writeln!(
            out,
            "{name:<34} {promised:<28} {measured:>14} {control:>14} {verdict}"
        )?;
    }
    Ok(())
}
