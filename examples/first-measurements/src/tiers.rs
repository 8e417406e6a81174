//! Paid before free: what the free tier waits with aging off and on, and who is admitted.

use std::error::Error;

use examples_support::{Table, l4, request, secs, simulate};
use serve_core::{Class, Request, Span, Time};
use serve_sched::Policies;
use serve_sched::admit::QueueCap;
use serve_sched::order::{AgingTiers, Order, StrictTiers};
use serve_sched::sim::{Report as SimReport, Row};

use crate::{Batching, PROMPT_TOKENS, measured};

const OUTPUT_TOKENS: u32 = 64;
const PAID: Class = Class::HIGHEST;
const FREE: Class = Class::new(1);
/// Requests that may wait, as the measured server had it.
const DEPTH: u32 = 9;
const AGE_AFTER: Span = Span::from_secs(2);

pub(crate) struct Report {
    waits: Vec<Wait>,
    admitted: Vec<Admitted>,
}

#[derive(Clone, Copy, Debug)]
struct Wait {
    batching: Batching,
    paid_per_sec: u64,
    aging: bool,
    /// Requests that may wait; 0 is any number.
    depth: u32,
    /// The longest measured wait of a free request, in seconds.
    measured: Option<f64>,
    free_max: Span,
    paid_max: Span,
}

#[derive(Clone, Copy, Debug)]
struct Admitted {
    batching: Batching,
    tiered: bool,
    measured: Option<[u32; 2]>,
    paid_percent: f64,
    free_percent: f64,
    total: usize,
}

pub(crate) fn run() -> Result<Report, Box<dyn Error>> {
    // As measured, half as much again as the server can do behind a short queue; then as much paid
    // traffic as each server can just do, and nobody is refused.
    let waits = [
        (Batching::Static(8), 10, DEPTH, [Some(5.51), Some(2.17)]),
        (Batching::Continuous(8), 10, DEPTH, [None, None]),
        (Batching::Static(8), 7, 0, [None, None]),
        (Batching::Continuous(8), 7, 0, [None, None]),
        (Batching::Continuous(16), 14, 0, [None, None]),
    ];
    let admitted = [
        (Batching::Static(8), false, Some([42, 38])),
        (Batching::Static(8), true, Some([50, 18])),
        (Batching::Continuous(8), false, None),
        (Batching::Continuous(8), true, None),
    ];
    let waits = waits
        .into_iter()
        .flat_map(|(batching, paid, depth, [off, on])| {
            let off = wait(batching, paid, depth, false, off);
            [off, wait(batching, paid, depth, true, on)]
        });
    let admitted =
        admitted.map(|(batching, tiered, measured)| admission(batching, tiered, measured));
    Ok(Report {
        waits: waits.collect::<Result<_, _>>()?,
        admitted: admitted.into_iter().collect::<Result<_, _>>()?,
    })
}

fn wait(
    batching: Batching,
    paid_per_sec: u64,
    depth: u32,
    aging: bool,
    measured: Option<f64>,
) -> Result<Wait, Box<dyn Error>> {
    let order: Box<dyn Order> = match aging {
        true => Box::new(AgingTiers::new(AGE_AFTER)),
        false => Box::new(StrictTiers),
    };
    let report = two_tiers(batching, order, QueueCap::new(depth), [paid_per_sec, 1], 30)?;
    let max = |class| {
        let waits = of(&report, class).filter_map(Row::waited);
        waits.max().unwrap_or_default()
    };
    Ok(Wait {
        batching,
        paid_per_sec,
        aging,
        depth,
        measured,
        free_max: max(FREE),
        paid_max: max(PAID),
    })
}

fn admission(
    batching: Batching,
    tiered: bool,
    measured: Option<[u32; 2]>,
) -> Result<Admitted, Box<dyn Error>> {
    let cap = QueueCap::new(DEPTH);
    let cap = if tiered {
        cap.with_class(FREE, DEPTH / 2)
    } else {
        cap
    };
    let order = Box::new(AgingTiers::new(AGE_AFTER));
    let report = two_tiers(batching, order, cap, [13, 5], 20)?;
    let percent = |class| {
        let taken = of(&report, class).filter(|row| row.is_finished()).count();
        100.0 * taken as f64 / of(&report, class).count() as f64
    };
    Ok(Admitted {
        batching,
        tiered,
        measured,
        paid_percent: percent(PAID),
        free_percent: percent(FREE),
        total: report.rows.iter().filter(|row| row.is_finished()).count(),
    })
}

fn two_tiers(
    batching: Batching,
    order: Box<dyn Order>,
    cap: QueueCap,
    [paid_per_sec, free_per_sec]: [u64; 2],
    secs: u64,
) -> Result<SimReport, Box<dyn Error>> {
    let policies = Policies {
        admit: vec![Box::new(cap)],
        order,
        batch: batching.policy(),
        ..Policies::default()
    };
    let mut load: Vec<Request> = tier(PAID, paid_per_sec, secs).collect();
    load.extend(tier(FREE, free_per_sec, secs));
    load.sort_by_key(Request::arrival);
    Ok(simulate(&l4(16)?, policies, load)?)
}

/// The requests of a tier at a steady rate. The free ones come half a gap after a paid one.
fn tier(class: Class, per_sec: u64, secs: u64) -> impl Iterator<Item = Request> {
    let gap = Span::from_secs(1) / per_sec;
    let (first, id) = match class {
        PAID => (Time::ZERO, 0),
        _ => (Time::from_millis(50), 1_000_000),
    };
    (0..per_sec * secs).map(move |n| {
        // The measured server told a stream at once that it was accepted, and so displaced nobody.
        request(id + n, first + gap * n, PROMPT_TOKENS, OUTPUT_TOKENS)
            .with_class(class)
            .with_committed(true)
    })
}

fn of(report: &SimReport, class: Class) -> impl Iterator<Item = &Row> {
    report.rows.iter().filter(move |row| row.class == class)
}

impl Report {
    pub(crate) fn table(&self) -> Table {
        let mut table = Table::new([
            "batching",
            "paid",
            "may wait",
            "aging",
            "measured",
            "simulated",
            "of a paid one",
        ]);
        for wait in &self.waits {
            table.row([
                wait.batching.name(),
                format!("{}/s", wait.paid_per_sec),
                match wait.depth {
                    0 => "all".to_owned(),
                    depth => depth.to_string(),
                },
                if wait.aging {
                    secs(AGE_AFTER)
                } else {
                    "off".to_owned()
                },
                measured(wait.measured, "s"),
                secs(wait.free_max),
                secs(wait.paid_max),
            ]);
        }
        table
    }

    pub(crate) fn admission_table(&self) -> Table {
        let mut table = Table::new([
            "batching",
            "depth",
            "measured paid, free",
            "simulated paid",
            "free",
            "in all",
        ]);
        for line in &self.admitted {
            table.row([
                line.batching.name(),
                if line.tiered { "9, free 4" } else { "9" }.to_owned(),
                line.measured.map_or_else(
                    || "-".to_owned(),
                    |[paid, free]| format!("{paid}%, {free}%"),
                ),
                format!("{:.0}%", line.paid_percent),
                format!("{:.0}%", line.free_percent),
                line.total.to_string(),
            ]);
        }
        table
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::assert_near;

    #[test]
    fn the_free_tier_waits_as_long_as_it_was_measured_to_within_a_quarter() {
        for wait in run().unwrap().waits {
            if let Some(measured) = wait.measured {
                assert_near(wait.free_max.as_secs_f64(), measured, 0.25);
            }
        }
    }

    #[test]
    fn behind_a_short_queue_aging_bounds_the_wait_by_itself_and_one_batch() {
        let pass = Span::from_millis(1_122);
        for wait in run().unwrap().waits {
            if wait.aging && wait.depth > 0 {
                assert!(wait.free_max <= AGE_AFTER + pass, "{wait:?}");
            }
        }
    }

    #[test]
    fn with_nobody_refused_strict_tiers_starve_and_aging_does_not() {
        let waits = run().unwrap().waits;
        for pair in waits.chunks(2).filter(|pair| pair[0].depth == 0) {
            let (strict, aging) = (pair[0], pair[1]);
            assert!(
                strict.free_max.as_secs_f64() > 2.0 * aging.free_max.as_secs_f64(),
                "{pair:?}"
            );
            // What the free tier gains, the paid one pays.
            assert!(aging.paid_max > strict.paid_max, "{pair:?}");
        }
    }

    #[test]
    fn tiered_admission_adds_nothing_and_shifts_it_to_paid() {
        let lines = run().unwrap().admitted;
        for pair in lines.chunks(2) {
            let (flat, tiered) = (pair[0], pair[1]);
            assert!(flat.total.abs_diff(tiered.total) <= 2, "{pair:?}");
            assert!(tiered.paid_percent > flat.paid_percent + 5.0, "{pair:?}");
            assert!(tiered.free_percent < flat.free_percent - 15.0, "{pair:?}");
        }
        for line in lines {
            if let Some([paid, free]) = line.measured {
                assert!(
                    (line.paid_percent - f64::from(paid)).abs() < 5.0,
                    "{line:?}"
                );
                assert!(
                    (line.free_percent - f64::from(free)).abs() < 5.0,
                    "{line:?}"
                );
            }
        }
    }
}
