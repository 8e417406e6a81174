//! Earliest deadline first: who starts, and who is answered when it is too late.

use proptest::prelude::*;
use serve_core::{CancelReason, Span, Time};
use serve_sched::order::{EarliestDeadline, Fifo};
use serve_sched::sim::{Row, Terminal};

use super::{Spec, serial};

const STEP: Span = Span::from_millis(10);

fn arrivals_with_deadlines() -> impl Strategy<Value = Vec<Spec>> {
    let one = (0_u64..120, 1_u32..20, prop::option::of(1_u64..2_000));
    prop::collection::vec(one, 2..100).prop_map(|many| {
        let mut at = 0;
        let spec = |(gap, output, left): (u64, u32, Option<u64>)| {
            at += gap;
            let spec = Spec::new(at, output);
            Spec {
                deadline: left.map(|left| spec.arrival + Span::from_millis(left)),
                ..spec
            }
        };
        many.into_iter().map(spec).collect()
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn nobody_starts_while_an_earlier_deadline_waits(specs in arrivals_with_deadlines()) {
        let report = serial(EarliestDeadline, &specs);
        let rank = |row: &Row| {
            let deadline = specs[row.request.get() as usize].deadline;
            (deadline.unwrap_or(Time::MAX), row.request)
        };
        for row in &report.rows {
            let Some(started) = row.started else { continue };
            for other in &report.rows {
                let waits = other.arrival <= started
                    && other.started.unwrap_or(other.end) > started;
                prop_assert!(!waits || rank(row) <= rank(other));
            }
        }
    }

    #[test]
    fn a_request_that_is_too_late_is_answered_at_the_next_step(specs in arrivals_with_deadlines()) {
        let report = serial(EarliestDeadline, &specs);
        for row in &report.rows {
            let deadline = specs[row.request.get() as usize].deadline.unwrap_or(Time::MAX);
            match row.terminal {
                Terminal::Cancelled(CancelReason::Deadline) => {
                    prop_assert!(row.end >= deadline);
                    prop_assert!(row.end < deadline + STEP);
                }
                // Its last token may have been under way when the deadline passed.
                _ => prop_assert!(row.is_finished() && row.end.since(deadline) < STEP),
            }
        }
    }
}

/// Deadlines that can all be met are met, and first come, first served does not meet them.
#[test]
fn earliest_deadline_meets_what_can_be_met() {
    // Each pair comes together and takes the server 200 ms; the second of a pair is due first.
    let specs: Vec<Spec> = (0..200)
        .map(|n| {
            let at = n / 2 * 200;
            let due = if n % 2 == 0 { 195 } else { 105 };
            Spec {
                deadline: Some(Time::from_millis(at + due)),
                ..Spec::new(at, if n % 2 == 0 { 9 } else { 10 })
            }
        })
        .collect();
    let met = |rows: &[Row]| rows.iter().filter(|row| row.is_finished()).count();
    assert_eq!(met(&serial(EarliestDeadline, &specs).rows), 200);
    assert_eq!(met(&serial(Fifo, &specs).rows), 100);
}
