//! What the batch policies promise.

use proptest::prelude::*;
use serve_core::mock::{CostModel, Mock, MockConfig};
use serve_core::{Backend, Limits, Request, RequestId, Span, StepOutcome, StepPlan, Time, TokenId};
use serve_sched::batch::{Continuous, Static, Window};
use serve_sched::sim::{Arrivals, Simulation};
use serve_sched::{Policies, Scheduler};

const LIMITS: Limits = Limits {
    sequences_max: 8,
    step_tokens_max: 4_096,
    context_max: 4_096,
    block_size: 16,
    blocks: 2_049,
};

fn mock() -> Mock {
    let cost = CostModel::new(
        vec![(1, Span::from_millis(10))],
        Span::from_micros(100),
        Span::ZERO,
    );
    Mock::new(MockConfig {
        limits: LIMITS,
        cost: cost.unwrap(),
        ..MockConfig::default()
    })
}

fn request(id: u64, at: Time, prompt: u32, output: u32) -> Request {
    let tokens: Vec<_> = (0..prompt)
        .map(|n| TokenId::new(id as u32 * 10_000 + n))
        .collect();
    Request::new(RequestId::new(id), at, tokens, output).unwrap()
}

proptest! {
    #[test]
    fn nobody_who_decodes_misses_a_step_and_no_step_exceeds_the_budget(
        budget in 9_u32..300,
        prompts in proptest::collection::vec((1_u32..3_000, 1_u32..40), 1..20),
    ) {
        let policies = Policies {
            batch: Box::new(Continuous { step_tokens_max: Some(budget), sequences_max: None }),
            ..Policies::default()
        };
        let mut scheduler = Scheduler::new(LIMITS, policies).unwrap();
        let mut mock = mock();
        let (mut plan, mut outcome) = (StepPlan::new(), StepOutcome::new());
        let mut prompts = (0..).zip(prompts);
        let mut decoding: Vec<RequestId> = Vec::new();
        loop {
            // One more arrives in every step.
            if let Some((id, (prompt, output))) = prompts.next() {
                scheduler.submit(Time::ZERO, request(id, Time::ZERO, prompt, output)).unwrap();
            }
            if !scheduler.plan_into(Time::ZERO, &mut plan) {
                break;
            }
            prop_assert!(plan.tokens() <= budget);
            let planned: Vec<_> = plan.segments().iter().map(|s| s.request).collect();
            prop_assert!(decoding.iter().all(|id| planned.contains(id)));
            mock.execute(&plan, &mut outcome).unwrap();
            scheduler.complete(Time::ZERO, &outcome);
            while let Some(event) = scheduler.poll_event() {
                decoding.retain(|&id| id != event.request || !event.kind.is_terminal());
                if matches!(event.kind, serve_core::EventKind::Token { index: 0, .. }) {
                    decoding.push(event.request);
                }
            }
        }
        prop_assert!(scheduler.is_idle());
    }

    #[test]
    fn nobody_waits_on_an_idle_engine_longer_than_the_window(
        window_ms in 0_u64..50,
        size in 1_u32..9,
        gaps_us in proptest::collection::vec(0_u64..60_000, 1..60),
    ) {
        let window = Span::from_millis(window_ms);
        let policies = Policies {
            batch: Box::new(Static::new(size, Window::Fixed(window))),
            ..Policies::default()
        };
        let mut at = Time::ZERO;
        let requests: Vec<_> = (0..).zip(gaps_us).map(|(id, gap)| {
            at += Span::from_micros(gap);
            request(id, at, 20, 4)
        }).collect();
        let scheduler = Scheduler::new(LIMITS, policies).unwrap();
        let report = Simulation::new(scheduler, mock()).run(&mut Arrivals::new(requests));
        let mut rows = report.rows;
        rows.sort_by_key(|row| row.request);
        // When the batch before, if any, was over.
        for row in &rows {
            let started = row.started.unwrap();
            let before = rows.iter().filter(|other| other.started < row.started);
            let free = before.map(|other| other.end).max().unwrap_or(Time::ZERO);
            let latest = free.max(row.arrival + window);
            prop_assert!(started <= latest, "{row:?} could have started at {latest}");
        }
        for row in &rows {
            let with = rows.iter().filter(|other| other.started == row.started);
            prop_assert!(with.count() <= size as usize);
        }
    }
}

#[test]
fn a_window_from_the_observed_spread_fills_batches_that_a_short_fixed_one_cuts() {
    let batches = |window| {
        let policies = Policies {
            batch: Box::new(Static::new(8, window)),
            ..Policies::default()
        };
        let scheduler = Scheduler::new(LIMITS, policies).unwrap();
        // 16 clients' requests, 12 ms apart: a fixed window of 10 ms always sees one alone.
        let requests = (0..400).map(|id| request(id, Time::from_millis(id * 12), 20, 1));
        let report = Simulation::new(scheduler, mock()).run(&mut Arrivals::new(requests));
        report.stats.counters.steps
    };
    let fixed = batches(Window::Fixed(Span::from_millis(10)));
    let observed = batches(Window::Observed {
        min: Span::from_millis(10),
        max: Span::from_millis(200),
    });
    assert!(fixed > 250, "{fixed}");
    assert!(observed < 70, "{observed}");
}
