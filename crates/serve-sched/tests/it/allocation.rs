//! A steady decode loop allocates nothing.

use serve_core::mock::{CostModel, Mock, MockConfig};
use serve_core::{Backend, Limits, StepOutcome, StepPlan, Time};
use serve_sched::budget::{BUDGETS, Budget};
use serve_sched::{Named, Policies, Scheduler};

use crate::support::request;

#[test]
fn planning_and_completing_allocate_nothing_once_buffers_have_their_size() {
    for budget in BUDGETS {
        check(budget);
    }
}

fn check(budget: &Named<dyn Budget>) {
    let running = 32;
    let limits = Limits {
        sequences_max: running,
        step_tokens_max: 2_048,
        context_max: 512,
        block_size: 16,
        blocks: 1_025,
    };
    let mut mock = Mock::new(MockConfig {
        limits,
        cost: CostModel::free(),
        ..MockConfig::default()
    });
    let policies = Policies {
        budget: budget.by_default(),
        ..Policies::default()
    };
    let mut scheduler = Scheduler::new(limits, policies).unwrap();
    let (mut plan, mut outcome) = (StepPlan::new(), StepOutcome::new());
    let mut step = |scheduler: &mut Scheduler| {
        let counted = allocation_counter::measure(|| {
            assert!(scheduler.plan_into(Time::ZERO, &mut plan));
        });
        mock.execute(&plan, &mut outcome).unwrap();
        let completing = allocation_counter::measure(|| {
            scheduler.complete(Time::ZERO, &outcome);
            while scheduler.poll_event().is_some() {}
        });
        counted.count_total + completing.count_total
    };
    // The first round grows every buffer to its size; the second is the steady state.
    for round in 0..2 {
        let ids = round * 1_000..round * 1_000 + u64::from(running) * 3;
        for id in ids {
            scheduler.submit(Time::ZERO, request(id, 40, 300)).unwrap();
        }
        let allocated: u64 = (0..299).map(|_| step(&mut scheduler)).skip(1).sum();
        if round == 1 {
            assert_eq!(allocated, 0, "{}", budget.name);
        }
        while !scheduler.is_idle() {
            step(&mut scheduler);
        }
    }
}
