//! The engine on its thread.

use std::sync::Arc;
use std::thread;

use serve_core::{Backend, EventKind, Span, Time};
use serve_sched::driver::{Clock, EngineThread, RealClock, ThreadClock};
use serve_sched::{Policies, Scheduler};

use crate::hand::HandClock;
use crate::{assert_all_ended, mock, request};

fn scheduler() -> Scheduler {
    Scheduler::new(mock().limits(), Policies::default()).unwrap()
}

#[test]
fn many_threads_ask_and_some_leave() {
    let engine = EngineThread::start(scheduler(), mock()).unwrap();
    thread::scope(|scope| {
        for asker in 0..4 {
            let engine = &engine;
            scope.spawn(move || {
                for n in 0..8 {
                    let id = asker * 8 + n;
                    let mut ticket = engine.submit(request(id, engine.now(), 2, 3)).unwrap();
                    match n % 2 {
                        0 => assert_eq!(ticket.map(Result::unwrap).count(), 5),
                        _ => drop(ticket.next()),
                    }
                }
            });
        }
    });
    engine.drain(Span::from_secs(3_600));
    let stats = engine.scheduler().stats();
    assert_eq!((stats.waiting, stats.running), (0, 0));
    // Some who leave may have been answered before.
    let counters = stats.counters;
    assert!(counters.finished >= 16, "{counters:?}");
    assert_eq!(counters.finished + counters.cancelled, 32, "{counters:?}");
}

#[test]
fn a_thread_with_nothing_to_do_is_parked() {
    let clock = Arc::new(HandClock::that_jumps());
    let engine = EngineThread::start_with(scheduler(), mock(), Arc::clone(&clock), ()).unwrap();
    let before = clock.until_parked();
    let ticket = engine.submit(request(1, Time::ZERO, 4, 1)).unwrap();
    assert_eq!(ticket.map(Result::unwrap).count(), 3);
    // The backend is told to forget it.
    let after = clock.until_parked();
    assert!(
        after.waits - before.waits <= 1 + after.wakes - before.wakes,
        "{before:?} {after:?}"
    );
    assert_all_ended(&engine.scheduler().stats());
}

#[test]
fn a_drain_waits_for_the_clock_of_the_engine() {
    let clock = Arc::new(HandClock::default());
    let engine = EngineThread::start_with(scheduler(), mock(), Arc::clone(&clock), ()).unwrap();
    let mut ticket = engine.submit(request(1, Time::ZERO, 4, 1)).unwrap();
    assert!(matches!(
        ticket.next().unwrap().unwrap().kind,
        EventKind::Started
    ));
    thread::scope(|scope| {
        let drain = scope.spawn(|| engine.drain(Span::from_secs(1)));
        // It can end with the step, and not before.
        assert!(!drain.is_finished());
        clock.advance(Span::from_secs(2));
    });
    let kinds = ticket.map(|word| word.unwrap().kind).collect::<Vec<_>>();
    assert!(
        matches!(
            kinds[..],
            [EventKind::Token { .. }, EventKind::Finished { .. }]
        ),
        "{kinds:?}"
    );
    assert_all_ended(&engine.scheduler().stats());
}

#[test]
fn requests_in_an_engine_that_is_dropped_are_told() {
    let clock = Arc::new(HandClock::default());
    let engine = EngineThread::start_with(scheduler(), mock(), Arc::clone(&clock), ()).unwrap();
    let ticket = engine.submit(request(1, Time::ZERO, 4, 9)).unwrap();
    drop(engine);
    clock.advance(Span::from_secs(1));
    let last = ticket.last().unwrap();
    assert_eq!(&*last.unwrap_err().cause, "it was closed");
}

#[test]
fn a_wait_ends_with_a_wake_that_came_before_it_or_with_its_time() {
    let clock = RealClock::start();
    clock.wake();
    clock.wake();
    clock.wait_until(None);
    clock.wait_until(Some(clock.now()));
    clock.sleep_until(Time::ZERO);
    let at = clock.now() + Span::from_millis(1);
    clock.sleep_until(at);
    assert!(clock.now() >= at);
    thread::scope(|scope| {
        let waits = scope.spawn(|| clock.wait_until(None));
        clock.wake();
        waits.join().unwrap();
    });
}
