//! An order of one's own, in twenty lines: each prompt token is a handicap of so many milliseconds of
//! seniority. Short prompts get ahead of long ones that came a little earlier, and no handicap lasts:
//! a request that comes later than the handicap is long goes behind. The wait bound is in the formula.

use std::error::Error;

use examples_support::{Options, Table, l4, percentile, request, secs, simulate};
use serve_core::rng::Rng;
use serve_core::{Request, Span, Time};
use serve_sched::Policies;
use serve_sched::order::{Fifo, Order, Place, Waiting};
use serve_sched::sim::{Poisson, Report, Row};

/// A shorter prompt may pass, within limits: `key = arrival + handicap x prompt tokens`.
struct Handicap {
    per_token: Span,
}

impl Order for Handicap {
    fn name(&self) -> &'static str {
        "handicap"
    }

    fn place(&mut self, waiting: &Waiting<'_>, _now: Time) -> Place {
        Place::by_key(self.start(waiting.request).as_nanos())
    }
}

impl Handicap {
    fn start(&self, request: &Request) -> Time {
        request.arrival() + self.per_token * u64::from(request.prompt_tokens())
    }
}

const PER_TOKEN: Span = Span::from_millis(5);
const LONG: u32 = 2_000;

fn main() -> Result<(), Box<dyn Error>> {
    let options = Options::of_command_line(env!("CARGO_PKG_DESCRIPTION"));
    options.show_over_seeds(
        "Four in five prompts of 50 tokens, one of 2,000; 5 ms of handicap a token; virtual time",
        |seed| Ok(table(&run(seed)?)),
    )?;
    Ok(())
}

fn run(seed: u64) -> Result<[(&'static str, Report); 2], Box<dyn Error>> {
    let serve = |order: Box<dyn Order>| {
        let policies = Policies {
            order,
            ..Policies::default()
        };
        simulate(&l4(4)?, policies, load(seed)).map_err(Box::<dyn Error>::from)
    };
    let handicap = Handicap {
        per_token: PER_TOKEN,
    };
    Ok([
        ("fifo", serve(Box::new(Fifo))?),
        ("handicap", serve(Box::new(handicap))?),
    ])
}

fn load(seed: u64) -> impl Iterator<Item = Request> {
    let mut lengths = Rng::new(seed + 3);
    (0..)
        .zip(Poisson::new(seed + 12, 5.6))
        .take(800)
        .map(move |(id, at)| {
            let prompt = if lengths.below(5) == 0 { LONG } else { 50 };
            request(id, at, prompt, 32)
        })
}

/// How long those with a prompt of `tokens` waited.
fn waits(report: &Report, tokens: u32) -> impl Iterator<Item = Span> {
    let rows = report.rows.iter();
    let rows = rows.filter(move |row| row.usage.prompt_tokens == tokens);
    rows.filter_map(Row::waited)
}

fn table(reports: &[(&'static str, Report)]) -> Table {
    let mut table = Table::new([
        "order",
        "short waits p50",
        "short p99",
        "long waits p50",
        "long p99",
    ]);
    for (name, report) in reports {
        table.row([
            (*name).to_owned(),
            secs(percentile(50, waits(report, 50))),
            secs(percentile(99, waits(report, 50))),
            secs(percentile(50, waits(report, LONG))),
            secs(percentile(99, waits(report, LONG))),
        ]);
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn short_prompts_wait_less() {
        let [(_, fifo), (_, handicap)] = run(0).unwrap();
        let p50 = |report| percentile(50, waits(report, 50));
        assert!(p50(&handicap) * 2 < p50(&fifo));
    }

    #[test]
    fn nobody_is_passed_by_who_comes_later_than_the_handicap() {
        let [_, (_, report)] = run(0).unwrap();
        for row in &report.rows {
            let handicap = PER_TOKEN * u64::from(row.usage.prompt_tokens);
            for other in report
                .rows
                .iter()
                .filter(|it| it.arrival > row.arrival + handicap)
            {
                assert!(row.started <= other.started, "{other:?} passes {row:?}");
            }
        }
    }
}
