//! Bugs that schedulers in the field have had, each as a test that would have caught its kind.

use serve_core::mock::{CostModel, Mock, MockConfig};
use serve_core::{
    Backend, CancelReason, Class, EventKind, Limits, Refusal, Request, RequestId, Span,
    StepOutcome, StepPlan, Time,
};
use serve_sched::admit::QueueCap;
use serve_sched::kv::KvSettings;
use serve_sched::order::{AgingTiers, Order, StrictTiers};
use serve_sched::sim::{Input, Script, Simulation};
use serve_sched::victim::{LeastProgressLost, NewestOfLowestClass, Victim};
use serve_sched::{Engine, Policies, Progress, Scheduler};

use crate::support::{LIMITS, request};

fn mock(limits: Limits) -> Mock {
    Mock::new(MockConfig {
        limits,
        cost: CostModel::new(vec![(1, Span::from_millis(10))], Span::ZERO, Span::ZERO).unwrap(),
        ..MockConfig::default()
    })
}

fn engine(limits: Limits, policies: Policies) -> Engine<Mock> {
    Engine::new(Scheduler::new(limits, policies).unwrap(), mock(limits))
}

/// Runs until nothing is left to do, for so many steps at most.
fn run_out(engine: &mut Engine<Mock>, mut now: Time, steps_max: u32) -> Time {
    for _ in 0..steps_max {
        match engine.step(now) {
            Progress::Ran { until, .. } => now = until,
            Progress::Idle { wake: Some(wake) } => now = wake,
            Progress::Idle { wake: None } => return now,
            Progress::Failed { error, .. } => panic!("{error}"),
        }
    }
    panic!(
        "still busy after {steps_max} steps: {:?}",
        engine.scheduler().stats()
    );
}

fn without_reuse() -> KvSettings {
    KvSettings {
        reuse_prefixes: false,
        watermark_blocks: Some(0),
        ..KvSettings::default()
    }
}

#[test]
fn two_equals_do_not_preempt_each_other_for_ever() {
    let victims: [fn() -> Box<dyn Victim>; 2] = [
        || Box::new(NewestOfLowestClass),
        || Box::new(LeastProgressLost),
    ];
    for victim in victims {
        // Each fits alone and needs all eight blocks in the end.
        let limits = Limits {
            blocks: 9,
            ..LIMITS
        };
        let policies = Policies {
            victim: victim(),
            kv: without_reuse(),
            ..Policies::default()
        };
        let mut engine = engine(limits, policies);
        for id in 0..2 {
            engine
                .scheduler_mut()
                .submit(Time::ZERO, request(id, 4, 29))
                .unwrap();
        }
        run_out(&mut engine, Time::ZERO, 300);
        let counters = engine.scheduler().stats().counters;
        assert_eq!(counters.finished, 2);
        assert!((1..=6).contains(&counters.preempted), "{counters:?}");
    }
}

#[test]
fn a_victims_removal_does_not_skip_the_next_request() {
    /// The first to have arrived is preempted, wherever it is in the batch.
    struct Oldest;
    impl Victim for Oldest {
        fn name(&self) -> &'static str {
            "oldest"
        }
        fn rank(&self, candidate: &serve_sched::victim::Candidate<'_>) -> [u64; 2] {
            [u64::MAX - candidate.sequence, 0]
        }
    }
    let limits = Limits {
        blocks: 4,
        ..LIMITS
    };
    let policies = Policies {
        victim: Box::new(Oldest),
        kv: without_reuse(),
        ..Policies::default()
    };
    let mut scheduler = Scheduler::new(limits, policies).unwrap();
    for id in 0..3 {
        scheduler.submit(Time::ZERO, request(id, 4, 3)).unwrap();
    }
    let mut outcome = StepOutcome::new();
    let plan = scheduler.plan(Time::ZERO).unwrap();
    assert_eq!(plan.segments().len(), 3);
    mock(limits).execute(&plan, &mut outcome).unwrap();
    scheduler.complete(Time::ZERO, &outcome);
    // All three need a second block and none is left: r0 is preempted for r1, and then r1 for r2.
    let plan = scheduler.plan(Time::ZERO).unwrap();
    let planned: Vec<_> = plan.segments().iter().map(|s| s.request.get()).collect();
    assert_eq!(scheduler.stats().counters.preempted, 2);
    assert_eq!(planned, [2]);
}

#[test]
fn a_preempted_request_is_not_killed_by_the_queue_cap() {
    let limits = Limits {
        blocks: 9,
        sequences_max: 2,
        ..LIMITS
    };
    let policies = Policies {
        admit: vec![Box::new(QueueCap::new(1))],
        kv: without_reuse(),
        ..Policies::default()
    };
    let mut engine = engine(limits, policies);
    let scheduler = engine.scheduler_mut();
    scheduler.submit(Time::ZERO, request(0, 4, 29)).unwrap();
    scheduler.submit(Time::ZERO, request(1, 4, 29)).unwrap();
    engine.step(Time::ZERO);
    // The queue is full from now on, so that a request that is preempted makes it longer than the cap.
    engine
        .scheduler_mut()
        .submit(Time::ZERO, request(2, 4, 1))
        .unwrap();
    run_out(&mut engine, Time::from_millis(10), 300);
    let counters = engine.scheduler().stats().counters;
    assert!(counters.preempted > 0);
    assert_eq!((counters.finished, counters.refused), (3, 0));
}

#[test]
fn an_abort_while_waiting_after_a_preemption_leaves_nothing_held() {
    let limits = Limits {
        blocks: 9,
        ..LIMITS
    };
    let mut engine = engine(limits, Policies::default());
    for id in 0..2 {
        engine
            .scheduler_mut()
            .submit(Time::ZERO, request(id, 4, 29))
            .unwrap();
    }
    let mut now = Time::ZERO;
    while engine.scheduler().stats().counters.preempted == 0 {
        let Progress::Ran { until, .. } = engine.step(now) else {
            panic!("nobody was preempted");
        };
        now = until;
    }
    let (waiting, running) = (RequestId::new(1), RequestId::new(0));
    assert_eq!(engine.scheduler().stats().waiting, 1);
    for id in [waiting, running] {
        assert!(engine.scheduler_mut().cancel(now, id, CancelReason::Client));
    }
    assert_eq!(engine.scheduler().stats().blocks.held, 0);
    engine.step(now);
    assert_eq!(engine.last_plan().releases(), [waiting, running]);
}

/// The longest wait of the low class while a higher one asks for all that there is.
fn longest_low_class_wait(order: Box<dyn Order>) -> Span {
    let limits = Limits {
        sequences_max: 1,
        ..LIMITS
    };
    let policies = Policies {
        order,
        ..Policies::default()
    };
    let scheduler = Scheduler::new(limits, policies).unwrap();
    // Each takes 10 ms and one comes every 10 ms.
    let high = (0..20_000).map(|n| (n, Time::from_millis(n * 10), Class::HIGHEST));
    let low = (0..20).map(|n| (100_000 + n, Time::from_secs(n), Class::new(1)));
    let mut all: Vec<_> = high.chain(low).collect();
    all.sort_by_key(|&(_, at, class)| (at, class));
    let inputs = all.into_iter().map(|(id, at, class)| {
        let prompt = request(id, 4, 1).prompt().clone();
        let request = Request::new(RequestId::new(id), at, prompt, 1).unwrap();
        (at, Input::Submit(request.with_class(class)))
    });
    let mut longest = Span::ZERO;
    Simulation::new(scheduler, mock(limits)).run_with(&mut Script::new(inputs), |row| {
        if row.class != Class::HIGHEST {
            longest = longest.max(row.waited().unwrap());
        }
    });
    longest
}

#[test]
fn a_steady_higher_class_does_not_starve_a_lower_one() {
    let strict = longest_low_class_wait(Box::new(StrictTiers));
    let aging = longest_low_class_wait(Box::new(AgingTiers::default()));
    assert!(
        strict > Span::from_secs(150),
        "the load would starve it: {strict}"
    );
    assert!(aging < Span::from_secs(60), "{aging}");
}

#[test]
fn a_burst_does_not_pass_the_cap_together() {
    let policies = Policies {
        admit: vec![Box::new(QueueCap::new(10))],
        ..Policies::default()
    };
    let mut scheduler = Scheduler::new(LIMITS, policies).unwrap();
    let refused = (0..100).filter(|&id| {
        let taken = scheduler.submit(Time::ZERO, request(id, 4, 1));
        matches!(taken, Err(Refusal::Later { .. }))
    });
    let refused = refused.count();
    // Four can start at once and ten may wait.
    assert_eq!(refused, 100 - 14);
    assert_eq!(scheduler.stats().waiting, 14);
}

#[test]
fn gauges_are_right_after_a_mass_cancel() {
    let policies = Policies {
        admit: vec![],
        ..Policies::default()
    };
    let mut scheduler = Scheduler::new(LIMITS, policies).unwrap();
    for id in 0..1_000 {
        let request = request(id, 4, 9).with_class(Class::new((id % 3) as u8));
        scheduler.submit(Time::ZERO, request).unwrap();
    }
    let (mut plan, mut outcome) = (StepPlan::new(), StepOutcome::new());
    assert!(scheduler.plan_into(Time::ZERO, &mut plan));
    for id in (0..1_000).rev() {
        assert!(scheduler.cancel(Time::ZERO, RequestId::new(id), CancelReason::Client));
    }
    let stats = scheduler.stats();
    assert_eq!((stats.waiting, stats.running), (0, 0));
    assert_eq!(stats.waiting_prompt_tokens, 0);
    assert!(
        stats
            .classes
            .iter()
            .all(|class| class.waiting + class.running == 0)
    );
    assert_eq!(
        stats.blocks.held, 4,
        "the step in flight still writes to them"
    );
    mock(LIMITS).execute(&plan, &mut outcome).unwrap();
    scheduler.complete(Time::ZERO, &outcome);
    assert_eq!(scheduler.stats().blocks.held, 0);
    let ends = std::iter::from_fn(|| scheduler.poll_event());
    let cancelled = ends.filter(|event| matches!(event.kind, EventKind::Cancelled { .. }));
    assert_eq!(cancelled.count(), 1_000);
}
