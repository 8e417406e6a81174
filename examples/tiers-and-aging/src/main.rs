//! Strict tiers let the paid tier pass the free one, for ever if paid traffic never ends. With aging,
//! a request that has waited for two seconds is moved ahead of every tier, in the order of arrival, so that
//! nobody who comes later than that can pass it. The guarantee is paid for by the paid tier.

use std::error::Error;

use examples_support::{Options, Table, l4, percentile, request, secs, simulate};
use serve_core::{Class, Request, Span, Time};
use serve_sched::Policies;
use serve_sched::order::{AgingTiers, Fifo, Order, StrictTiers};
use serve_sched::sim::{Poisson, Report, Row};

const PAID: Class = Class::HIGHEST;
const FREE: Class = Class::new(1);
const AGE_AFTER: Span = Span::from_secs(2);

fn main() -> Result<(), Box<dyn Error>> {
    let options = Options::of_command_line(env!("CARGO_PKG_DESCRIPTION"));
    options.show_over_seeds(
        "6.2 paid and 0.5 free requests/s at 8 slots that do 7.1, for a minute, virtual time",
        |seed| Ok(table(&run(seed)?)),
    )?;
    Ok(())
}

fn run(seed: u64) -> Result<Vec<(&'static str, Report)>, Box<dyn Error>> {
    let orders: [(&'static str, Box<dyn Order>); 4] = [
        ("fifo", Box::new(Fifo)),
        ("strict tiers", Box::new(StrictTiers)),
        (
            "aging after 5 s",
            Box::new(AgingTiers::new(Span::from_secs(5))),
        ),
        ("aging after 2 s", Box::new(AgingTiers::new(AGE_AFTER))),
    ];
    let mut reports = Vec::new();
    for (name, order) in orders {
        let policies = Policies {
            order,
            ..Policies::default()
        };
        reports.push((name, simulate(&l4(8)?, policies, load(seed))?));
    }
    Ok(reports)
}

fn load(base: u64) -> Vec<Request> {
    let tier = |class, seed, rate, first_id| {
        let minute = Poisson::new(seed, rate).take_while(|&at| at < Time::from_secs(60));
        (first_id..)
            .zip(minute)
            .map(move |(id, at)| request(id, at, 30, 64).with_class(class))
    };
    let mut load: Vec<Request> = tier(PAID, base + 3, 6.2, 0)
        .chain(tier(FREE, base + 2, 0.5, 10_000))
        .collect();
    load.sort_by_key(Request::arrival);
    load
}

/// How long the requests of a class waited.
fn waits(report: &Report, class: Class) -> impl Iterator<Item = Span> {
    let rows = report.rows.iter().filter(move |row| row.class == class);
    rows.filter_map(Row::waited)
}

fn table(reports: &[(&'static str, Report)]) -> Table {
    let mut table = Table::new(["order", "paid p50", "paid p99", "free p50", "free longest"]);
    for (name, report) in reports {
        table.row([
            (*name).to_owned(),
            secs(percentile(50, waits(report, PAID))),
            secs(percentile(99, waits(report, PAID))),
            secs(percentile(50, waits(report, FREE))),
            secs(percentile(100, waits(report, FREE))),
        ]);
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tiers_favour_paid_and_aging_ends_what_they_do_to_free() {
        let reports = run(0).unwrap();
        let [(_, fifo), (_, strict), _, (_, aging)] = &reports[..] else {
            panic!("four orders");
        };
        let p50 = |report, class| percentile(50, waits(report, class));
        let longest = |report, class| percentile(100, waits(report, class));
        assert!(p50(strict, PAID) < p50(fifo, PAID));
        assert!(longest(strict, FREE) > longest(fifo, FREE) * 3);
        assert!(longest(aging, FREE) * 3 < longest(strict, FREE));
        assert!(
            p50(aging, PAID) >= p50(strict, PAID),
            "a guarantee costs somebody something"
        );
    }

    #[test]
    fn once_aged_nobody_younger_passes() {
        let (_, aging) = run(0).unwrap().pop().unwrap();
        for row in &aging.rows {
            let (aged_at, started) = (row.arrival + AGE_AFTER, row.started.unwrap());
            for other in aging
                .rows
                .iter()
                .filter(|other| other.arrival > row.arrival)
            {
                let other_started = other.started.unwrap();
                assert!(
                    other_started < aged_at || started <= other_started,
                    "{row:?} {other:?}"
                );
            }
        }
    }
}
