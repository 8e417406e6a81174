//! Most requests are short and a few are long. First come, first served makes the many wait for the
//! few. The highest response ratio, `(wait + work) / work`, lets the short ones go first and yet ends
//! every wait: a long request's ratio grows too, if more slowly.

use std::error::Error;

use examples_support::{Options, Table, l4, mean, percentile, request, secs, simulate};
use serve_core::rng::Rng;
use serve_core::{Request, Span, Time};
use serve_sched::Policies;
use serve_sched::order::{Fifo, Order, Place, ResponseRatio, Waiting};
use serve_sched::sim::{Poisson, Report, Row};

const LONG: u32 = 600;

fn main() -> Result<(), Box<dyn Error>> {
    let options = Options::of_command_line(env!("CARGO_PKG_DESCRIPTION"));
    options.show_over_seeds(
        "8 slots for 3 min at full load: 12.5 answers/s of 8 to 56 tokens, 0.12/s of 600; virtual time",
        |seed| Ok(table(&run(seed)?)),
    )?;
    Ok(())
}

/// The lowest output limit first, without regard to the wait: the control that starves.
struct ShortestFirst;

impl Order for ShortestFirst {
    fn name(&self) -> &'static str {
        "shortest-first"
    }

    fn place(&mut self, waiting: &Waiting<'_>, _now: Time) -> Place {
        Place::by_key(u64::from(waiting.request.output_tokens_max()))
    }
}

fn run(seed: u64) -> Result<Vec<(String, Report)>, Box<dyn Error>> {
    let orders: [Box<dyn Order>; 3] = [
        Box::new(Fifo),
        Box::new(ShortestFirst),
        Box::new(ResponseRatio::default()),
    ];
    let mut reports = Vec::new();
    for order in orders {
        let name = order.name().to_owned();
        let policies = Policies {
            admit: Vec::new(),
            order,
            ..Policies::default()
        };
        reports.push((name, simulate(&l4(8)?, policies, load(seed))?));
    }
    Ok(reports)
}

fn load(base: u64) -> Vec<Request> {
    let mut lengths = Rng::new(base + 4);
    let mut stream = |seed, rate, first_id, long| -> Vec<Request> {
        let minutes = Poisson::new(seed, rate).take_while(|&at| at < Time::from_secs(180));
        let requests = (first_id..).zip(minutes).map(|(id, at)| {
            let output = if long {
                LONG
            } else {
                8 + lengths.below(49) as u32
            };
            request(id, at, 30, output)
        });
        requests.collect()
    };
    let mut load = stream(base + 6, 12.5, 0, false);
    load.extend(stream(base + 7, 0.12, 1_000_000, true));
    load.sort_by_key(Request::arrival);
    load
}

fn waits(report: &Report, long: bool) -> impl Iterator<Item = Span> {
    let rows = report.rows.iter();
    let rows = rows.filter(move |row| (row.usage.output_tokens == LONG) == long);
    rows.filter_map(Row::waited)
}

fn table(reports: &[(String, Report)]) -> Table {
    let headings = [
        "order",
        "mean latency",
        "short waits p50",
        "p99",
        "long waits p50",
        "longest",
    ];
    let mut table = Table::new(headings);
    for (name, report) in reports {
        table.row([
            name.clone(),
            secs(mean(report.rows.iter().map(Row::response_time))),
            secs(percentile(50, waits(report, false))),
            secs(percentile(99, waits(report, false))),
            secs(percentile(50, waits(report, true))),
            secs(percentile(100, waits(report, true))),
        ]);
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn short_ones_first_is_a_shorter_mean_and_waiting_makes_up_for_being_long() {
        let reports = run(0).unwrap();
        let [(_, fifo), (_, shortest), (_, ratio)] = &reports[..] else {
            panic!("three orders");
        };
        let latency = |report: &Report| mean(report.rows.iter().map(Row::response_time));
        assert!(latency(shortest) < latency(ratio) && latency(ratio) < latency(fifo));
        // Without regard to the wait, the longest of the short ones starve too.
        let p99 = |report| percentile(99, waits(report, false));
        assert!(p99(ratio) < p99(fifo) && p99(fifo) * 3 < p99(shortest));
        let longest = |report| percentile(100, waits(report, true));
        assert!(longest(ratio) < longest(shortest));
    }

    #[test]
    fn nobody_is_passed_any_more_after_a_minute() {
        let (_, ratio) = run(0).unwrap().pop().unwrap();
        let longest = ratio.rows.iter().filter_map(Row::waited).max().unwrap();
        assert!(longest < Span::from_secs(60), "{longest}");
    }
}
