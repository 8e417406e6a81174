//! `serve-bench analyse`: the table of a file of rows, computed again.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;
use serve_bench::analyse::Summary;
use serve_bench::record::{self, Outcome, Record};
use serve_bench::slo::Slo;
use serve_bench::table::table;

use super::{CommandResult, SloArgs};

/// Arguments of the command.
#[derive(Args, Debug)]
pub(crate) struct Analyse {
    /// The rows, one JSON object a line
    file: PathBuf,
    #[command(flatten)]
    slo: SloArgs,
}

/// Reads and prints.
pub(crate) fn run(options: &Analyse) -> CommandResult {
    Ok(report(&record::read(&options.file)?, &options.slo.slo()))
}

/// Prints the table. Fails when no answer came whole.
pub(crate) fn report(records: &[Record], slo: &Slo) -> ExitCode {
    let summary = Summary::of(records, slo);
    print!("{}", table(&summary, slo));
    let wrong = |record: &&Record| matches!(record.outcome, Outcome::Refused | Outcome::Failed);
    if let Some(first) = records.iter().find(wrong) {
        let cause = first.error.as_deref().unwrap_or("no cause was given");
        println!(
            "\nfirst that went wrong: request {}: {cause}",
            first.request
        );
    }
    match summary.counts.ok {
        0 => ExitCode::FAILURE,
        _ => ExitCode::SUCCESS,
    }
}
