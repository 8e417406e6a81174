//! `serve-bench promises`: what admission promises and what comes of it, in virtual time.

use std::process::ExitCode;

use crate::experiments::promises::{self, Plan};
use crate::store::hardware::Hardware;
use clap::Args;

use super::CommandResult;

/// Arguments of the command.
#[derive(Args, Debug)]
#[command(after_help = "Exit code 0: every promise was kept; 1: one was broken; 2: bad arguments.")]
pub(crate) struct Promises {
    /// Requests at each load
    #[arg(long, value_name = "N", default_value_t = Plan::default().requests, value_parser = clap::value_parser!(u32).range(100..))]
    requests: u32,
    /// Seeds of the arrivals; each number is the worst of them [default: 1,2,3]
    #[arg(long, value_name = "SEEDS", value_delimiter = ',')]
    seeds: Vec<u64>,
    /// One JSON object a line
    #[arg(long)]
    json: bool,
}

/// Simulates and prints.
pub(crate) fn run(options: &Promises) -> CommandResult {
    let seeds = match options.seeds.is_empty() {
        true => Plan::default().seeds,
        false => options.seeds.clone(),
    };
    let plan = Plan {
        requests: options.requests,
        seeds,
    };
    let outcome = promises::promises(&plan)?;
    let lines = &outcome.lines;
    match options.json {
        true => {
            for line in lines {
                out!("{}", serde_json::to_string(line)?);
            }
        }
        false => {
            let commit = option_env!("SERVE_BENCH_COMMIT").unwrap_or("of no known commit");
            out!("serve-bench {}, {commit}", env!("CARGO_PKG_VERSION"));
            out!("{}", Hardware::of_this_machine(true));
            out!(
                "{} requests at each load, seeds {:?}, in virtual time",
                plan.requests,
                plan.seeds
            );
            for (binding, capacity) in &outcome.capacities_per_s {
                out!(
                    "{}: {}; {capacity:.2} answers/s",
                    binding.name(),
                    binding.settings()
                );
            }
            out_part!("\n{}", promises::table(lines).text());
        }
    }
    Ok(match lines.iter().all(|line| line.kept) {
        true => ExitCode::SUCCESS,
        false => ExitCode::FAILURE,
    })
}
