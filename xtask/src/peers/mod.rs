//! `cargo xtask speed peers`: the decoder on the CPU, candle and llama.cpp on the same random weights,
//! in turns.
//!
//! Every engine is a program of its own that takes the same steps; this one builds them, runs them in
//! alternation and makes a table of their medians.

mod entrants;
mod table;
mod tools;

use std::process::ExitCode;

use clap::Args;

use crate::cargo::TaskResult;
use entrants::{ENTRANTS, Engine, Results};
use tools::Tools;

/// What is under the options.
pub(crate) const HELP: &str = "The first run builds candle (a crate of its own, xtask/peers) and \
    llama.cpp (llama-cpp-python from PyPI, in a virtual environment) for this very CPU: half an hour on \
    two cores. Everything is kept in target/peers; later runs take about eight minutes. Python with pip is needed, \
    and a C++ compiler (PYTHON names another interpreter). Exit code 0: everything was measured; 1: \
    something was not, which is named.";

/// What to measure.
#[derive(Args, Clone, Debug)]
pub(crate) struct Options {
    /// The shape of the random weights: qwen2.5-0.5b, qwen2.5-1.5b or qwen2.5-7b
    #[arg(default_value = "qwen2.5-0.5b")]
    shape: String,
    /// Turns of each engine but candle, which has one; a number is the median of the turns
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..))]
    rounds: u32,
    /// One JSON object a line
    #[arg(long)]
    json: bool,
}

/// Builds what is missing, measures, prints.
pub(crate) fn run(options: &Options) -> TaskResult {
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
