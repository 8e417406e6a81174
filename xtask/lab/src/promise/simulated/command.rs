//! `cargo xtask promise --simulated`: its arguments, and what it prints.

use std::io::{self, Write};
use std::process::ExitCode;

use serve_bench::store::hardware::Hardware;

use super::{Plan, promises, table};
use crate::{TaskResult, cli, provenance};

/// Simulates and prints.
pub(crate) fn run(options: &cli::Promise) -> TaskResult {
    let plan = Plan {
        requests: options.requests,
        seeds: options.seeds.clone(),
    };
    let outcome = promises(&plan)?;
    let lines = &outcome.lines;
    let mut out = io::stdout().lock();
    if options.json {
        for line in lines {
            writeln!(out, "{}", serde_json::to_string(line)?)?;
        }
    } else {
        let commit = provenance::commit();
        writeln!(out, "{}", commit.as_deref().unwrap_or("of no known commit"))?;
        writeln!(out, "{}", Hardware::of_this_machine(true))?;
        writeln!(
            out,
            "{} requests at each load, seeds {:?}, in virtual time",
            plan.requests, plan.seeds
        )?;
        for (binding, capacity) in &outcome.capacities_per_s {
            let (name, settings) = (binding.name(), binding.settings());
            writeln!(out, "{name}: {settings}; {capacity:.2} answers/s")?;
        }
        write!(out, "\n{}", table(lines).text())?;
    }
    Ok(match lines.iter().all(|line| line.kept) {
        true => ExitCode::SUCCESS,
        false => ExitCode::FAILURE,
    })
}
