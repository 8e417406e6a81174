//! `cargo xtask promise`: its arguments, and what it prints.

use std::io::{self, Write};
use std::process::ExitCode;
use std::time::Duration;

use serve_bench::analysis::table::Table;

use super::{Promise, Trial, Verdict, promises, simulated};
use crate::provenance::provenance;
use crate::{TaskResult, block_on, cli};

/// Loads the servers, or simulates them, and prints what became of each promise.
pub(crate) fn run(options: &cli::Promise) -> TaskResult {
    if options.simulated {
        return simulated::run(options);
    }
    let trial = Trial {
        serve: options.serve.clone(),
        lasts: Duration::from_secs(options.seconds),
        seed: options.seed,
    };
    let promises = block_on(promises(&trial))??;
    let mut out = io::stdout().lock();
    for figure in provenance(options.seed) {
        writeln!(out, "{}", figure.line(options.json))?;
    }
    match options.json {
        true => {
            let figures = promises.iter().flat_map(Promise::figures);
            figures
                .into_iter()
                .try_for_each(|figure| writeln!(out, "{}", figure.line(true)))?;
        }
        false => write!(out, "\n{}", table(&promises).text())?,
    }
    let is_kept = |promise: &Promise| promise.verdict == Verdict::Kept;
    Ok(match promises.iter().all(is_kept) {
        true => ExitCode::SUCCESS,
        false => ExitCode::FAILURE,
    })
}

fn table(promises: &[Promise]) -> Table {
    let columns = ["promise", "promised", "measured", "control", "verdict"];
    let mut table = Table::new("", &columns);
    for promise in promises {
        let number = |value: f64| format!("{value:.1} {}", promise.unit.trim_start_matches('1'));
        let verdict = match promise.verdict {
            Verdict::Kept => "kept",
            Verdict::Broken => "BROKEN",
            Verdict::Void => "VOID: the control kept it",
        };
        table.row([
            promise.name.clone(),
            promise.promised.clone(),
            number(promise.measured),
            promise.control.map_or_else(|| "-".to_owned(), number),
            verdict.to_owned(),
        ]);
    }
    table
}
