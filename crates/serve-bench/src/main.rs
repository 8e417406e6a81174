//! The `serve-bench` binary: a thin command line over the library, one file for each command.

#![expect(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "a command-line tool answers on its standard streams"
)]

mod commands;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

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
    Run(commands::run::Run),
    /// Show what a workload would send, without sending it
    Workload(commands::workload::Show),
    /// Measure what the client itself can carry on this machine
    SelfTest(commands::self_test::SelfTest),
    /// Print the tables of a run again, from its rows and its manifest
    Analyse(commands::analyse::Analyse),
    /// Say whether B is better than A, with an interval
    Compare(commands::compare::Compare),
    /// Write one HTML file with tables and charts of one run or of many
    Report(commands::report::Report),
    /// Measure a workload over server settings and loads; find the last load that passes
    Sweep(commands::sweep::Sweep),
    /// Run a workload through the scheduler in virtual time, on a pretended device
    Simulate(commands::simulate::Simulate),
    /// Compare what admission promises with what comes of it, in virtual time, beside the same requests without
    Promises(commands::promises::Promises),
    /// Measure step times, fit the mock's cost model to them, and check that it predicts
    Calibrate(commands::calibrate::Calibrate),
    /// Measure the control matrix: pairs one setting apart, beside what others have published
    Matrix(commands::matrix::Matrix),
}

#[tokio::main]
async fn main() -> ExitCode {
    let result = match Cli::parse().command {
        Command::Run(options) => commands::run::run(options).await,
        Command::Workload(options) => commands::workload::run(&options),
        Command::SelfTest(options) => commands::self_test::run(&options).await,
        Command::Analyse(options) => commands::analyse::run(&options),
        Command::Compare(options) => commands::compare::run(&options),
        Command::Report(options) => commands::report::run(&options),
        Command::Sweep(options) => commands::sweep::run(&options).await,
        Command::Simulate(options) => commands::simulate::run(&options),
        Command::Promises(options) => commands::promises::run(&options),
        Command::Calibrate(options) => commands::calibrate::run(&options).await,
        Command::Matrix(options) => commands::matrix::run(&options).await,
    };
    result.unwrap_or_else(|error| {
        eprintln!("error: {error}");
        ExitCode::FAILURE
    })
}
