//! Nobody knows how long an answer will be, so nobody knows how much KV cache it will need. One can
//! keep room for the longest, and leave most of it empty; or fill the cache, and when it is full take
//! the blocks of one request away, which waits again in its old place and is computed anew.
//!
//! The same mechanism, if it is asked to, preempts a running request of a lower class for a waiting one of
//! a higher class.

use std::error::Error;

use examples_support::{
    Options, Table, l4, l4_with_blocks, percentile, request, secs, simulate, simulate_preempting,
};
use serve_core::rng::Rng;
use serve_core::{Class, Request, Span, Time};
use serve_sched::Policies;
use serve_sched::batch::Continuous;
use serve_sched::order::StrictTiers;
use serve_sched::sim::{Poisson, Report, Row};
use serve_sched::victim::{LeastProgressLost, NewestOfLowestClass, Preemption, Victim};

const REQUESTS: u64 = 400;
/// Prompts of up to 500 tokens and answers of up to 400 come to hold up to 57 blocks of 16.
const PROMPT_TOKENS_MAX: u32 = 500;
const OUTPUT_TOKENS_MAX: u32 = 400;
const BLOCKS_MAX: u32 = 57;
/// A cache that holds seven of the largest.
const BLOCKS: u32 = 7 * BLOCKS_MAX;

fn main() -> Result<(), Box<dyn Error>> {
    let options = Options::of_command_line(env!("CARGO_PKG_DESCRIPTION"));
    options.show_over_seeds(
        "400 requests of 1 to 57 blocks, all waiting; 16 slots but for the second line; virtual time",
        |seed| Ok(pressure_table(&pressure(seed)?)),
    )?;
    options.show_over_seeds(
        "8 slots full of class 1, and one request of class 0 every second, virtual time",
        |seed| Ok(class_table(&by_class(seed)?)),
    )?;
    Ok(())
}

struct Pressed {
    report: Report,
    /// Positions that had been run when their request was preempted.
    lost_tokens: u64,
}

/// Room for everybody; room for the longest answers of a few; and two choices of which request is preempted.
fn pressure(seed: u64) -> Result<[(&'static str, Pressed); 4], Box<dyn Error>> {
    let serve = |blocks, slots, victim: Box<dyn Victim>| -> Result<Pressed, Box<dyn Error>> {
        let policies = Policies {
            admit: Vec::new(),
            batch: Box::new(Continuous {
                sequences_max: Some(slots),
                ..Continuous::default()
            }),
            victim,
            ..Policies::default()
        };
        let mut lengths = Rng::new(seed + 1);
        let load = (0..REQUESTS).map(|id| {
            let mut up_to = |most: u32| 1 + lengths.below(u64::from(most)) as u32;
            request(
                id,
                Time::ZERO,
                up_to(PROMPT_TOKENS_MAX),
                up_to(OUTPUT_TOKENS_MAX),
            )
        });
        let device = l4_with_blocks(16, blocks)?;
        let (report, lost_tokens) = simulate_preempting(&device, policies, load)?;
        Ok(Pressed {
            report,
            lost_tokens,
        })
    };
    Ok([
        (
            "912, 16 slots",
            serve(16 * BLOCKS_MAX, 16, Box::new(NewestOfLowestClass))?,
        ),
        (
            "399, 7 slots",
            serve(BLOCKS, 7, Box::new(NewestOfLowestClass))?,
        ),
        (
            "399, newest preempted",
            serve(BLOCKS, 16, Box::new(NewestOfLowestClass))?,
        ),
        (
            "399, least lost",
            serve(BLOCKS, 16, Box::new(LeastProgressLost))?,
        ),
    ])
}

/// The device with so many blocks to give, beside the null block.
fn by_class(seed: u64) -> Result<[(&'static str, Report); 2], Box<dyn Error>> {
    let serve = |by_class| -> Result<Report, Box<dyn Error>> {
        let policies = Policies {
            order: Box::new(StrictTiers),
            preemption: Preemption {
                by_class,
                ..Preemption::default()
            },
            ..Policies::default()
        };
        let low = (0..60).map(|id| request(id, Time::ZERO, 60, 400));
        let low = low.map(|request| request.with_class(Class::new(1)));
        let high = (1_000..).zip(Poisson::new(seed + 2, 1.0)).take(30);
        let high = high.map(|(id, at)| request(id, at, 60, 40));
        let mut load: Vec<Request> = low.chain(high).collect();
        load.sort_by_key(Request::arrival);
        Ok(simulate(&l4(8)?, policies, load)?)
    };
    Ok([("waits", serve(false)?), ("takes a slot", serve(true)?)])
}

fn first_token(report: &Report, class: u8, percent: u32) -> Span {
    let rows = report
        .rows
        .iter()
        .filter(|row| row.class == Class::new(class));
    percentile(percent, rows.filter_map(Row::first_token_time))
}

fn pressure_table(reports: &[(&'static str, Pressed)]) -> Table {
    let headings = [
        "blocks",
        "all answered in",
        "preempted",
        "tokens lost",
        "latency p99",
    ];
    let mut table = Table::new(headings);
    for (
        name,
        Pressed {
            report,
            lost_tokens,
        },
    ) in reports
    {
        table.row([
            (*name).to_owned(),
            secs(report.end.since(Time::ZERO)),
            report.stats.counters.preempted.to_string(),
            lost_tokens.to_string(),
            secs(percentile(99, report.rows.iter().map(Row::response_time))),
        ]);
    }
    table
}

fn class_table(reports: &[(&'static str, Report)]) -> Table {
    let headings = [
        "class 0",
        "first token p50",
        "p99",
        "preempted",
        "all answered in",
    ];
    let mut table = Table::new(headings);
    for (name, report) in reports {
        table.row([
            (*name).to_owned(),
            secs(first_token(report, 0, 50)),
            secs(first_token(report, 0, 99)),
            report.stats.counters.preempted.to_string(),
            secs(report.end.since(Time::ZERO)),
        ]);
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn filling_the_cache_and_preempting_beats_keeping_room_for_the_longest() {
        let [(_, ample), (_, few), (_, newest), (_, least)] = pressure(0).unwrap();
        assert_eq!(ample.report.stats.counters.preempted, 0);
        assert_eq!(few.report.stats.counters.preempted, 0);
        for pressed in [&newest, &least] {
            assert!(pressed.report.stats.counters.preempted > 0);
            assert!(pressed.report.end < few.report.end);
            assert!(pressed.report.rows.iter().all(Row::is_finished));
        }
        let lost_each = |pressed: &Pressed| {
            pressed.lost_tokens as f64 / pressed.report.stats.counters.preempted as f64
        };
        assert!(lost_each(&least) < lost_each(&newest));
    }

    #[test]
    fn a_higher_class_that_may_take_a_slot_does_not_wait() {
        let [(_, waits), (_, takes)] = by_class(0).unwrap();
        assert!(first_token(&waits, 0, 99) > Span::from_secs(1));
        assert!(first_token(&takes, 0, 99) < Span::from_millis(100));
        assert!(
            takes.rows.iter().all(Row::is_finished),
            "what is preempted goes on later"
        );
        assert!(takes.end > waits.end, "what is run again takes time");
    }
}
