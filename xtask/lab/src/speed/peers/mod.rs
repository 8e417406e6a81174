//! `cargo xtask speed peers`: the decoder on the CPU, candle and llama.cpp on the same random weights,
//! in turns.
//!
//! Every engine is a program of its own that takes the same steps; this one builds them, runs them in
//! alternation and makes a table of their medians.

mod entrants;
mod table;
mod tools;

use std::process::ExitCode;

use crate::TaskResult;
use crate::cli::SpeedPeers;
use entrants::{ENTRANTS, Engine, Results};
use tools::Tools;

/// Builds what is missing, measures, prints.
pub(crate) fn run(options: &SpeedPeers) -> TaskResult {
    let tools = Tools::build()?;
    let folder = tools.weights(&options.shape)?;
    let mut results = Results::default();
    for weights in table::CHECKED {
        if let Err(error) = tools.check(&folder, weights) {
            results.fail(Engine::Serve, weights, &error);
        }
    }
    for round in 0..options.rounds as usize {
        for turn in 0..ENTRANTS.len() {
            // Each round begins with another, so that none is always the first.
            let entrant = &ENTRANTS[(turn + round) % ENTRANTS.len()];
            let is_slow = entrant.engine == Engine::Candle;
            if results.has_failed(entrant) || (is_slow && round > 0) {
                continue;
            }
            eprintln!(
                "round {} of {}: {} in {}",
                round + 1,
                options.rounds,
                entrant.engine.name(),
                entrant.weights
            );
            match tools.measure(entrant, &folder) {
                Ok(rows) => results.add(entrant, rows),
                Err(error) => results.fail(entrant.engine, entrant.weights, &error),
            }
        }
    }
    let head = table::Head {
        shape: &options.shape,
        rounds: options.rounds,
        threads: tools.threads,
        serve: &tools.version,
    };
    match options.json {
        true => print!("{}", table::json(&results, &head)),
        false => print!("{}", table::text(&results, &head)),
    }
    Ok(match results.failures.is_empty() {
        true => ExitCode::SUCCESS,
        false => ExitCode::FAILURE,
    })
}
