//! A limit on waiting alone: what has not started in time is answered and never run.

use proptest::prelude::*;
use serve_core::mock::{CostModel, Mock, MockConfig};
use serve_core::{Backend as _, CancelReason, Limits, Span, StepOutcome, Time, TokenId};
use serve_core::{EventKind, Request, RequestId};
use serve_sched::order::Fifo;
use serve_sched::sim::Terminal;
use serve_sched::{Policies, Scheduler};

use super::{Spec, serial};

const STEP: Span = Span::from_millis(10);

fn arrivals() -> impl Strategy<Value = Vec<Spec>> {
    let limit = || prop::option::of(0_u64..800);
    let one = (0_u64..120, 1_u32..20, limit(), limit());
    prop::collection::vec(one, 2..100).prop_map(|many| {
        let mut at = 0;
        let spec = |(gap, output, wait, left): (u64, u32, Option<u64>, Option<u64>)| {
            at += gap;
            let spec = Spec::new(at, output);
            let after = |millis: u64| spec.arrival + Span::from_millis(millis);
            Spec {
                start_by: wait.map(after),
                // One that has passed on arrival is refused there, which is another matter.
                deadline: left.map(|left| after(left + 1)),
                ..spec
            }
        };
        many.into_iter().map(spec).collect()
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn a_request_that_has_not_started_in_time_is_answered_at_the_next_step(specs in arrivals()) {
        let report = serial(Fifo, &specs);
        for row in &report.rows {
            let spec = specs[row.request.get() as usize];
            let start_by = spec.start_by.unwrap_or(Time::MAX);
            match row.terminal {
                Terminal::Cancelled(CancelReason::QueueTimeout) => {
                    prop_assert_eq!(row.started, None, "never run");
                    prop_assert!(start_by <= row.end && row.end < start_by + STEP);
                    prop_assert!(spec.deadline.is_none_or(|deadline| deadline > row.end));
                }
                _ => {
                    let until = row.started.unwrap_or(row.end);
                    prop_assert!(until <= start_by || until.since(start_by) < STEP);
                }
            }
        }
    }
}

/// The limit is on the wait for the first step: a request that had to make room is not answered as if
/// it had never begun.
#[test]
fn a_request_that_waits_again_after_a_preemption_has_started() {
    let mut mock = Mock::new(MockConfig {
        limits: Limits {
            sequences_max: 2,
            step_tokens_max: 64,
            context_max: 128,
            block_size: 16,
            blocks: 9,
        },
        cost: CostModel::new(vec![(1, STEP)], Span::ZERO, Span::ZERO).unwrap(),
        ..MockConfig::default()
    });
    let mut scheduler = Scheduler::new(mock.limits(), Policies::default()).unwrap();
    let mut now = Time::ZERO;
    for id in 1..=2 {
        let prompt = vec![TokenId::new(id as u32); 8];
        let request = Request::new(RequestId::new(id), now, prompt, 100)
            .unwrap()
            .with_start_by(Some(now + STEP));
        scheduler.submit(now, request).unwrap();
    }
    let mut outcome = StepOutcome::new();
    while let Some(plan) = scheduler.plan(now) {
        mock.execute(&plan, &mut outcome).unwrap();
        now += outcome.elapsed;
        scheduler.complete(now, &outcome);
    }
    assert!(scheduler.stats().counters.preempted > 0);
    let ends = std::iter::from_fn(|| scheduler.poll_event());
    let ends = ends.filter(|event| event.kind.is_terminal());
    for end in ends {
        assert!(matches!(end.kind, EventKind::Finished { .. }), "{end:?}");
    }
    assert_eq!(scheduler.stats().counters.finished, 2);
}
