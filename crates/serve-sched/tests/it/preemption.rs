//! Who gives a slot or blocks up, for whom, and for whom not.

use std::sync::{Arc, Mutex};

use proptest::prelude::*;
use serve_core::mock::{CostModel, Mock, MockConfig};
use serve_core::{
    Backend, Class, Limits, Request, RequestId, Span, StepOutcome, StepPlan, Time, TokenId,
};
use serve_sched::batch::{Batch, BatchView, Join};
use serve_sched::journal::{Decision, Entry, Lines, PreemptCause};
use serve_sched::kv::KvSettings;
use serve_sched::order::{AgingTiers, Fifo, ORDERS, Order, ResponseRatio, StrictTiers};
use serve_sched::sim::{Arrivals, Report, Row, Simulation};
use serve_sched::victim::{Candidate, Preemption, VICTIMS, Victim};
use serve_sched::{Policies, Scheduler};

fn limits(sequences_max: u32, blocks: u32) -> Limits {
    Limits {
        sequences_max,
        step_tokens_max: 512,
        context_max: 512,
        block_size: 16,
        blocks,
    }
}

fn mock(limits: Limits, step_ms: u64) -> Mock {
    let points = vec![(1, Span::from_millis(step_ms))];
    Mock::new(MockConfig {
        limits,
        cost: CostModel::new(points, Span::ZERO, Span::ZERO).unwrap(),
        ..MockConfig::default()
    })
}

fn request(id: u64, at_ms: u64, prompt: u32, output: u32, class: u8) -> Request {
    let tokens: Vec<_> = (0..prompt)
        .map(|position| TokenId::new(id as u32 * 10_000 + position))
        .collect();
    Request::new(RequestId::new(id), Time::from_millis(at_ms), tokens, output)
        .unwrap()
        .with_class(Class::new(class))
}

fn kv(reuse_prefixes: bool, watermark: u32) -> KvSettings {
    KvSettings {
        reuse_prefixes,
        watermark_blocks: Some(watermark),
        ..KvSettings::default()
    }
}

fn by_class(order: impl Order + 'static) -> Policies {
    Policies {
        admit: Vec::new(),
        order: Box::new(order),
        preemption: Preemption {
            by_class: true,
            ..Preemption::default()
        },
        kv: kv(false, 0),
        ..Policies::default()
    }
}

fn run(limits: Limits, policies: Policies, step_ms: u64, requests: Vec<Request>) -> Report {
    let scheduler = Scheduler::new(limits, policies).unwrap();
    Simulation::new(scheduler, mock(limits, step_ms)).run(&mut Arrivals::new(requests))
}

fn row(report: &Report, id: u64) -> &Row {
    let found = report.rows.iter().find(|row| row.request.get() == id);
    found.unwrap()
}

#[test]
fn nobody_is_preempted_for_a_request_that_would_not_fit_even_then() {
    // Class 0 holds 12 of 20 blocks for long and class 1 holds 4. The head of class 0 needs 10.
    let requests = vec![
        request(1, 0, 180, 10, 0),
        request(2, 0, 60, 3, 1),
        request(3, 15, 155, 5, 0),
    ];
    let report = run(limits(4, 21), by_class(StrictTiers), 10, requests);
    assert_eq!(report.stats.counters.preempted, 0);
}

#[test]
fn only_those_are_preempted_without_whom_it_would_not_fit() {
    // The newest of the lowest class holds 1 block, the one before it 10. The head needs 8 of 11.
    let requests = vec![
        request(1, 0, 150, 10, 1),
        request(2, 0, 4, 10, 1),
        request(3, 15, 125, 2, 0),
    ];
    let report = run(limits(4, 12), by_class(StrictTiers), 10, requests);
    assert_eq!(row(&report, 1).usage.preemptions, 1);
    assert_eq!(row(&report, 2).usage.preemptions, 0);
}

/// Prefers whom the mechanism must not let go.
struct HighestFirst;

impl Victim for HighestFirst {
    fn name(&self) -> &'static str {
        "highest-first"
    }

    fn rank(&self, candidate: &Candidate<'_>) -> [u64; 2] {
        let class = u64::from(candidate.request.class().rank());
        [255 - class, u64::MAX - candidate.sequence]
    }
}

#[test]
fn a_victim_policy_cannot_have_a_higher_class_or_an_equal_preempted() {
    // KV pressure: the one that needs a block is of class 1, the other of class 0.
    let policies = Policies {
        admit: Vec::new(),
        victim: Box::new(HighestFirst),
        kv: kv(false, 0),
        ..Policies::default()
    };
    let requests = vec![request(1, 0, 16, 90, 1), request(2, 0, 8, 90, 0)];
    let report = run(limits(4, 9), policies, 10, requests);
    assert_eq!(row(&report, 2).usage.preemptions, 0);
    // A head of class 0 waits; an equal and a lower one run.
    let policies = Policies {
        victim: Box::new(HighestFirst),
        ..by_class(StrictTiers)
    };
    let requests = vec![
        request(1, 0, 4, 50, 0),
        request(2, 0, 4, 50, 1),
        request(3, 15, 4, 5, 0),
    ];
    let report = run(limits(2, 100), policies, 10, requests);
    assert_eq!(row(&report, 1).usage.preemptions, 0);
    assert_eq!(row(&report, 2).usage.preemptions, 1);
}

#[test]
fn who_has_aged_is_displaced_by_no_class() {
    let orders: [fn() -> Box<dyn Order>; 2] = [
        || Box::new(AgingTiers::new(Span::from_secs(2))),
        || Box::new(ResponseRatio::new(Span::from_secs(2))),
    ];
    // The others come before it joins at 2.5 s, or after.
    for (order, from_ms) in orders
        .iter()
        .flat_map(|order| [(order, 2_400), (order, 2_600)])
    {
        let policies = Policies {
            order: order(),
            ..by_class(Fifo)
        };
        let mut requests = vec![request(1, 0, 4, 100, 0), request(2, 1, 4, 50, 1)];
        requests.extend((0..3).map(|n| request(10 + n, from_ms + 400 * n, 4, 30, 0)));
        let report = run(limits(1, 100), policies, 25, requests);
        let aged = row(&report, 2);
        assert_eq!(aged.usage.preemptions, 0);
        assert_eq!(aged.started, Some(Time::from_millis(2_500)));
        assert_eq!(aged.end, Time::from_millis(2_500 + 50 * 25));
    }
}

#[test]
fn who_has_aged_gives_no_block_to_who_has_not() {
    // Both grow until the ten blocks are taken; the aged one is of the lower class.
    let policies = Policies {
        order: Box::new(AgingTiers::new(Span::from_millis(100))),
        ..by_class(Fifo)
    };
    let requests = vec![
        request(0, 0, 4, 20, 0),
        request(1, 0, 4, 20, 0),
        request(2, 1, 16, 120, 1),
        request(3, 195, 16, 120, 0),
    ];
    let device = limits(2, 11);
    let report = run(device, policies, 10, requests.clone());
    assert!(report.stats.counters.preempted > 0, "or it shows nothing");
    assert_eq!(row(&report, 2).usage.preemptions, 0);
    // The control: without aging the lower class gives its blocks up.
    let report = run(device, by_class(StrictTiers), 10, requests);
    assert!(row(&report, 2).usage.preemptions > 0);
}

#[test]
fn nobody_joins_to_be_displaced_by_who_waits_already() {
    let mut requests = vec![request(0, 0, 4, 4, 0), request(1, 0, 4, 10, 1)];
    requests.extend((2..8).map(|id| request(id, 0, 4, 10, 0)));
    let report = run(limits(1, 100), by_class(Fifo), 10, requests);
    assert_eq!(report.stats.counters.preempted, 0);
    assert_eq!(row(&report, 1).started, Some(Time::from_millis(40)));
}

#[test]
fn who_comes_later_displaces_who_joined_before() {
    let requests = vec![request(1, 0, 4, 100, 1), request(2, 15, 4, 5, 0)];
    let report = run(limits(1, 100), by_class(Fifo), 10, requests);
    assert_eq!(row(&report, 1).usage.preemptions, 1);
    assert_eq!(row(&report, 2).started, Some(Time::from_millis(20)));
}

#[test]
fn a_request_that_would_run_alone_needs_no_watermark() {
    // The lower class holds 5 of 10 blocks, the head needs all of them.
    for watermark in [0, 1, 3] {
        let policies = Policies {
            kv: kv(false, watermark),
            ..by_class(StrictTiers)
        };
        let requests = vec![request(1, 0, 16, 100, 1), request(2, 100, 155, 5, 0)];
        let report = run(limits(4, 11), policies, 10, requests);
        let first = row(&report, 2).first_token_time().unwrap();
        assert_eq!(first, Span::from_millis(10), "watermark {watermark}");
    }
}

/// Two requests of class 1 and a prompt of class 0; those of class 1 share `shared` blocks with each
/// other, the one of class 0 begins with `begins` of them. Another of class 0 holds `held` and one more.
fn with_shared_prefix(shared: u32, begins: u32, prompt: u32, held: u32) -> Report {
    let tokens = |id: u32, same: u32, len: u32| -> Arc<[TokenId]> {
        let token = |position| {
            if position < same {
                position
            } else {
                id * 1_000 + position
            }
        };
        (0..len)
            .map(|position| TokenId::new(token(position)))
            .collect()
    };
    let make = |id: u64, at_ms: u64, tokens: Arc<[TokenId]>, output, class| {
        Request::new(RequestId::new(id), Time::from_millis(at_ms), tokens, output)
            .unwrap()
            .with_class(Class::new(class))
    };
    let requests = vec![
        make(4, 0, tokens(4, 0, held * 16), 10, 0),
        make(1, 0, tokens(1, shared * 16, 129), 15, 1),
        make(2, 11, tokens(2, shared * 16, 129), 15, 1),
        make(3, 30, tokens(3, begins * 16, prompt), 5, 0),
    ];
    let policies = Policies {
        kv: kv(true, 0),
        ..by_class(StrictTiers)
    };
    run(limits(4, 21), policies, 10, requests)
}

#[test]
fn blocks_that_only_victims_share_are_counted_once_all_of_them_go() {
    for shared in [0, 3, 8] {
        let report = with_shared_prefix(shared, 0, 270, 1);
        let first = row(&report, 3).first_token_time().unwrap();
        assert_eq!(first, Span::from_millis(10), "{shared} blocks shared");
        assert_eq!(report.stats.counters.preempted, 2);
    }
}

#[test]
fn blocks_that_the_head_reuses_are_not_counted_as_free() {
    // 20 blocks, of which 2 stay held. The victims hold 8 + 1 + 1; the head builds upon the 8 and
    // needs 11 more, where with both gone there are 10.
    let report = with_shared_prefix(8, 8, 300, 1);
    let first = row(&report, 3).first_token_time().unwrap();
    assert!(first > Span::from_millis(60), "{first}");
    // When the others have ended it goes on.
    let report = with_shared_prefix(8, 8, 284, 1);
    let first = row(&report, 3).first_token_time().unwrap();
    assert_eq!(first, Span::from_millis(10));
}

/// One request at most joins in each step.
struct OneAStep;

impl Batch for OneAStep {
    fn name(&self) -> &'static str {
        "one-a-step"
    }

    fn join(&mut self, _view: &BatchView) -> Join {
        Join::UpTo(1)
    }
}

#[test]
fn who_joins_in_the_place_of_another_is_counted_by_the_batch_policy() {
    let policies = Policies {
        batch: Box::new(OneAStep),
        ..by_class(StrictTiers)
    };
    let mut requests = vec![request(1, 0, 4, 90, 1), request(2, 0, 4, 90, 1)];
    requests.extend([request(3, 95, 4, 9, 0), request(4, 95, 4, 9, 0)]);
    let report = run(limits(2, 100), policies, 10, requests);
    let starts = [3, 4].map(|id| row(&report, id).started.unwrap());
    assert_eq!(starts, [100, 110].map(Time::from_millis));
    assert_eq!(report.stats.counters.preempted, 2);
}

#[test]
fn a_static_batch_that_runs_is_left_alone() {
    use serve_sched::batch::{Static, Window};
    let policies = Policies {
        batch: Box::new(Static::new(2, Window::Fixed(Span::ZERO))),
        ..by_class(StrictTiers)
    };
    let requests = vec![
        request(1, 0, 4, 20, 1),
        request(2, 0, 4, 20, 1),
        request(3, 15, 4, 5, 0),
    ];
    let report = run(limits(2, 100), policies, 10, requests);
    assert_eq!(report.stats.counters.preempted, 0);
}

#[derive(Clone, Debug)]
struct Scene {
    slots: u32,
    blocks: u32,
    order: usize,
    victim: usize,
    reuse: bool,
    times_max: u32,
    requests: Vec<(u64, u32, u32, u8)>,
}

fn scenes() -> impl Strategy<Value = Scene> {
    let one = (0_u64..120, 1_u32..90, 1_u32..40, 0_u8..3);
    (
        (1_u32..5, 10_u32..24),
        (0..ORDERS.len(), 0..VICTIMS.len()),
        (any::<bool>(), 0_u32..4),
        prop::collection::vec(one, 2..30),
    )
        .prop_map(
            |((slots, blocks), (order, victim), (reuse, times_max), requests)| Scene {
                slots,
                blocks,
                order,
                victim,
                reuse,
                times_max,
                requests,
            },
        )
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    /// Whatever the policies: in one plan nobody joins and is preempted, nobody is displaced by an
    /// equal or a lower class, or by who was waiting when it joined.
    #[test]
    fn nobody_joins_in_vain(scene in scenes()) {
        let device = limits(scene.slots, scene.blocks);
        let policies = Policies {
            order: ORDERS[scene.order].by_default(),
            victim: VICTIMS[scene.victim].by_default(),
            preemption: Preemption { by_class: true, times_max: scene.times_max },
            kv: kv(scene.reuse, 1),
            ..by_class(Fifo)
        };
        let mut scheduler = Scheduler::new(device, policies).unwrap();
        let entries = Arc::new(Mutex::new(Vec::<Entry>::new()));
        let sink = Arc::clone(&entries);
        scheduler.set_journal(Some(Box::new(move |entry: &Entry| {
            sink.lock().unwrap().push(entry.clone());
        })));
        let mut at_ms = 0;
        let mut requests = Vec::new();
        for (id, &(gap, prompt, output, class)) in (0..).zip(&scene.requests) {
            at_ms += gap;
            requests.push(request(id, at_ms, prompt, output, class));
        }
        let mut waiting = requests.iter().peekable();
        let mut mock = mock(device, 10);
        let (mut plan, mut outcome) = (StepPlan::new(), StepOutcome::new());
        let (mut now, mut sequence) = (Time::ZERO, 0_u64);
        let mut arrived_at = std::collections::BTreeMap::new();
        let mut joined_at = std::collections::BTreeMap::new();
        loop {
            while let Some(request) = waiting.next_if(|request| request.arrival() <= now) {
                scheduler.submit(now, request.clone()).unwrap();
                arrived_at.insert(request.id(), sequence);
                sequence += 1;
            }
            entries.lock().unwrap().clear();
            let planned = scheduler.plan_into(now, &mut plan);
            let mut joined = Vec::new();
            for entry in entries.lock().unwrap().iter() {
                let id = entry.request.unwrap();
                match &entry.decision {
                    Decision::Joined { .. } => {
                        joined.push(id);
                        joined_at.insert(id, sequence);
                    }
                    Decision::Preempted { cause, .. } => {
                        prop_assert!(!joined.contains(&id), "{id} joins and goes: {entry}");
                        if let PreemptCause::HigherClass { by, class } = cause {
                            let victim = &requests[id.get() as usize];
                            prop_assert!(victim.class() > *class);
                            prop_assert!(joined_at[&id] <= arrived_at[by], "{entry}");
                        }
                    }
                    _ => {}
                }
            }
            if planned {
                mock.execute(&plan, &mut outcome).unwrap();
                now += outcome.elapsed.max(Span::from_nanos(1));
                scheduler.complete(now, &outcome);
                continue;
            }
            match (scheduler.next_timeout(), waiting.peek()) {
                (None, None) => break,
                (timeout, next) => {
                    let next = next.map(|request| request.arrival());
                    now = now.max([timeout, next].into_iter().flatten().min().unwrap());
                }
            }
        }
        prop_assert!(scheduler.is_idle());
    }
}

#[test]
fn a_journal_says_for_whom() {
    let device = limits(1, 100);
    let scheduler = Scheduler::new(device, by_class(StrictTiers)).unwrap();
    let mut simulation = Simulation::new(scheduler, mock(device, 10));
    let lines = Lines::new();
    simulation
        .scheduler_mut()
        .set_journal(Some(Box::new(lines.clone())));
    let requests = vec![request(1, 0, 4, 100, 1), request(2, 15, 4, 5, 0)];
    simulation.run(&mut Arrivals::new(requests));
    let text = lines.text();
    assert!(text.contains("r1 preempted: r2 of c0 waits"), "{text}");
}
