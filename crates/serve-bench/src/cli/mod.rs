//! The command line of `serve-bench`, one file for each command: its arguments, and what it does.

/// Prints a line to standard output. A function that uses it returns what goes wrong.
macro_rules! out {
    ($($text:tt)*) => {
        $crate::cli::print(format_args!("{}\n", format_args!($($text)*)))?
    };
}

/// The same without the end of the line.
macro_rules! out_part {
    ($($text:tt)*) => {
        $crate::cli::print(format_args!($($text)*))?
    };
}

mod analyse;
mod calibrate;
mod compare;
mod lab;
mod matrix;
mod pretended;
mod report;
mod run;
mod self_test;
mod simulate;
mod sweep;
mod workload;

use std::error::Error;
use std::fmt;
use std::io::{self, Write};
use std::process::ExitCode;

use crate::workload::slo::Slo;
use clap::{Args, Parser, Subcommand};
use serve_core::Span;

/// Measures a server that speaks the OpenAI API.
#[derive(Debug, Parser)]
#[command(
    version,
    after_help = "Exit code 0: at least one answer came whole; 1: none did, or the run could not be \
        made; 2: bad arguments; 3: the run is void, because the client was the bottleneck."
)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Send a workload, keep one row for each attempt, print one table
    Run(run::Run),
    /// Show what a workload would send, without sending it
    Workload(workload::Show),
    /// Measure what the client itself can carry on this machine
    SelfTest(self_test::SelfTest),
    /// Print the tables of a run again, from its rows and its manifest
    Analyse(analyse::Analyse),
    /// Say whether B is better than A, with an interval
    Compare(compare::Compare),
    /// Write one HTML file with tables and charts of one run or of many
    Report(report::Report),
    /// Measure a workload over server settings and loads; find the last load that passes
    Sweep(sweep::Sweep),
    /// Run a workload through the scheduler in virtual time, on a pretended device
    Simulate(simulate::Simulate),
    /// Measure step times, fit the mock's cost model to them, and check that it predicts
    Calibrate(calibrate::Calibrate),
    /// Measure the control matrix: pairs one setting apart, beside what others have published
    Matrix(matrix::Matrix),
}

/// Does what the arguments of the process ask for. The exit codes are those of `--help`.
pub async fn main() -> ExitCode {
    let result = match Cli::parse().command {
        Command::Run(options) => run::run(options).await,
        Command::Workload(options) => workload::run(&options),
        Command::SelfTest(options) => self_test::run(&options).await,
        Command::Analyse(options) => analyse::run(&options),
        Command::Compare(options) => compare::run(&options),
        Command::Report(options) => report::run(&options),
        Command::Sweep(options) => sweep::run(&options).await,
        Command::Simulate(options) => simulate::run(&options),
        Command::Calibrate(options) => calibrate::run(&options).await,
        Command::Matrix(options) => matrix::run(&options).await,
    };
    result.unwrap_or_else(|error| {
        let _ = writeln!(io::stderr(), "error: {error}");
        ExitCode::FAILURE
    })
}

/// Writes to standard output.
fn print(text: fmt::Arguments<'_>) -> io::Result<()> {
    let mut out = io::stdout().lock();
    if_read(out.write_fmt(text).and_then(|()| out.flush()))
}

/// A reader that has closed the output has seen enough, which is no failure: what there is to measure is
/// measured all the same.
fn if_read(written: io::Result<()>) -> io::Result<()> {
    match written {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        written => written,
    }
}

/// The exit code of a command that did its work, or why it could not.
pub(crate) type CommandResult = Result<ExitCode, Box<dyn Error>>;

/// The exit code where the client was the bottleneck: of a void run, of a load that was not sustained.
pub(crate) const VOID: u8 = 3;

/// The exit code where somebody said stop, or the budget was used up, before the end.
pub(crate) const INCOMPLETE: u8 = 6;

/// What an answer must keep to be counted as goodput.
#[derive(Args, Debug)]
pub(crate) struct SloArgs {
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
    /// The limits.
    pub(crate) fn slo(&self) -> Slo {
        Slo {
            ttft: self.slo_ttft_ms.map(Span::from_millis),
            tpot: self.slo_tpot_ms.map(Span::from_millis),
            e2e: self.slo_e2e_ms.map(Span::from_millis),
        }
    }

    /// The limits; `None` when no option was given.
    pub(crate) fn given(&self) -> Option<Slo> {
        Some(self.slo()).filter(|slo| !slo.is_empty())
    }
}
