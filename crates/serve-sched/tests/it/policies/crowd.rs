//! A crowd that ages or expires at once is bounded work in each plan, and nothing wrong starts
//! meanwhile. Work is counted in decisions, not in time.

use std::sync::{Arc, Mutex};

use serve_core::{Backend as _, Class};
use serve_core::{CancelReason, EventKind, Request, RequestId, Span, StepOutcome, Time, TokenId};
use serve_sched::Gate;
use serve_sched::journal::{Decision, Entry};
use serve_sched::order::{AgingTiers, Fifo, Order, OrderSettings, ResponseRatio};
use serve_sched::{Policies, Scheduler};

use super::device;

/// What one plan may move or answer.
const MOST: usize = 1_024;
const CROWD: u64 = 5_000;

fn request(id: u64, at: Time, prompt: &Arc<[TokenId]>) -> Request {
    Request::new(RequestId::new(id), at, Arc::clone(prompt), 50).unwrap()
}

/// A scheduler that counts what it decides.
fn counted(order: Box<dyn Order>) -> (Scheduler, Arc<Mutex<Vec<Entry>>>) {
    let policies = Policies {
        admit: Vec::new(),
        order,
        ..Policies::default()
    };
    let mut scheduler = Scheduler::new(device(2, 10).limits(), policies).unwrap();
    let entries = Arc::new(Mutex::new(Vec::new()));
    let sink = Arc::clone(&entries);
    scheduler.set_journal(Some(Box::new(move |entry: &Entry| {
        sink.lock().unwrap().push(entry.clone());
    })));
    (scheduler, entries)
}

#[test]
fn a_crowd_that_ages_at_once_is_moved_in_parts() {
    let age_after = Span::from_secs(2);
    let settings = OrderSettings {
        age_after,
        ..OrderSettings::default()
    };
    let orders: [Box<dyn Order>; 3] = [
        Box::new(AgingTiers::new(age_after)),
        Box::new(ResponseRatio::new(age_after)),
        settings.order("aging-tiers/fair-tenants").unwrap(),
    ];
    let prompt: Arc<[TokenId]> = vec![TokenId::new(1); 4].into();
    for order in orders {
        let name = order.name().to_owned();
        let (mut scheduler, entries) = counted(order);
        let mut device = device(2, 10);
        for id in 0..CROWD {
            let class = Class::new(1 + (id % 2) as u8);
            let request = request(id, Time::ZERO, &prompt).with_class(class);
            scheduler.submit(Time::ZERO, request).unwrap();
        }
        let mut now = Time::ZERO + age_after;
        entries.lock().unwrap().clear();
        let (mut plans, mut promoted, mut outcome) = (0, 0, StepOutcome::new());
        while promoted < CROWD as usize - 2 {
            assert!(
                scheduler.next_timeout().is_some_and(|at| at <= now),
                "{name}: there is more to do"
            );
            let plan = scheduler.plan(now).unwrap();
            let decided = std::mem::take(&mut *entries.lock().unwrap());
            let moved = decided
                .iter()
                .filter(|entry| matches!(entry.decision, Decision::Promoted { .. }))
                .count();
            assert!(moved <= MOST, "{name}: {moved}");
            promoted += moved;
            plans += 1;
            assert!(
                plans <= 1 + CROWD as usize / MOST,
                "{name}: and all of them soon"
            );
            device.execute(&plan, &mut outcome).unwrap();
            now += outcome.elapsed;
            scheduler.complete(now, &outcome);
        }
        assert!(scheduler.next_timeout().is_none_or(|at| at > now), "{name}");
    }
}

#[test]
fn a_crowd_that_expires_at_once_is_answered_in_parts_and_never_started() {
    let prompt: Arc<[TokenId]> = vec![TokenId::new(1); 4].into();
    let (mut scheduler, _) = counted(Box::new(Fifo));
    let mut device = device(2, 10);
    let deadline = Time::from_secs(1);
    for id in 0..CROWD {
        let request = request(id, Time::ZERO, &prompt).with_deadline(Some(deadline));
        scheduler.submit(Time::ZERO, request).unwrap();
    }
    // Behind them one that has time.
    scheduler
        .submit(Time::ZERO, request(CROWD, Time::ZERO, &prompt))
        .unwrap();
    let (mut now, mut plans, mut expired, mut started) = (deadline, 0, 0, 0);
    let mut outcome = StepOutcome::new();
    while started == 0 {
        let running = scheduler.plan(now);
        let mut answered = 0;
        while let Some(event) = scheduler.poll_event() {
            match event.kind {
                EventKind::Cancelled { reason, .. } => {
                    assert_eq!(reason, CancelReason::Deadline);
                    answered += 1;
                }
                EventKind::Started => {
                    assert_eq!(event.request.get(), CROWD, "its time is over");
                    started += 1;
                }
                other => panic!("{other:?}"),
            }
        }
        assert!(answered <= MOST, "{answered}");
        expired += answered;
        plans += 1;
        assert!(plans <= 2 + CROWD as usize / MOST);
        let counters = scheduler.stats().counters;
        let waiting = u64::from(scheduler.stats().waiting) + u64::from(scheduler.stats().running);
        assert_eq!(counters.arrived, counters.cancelled + waiting);
        if let Some(plan) = running {
            device.execute(&plan, &mut outcome).unwrap();
            now += outcome.elapsed;
            scheduler.complete(now, &outcome);
        }
    }
    assert_eq!(expired, CROWD as usize);
}

/// A gate alone does the same in one call until there is nothing.
#[test]
fn a_gate_starts_nobody_whose_time_is_over() {
    let prompt: Arc<[TokenId]> = vec![TokenId::new(1); 4].into();
    let mut gate = Gate::new(Vec::new(), Box::new(Fifo), 1);
    for id in 0..3 {
        let start_by = (id < 2).then_some(Time::from_millis(5));
        let request = request(id, Time::ZERO, &prompt).with_start_by(start_by);
        gate.submit(Time::ZERO, Arc::new(request)).unwrap();
    }
    let now = Time::from_millis(5);
    assert!(gate.take(now).is_none() && gate.head(now).is_none());
    let mut answered = Vec::new();
    while let Some((request, reason)) = gate.next_due(now) {
        assert_eq!(reason, CancelReason::QueueTimeout);
        answered.push(request.id().get());
    }
    assert_eq!(answered, [0, 1]);
    assert_eq!(
        gate.take(now).map(|taken| taken.request.id().get()),
        Some(2)
    );
}

/// Cancelled while the crowd is still being answered, everybody is answered, once.
#[test]
fn the_rest_of_a_crowd_can_be_cancelled() {
    let prompt: Arc<[TokenId]> = vec![TokenId::new(1); 4].into();
    let (mut scheduler, _) = counted(Box::new(Fifo));
    for id in 0..CROWD {
        let request = request(id, Time::ZERO, &prompt).with_deadline(Some(Time::from_secs(1)));
        scheduler.submit(Time::ZERO, request).unwrap();
    }
    let now = Time::from_secs(1);
    assert!(scheduler.plan(now).is_none());
    scheduler.cancel_all(now, CancelReason::Drain);
    assert!(scheduler.is_idle());
    assert_eq!(scheduler.stats().counters.cancelled, CROWD);
}
