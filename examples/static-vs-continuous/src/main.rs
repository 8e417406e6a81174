//! A static batch runs to the end of its longest request and lets nobody join; a continuous one is
//! joined and left at every step. Where answers differ in length, static slots stand empty while the
//! longest goes on, and a request that comes meanwhile waits for it.

use std::error::Error;

use examples_support::{Options, Table, l4, ms, percentile, request, secs, simulate};
use serve_core::rng::Rng;
use serve_core::{Request, Span};
use serve_sched::Policies;
use serve_sched::batch::{Batch, Continuous, Static, Window};
use serve_sched::sim::{Poisson, Row};

const SLOTS: u32 = 8;

fn main() -> Result<(), Box<dyn Error>> {
    let options = Options::of_command_line(env!("CARGO_PKG_DESCRIPTION"));
    options.show_over_seeds(
        "8 slots, answers of 8 to 247 tokens, arrivals at random, virtual time",
        |seed| Ok(table(&run(seed)?)),
    )?;
    Ok(())
}

#[derive(Debug)]
struct Line {
    rate: u32,
    batch: &'static str,
    first_token_p50: Span,
    first_token_p99: Span,
    p99: Span,
    /// How many of the slots were in use in the mean while the device was busy.
    slots_used: f64,
}

fn run(seed: u64) -> Result<Vec<Line>, Box<dyn Error>> {
    let mut lines = Vec::new();
    for rate in [1, 2, 3] {
        let batch = Static::new(SLOTS, Window::Fixed(Span::from_millis(10)));
        lines.push(serve(seed, rate, Box::new(batch))?);
        lines.push(serve(seed, rate, Box::new(Continuous::default()))?);
    }
    Ok(lines)
}

fn serve(seed: u64, rate: u32, batch: Box<dyn Batch>) -> Result<Line, Box<dyn Error>> {
    let name = batch.name();
    let policies = Policies {
        batch,
        ..Policies::default()
    };
    let report = simulate(&l4(SLOTS)?, policies, load(seed, rate))?;
    let rows = || report.rows.iter();
    let in_slots: Span = rows()
        .filter_map(|row| Some(row.end.since(row.started?)))
        .sum();
    Ok(Line {
        rate,
        batch: name,
        first_token_p50: percentile(50, rows().filter_map(Row::first_token_time)),
        first_token_p99: percentile(99, rows().filter_map(Row::first_token_time)),
        p99: percentile(99, rows().map(Row::response_time)),
        slots_used: in_slots.as_secs_f64() / report.busy.as_secs_f64(),
    })
}

fn load(seed: u64, rate: u32) -> impl Iterator<Item = Request> {
    let mut lengths = Rng::new(seed + 2);
    let arrivals = (0..600).zip(Poisson::new(seed + 1, f64::from(rate)));
    arrivals.map(move |(id, at)| request(id, at, 30, 8 + lengths.below(240) as u32))
}

fn table(lines: &[Line]) -> Table {
    let mut table = Table::new([
        "batch",
        "offered",
        "first token p50",
        "p99",
        "latency p99",
        "slots used",
    ]);
    for line in lines {
        table.row([
            line.batch.to_owned(),
            format!("{} req/s", line.rate),
            ms(line.first_token_p50),
            ms(line.first_token_p99),
            secs(line.p99),
            format!("{:.1} of {SLOTS}", line.slots_used),
        ]);
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn joining_at_every_step_is_an_earlier_first_token_at_any_load() {
        for pair in run(0).unwrap().chunks(2) {
            let [fixed, continuous] = pair else {
                panic!("lines come in pairs")
            };
            assert_eq!((fixed.batch, continuous.batch), ("static", "continuous"));
            assert!(
                continuous.first_token_p50 * 10 < fixed.first_token_p50,
                "{pair:?}"
            );
            assert!(continuous.p99 < fixed.p99, "{pair:?}");
        }
    }

    #[test]
    fn while_slots_are_free_the_first_token_of_most_is_a_step_or_two_away() {
        for line in run(0).unwrap() {
            if line.batch == "continuous" && line.rate <= 2 {
                assert!(line.first_token_p50 < Span::from_millis(40), "{line:?}");
            }
        }
    }
}
