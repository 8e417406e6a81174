//! Replicas with prefix caches behind a router: the cheapest by predicted end, beside the fewest in flight. Conversations are made
//! up; `--trace FILE` has recorded requests instead, in either of two formats ([`trace`]).

mod trace;

use std::error::Error;
use std::path::PathBuf;

use clap::Parser;
use examples_support::{Options, Table, route, routed_cells};
use serve_core::mock::MockConfig;
use serve_sched::route::{LeastLoaded, PredictedEnd, Route};
use serve_sched::sim::{ConversationSettings, Conversations, Routed};

/// Several replicas behind a router, under made-up conversations or a recorded trace.
#[derive(Debug, Parser)]
struct Cli {
    /// Requests that were recorded: Azure's LLM inference traces (.csv), Mooncake's (.jsonl)
    #[arg(long, value_name = "FILE")]
    trace: Option<PathBuf>,
    /// Replicas
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = clap::value_parser!(u32).range(1..))]
    replicas: u32,
    /// Requests of the trace, from its start; all unless given
    #[arg(long, value_name = "N")]
    requests: Option<usize>,
    #[command(flatten)]
    options: Options,
}

fn main() -> Result<(), Box<dyn Error>> {
    let cli = Cli::parse();
    let load = load(&cli)?;
    // Mooncake's longest prompts have 126,195 tokens.
    let block_tokens = load.first().map_or(16, |routed| routed.block_tokens);
    let context = 131_072;
    let device = MockConfig::default().with_room(16, 4_096, Some(context), Some(4 * context));
    let mut table = Table::new([
        "policy",
        "first token p50",
        "first token p99",
        "cached",
        "requests",
    ]);
    let policies: [(&str, Box<dyn Route>); 2] = [
        ("predicted-end", Box::new(PredictedEnd)),
        ("least-loaded", Box::new(LeastLoaded)),
    ];
    for (name, policy) in policies {
        let rows = route(policy, &device, cli.replicas, block_tokens, load.clone())?;
        let [p50, p99, cached] = routed_cells(&rows);
        table.row([name.to_owned(), p50, p99, cached, rows.len().to_string()]);
    }
    let title = format!("{} replicas in virtual time", cli.replicas);
    Ok(cli.options.show(&title, &table)?)
}

fn load(cli: &Cli) -> Result<Vec<Routed>, Box<dyn Error>> {
    let seed = cli.options.seed();
    let Some(path) = &cli.trace else {
        let settings = ConversationSettings {
            seed: 1 + seed,
            starts_per_s: 5.0,
            ..ConversationSettings::default()
        };
        return Ok(Conversations::new(settings).collect());
    };
    let text = std::fs::read_to_string(path)?;
    let is_csv = path.extension().is_some_and(|extension| extension == "csv");
    let most = cli.requests.unwrap_or(usize::MAX);
    match is_csv {
        true => trace::azure(&text, most),
        false => trace::mooncake(&text, most, seed),
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory as _;
    use examples_support::percentile;
    use serve_sched::sim::RoutedRow;

    use super::*;

    #[test]
    fn the_command_line_is_well_formed() {
        Cli::command().debug_assert();
    }

    #[test]
    fn first_tokens_come_sooner_by_predicted_end_and_everybody_is_answered() {
        let load = load(&Cli::parse_from(["routing"])).unwrap();
        let device = MockConfig::default().with_room(16, 2_048, Some(20_000), None);
        let p99 = |policy: Box<dyn Route>| {
            let rows = route(policy, &device, 4, 16, load.clone()).unwrap();
            assert!(rows.len() == load.len() && rows.iter().all(|row| row.usage.is_some()));
            let times = rows.iter().filter_map(RoutedRow::first_token_time);
            percentile(99, times).as_secs_f64()
        };
        let (predicted, counted) = (p99(Box::new(PredictedEnd)), p99(Box::new(LeastLoaded)));
        assert!(predicted < 0.75 * counted, "{predicted} and {counted}");
    }
}
