//! The engine says when its step ended, when to wake it, and what failed.

use serve_core::mock::{CostModel, Faults, Mock, MockConfig};
use serve_core::{Backend, BackendError, EventKind, Span, StepId, Time};
use serve_sched::batch::{Static, Window};
use serve_sched::{Engine, Policies, Progress, Scheduler};

use crate::support::{LIMITS, request};

fn engine(policies: Policies, faults: Faults) -> Engine<Mock> {
    let cost = CostModel::new(
        vec![(1, Span::from_millis(10))],
        Span::from_millis(1),
        Span::ZERO,
    );
    let mock = Mock::new(MockConfig {
        limits: LIMITS,
        cost: cost.unwrap(),
        faults,
        ..MockConfig::default()
    });
    Engine::new(Scheduler::new(mock.limits(), policies).unwrap(), mock)
}

#[test]
fn what_a_step_brings_about_is_stamped_with_its_end() {
    let mut engine = engine(Policies::default(), Faults::NONE);
    let now = Time::from_secs(5);
    engine
        .scheduler_mut()
        .submit(now, request(1, 6, 2))
        .unwrap();
    let until = now + Span::from_millis(16);
    let ran = Progress::Ran {
        step: StepId::new(0),
        until,
        elapsed: Span::from_millis(16),
        segments: 1,
        tokens: 6,
    };
    assert_eq!(engine.step(now), ran);
    let events: Vec<_> = std::iter::from_fn(|| engine.scheduler_mut().poll_event()).collect();
    assert_eq!((&events[0].kind, events[0].at), (&EventKind::Started, now));
    assert!(matches!(events[1].kind, EventKind::Token { index: 0, .. }));
    assert_eq!(events[1].at, until);
}

#[test]
fn an_idle_engine_says_when_to_wake_it() {
    let policies = Policies {
        batch: Box::new(Static::new(4, Window::Fixed(Span::from_millis(10)))),
        ..Policies::default()
    };
    let mut engine = engine(policies, Faults::NONE);
    let now = Time::from_millis(3);
    assert_eq!(engine.step(now), Progress::Idle { wake: None });
    engine
        .scheduler_mut()
        .submit(now, request(1, 4, 1))
        .unwrap();
    let wake = Some(Time::from_millis(13));
    assert_eq!(engine.step(now), Progress::Idle { wake });
    assert!(matches!(
        engine.step(Time::from_millis(13)),
        Progress::Ran { .. }
    ));
}

#[test]
fn a_failed_step_is_reported_and_the_engine_goes_on() {
    let always = Faults {
        errors_per_million: 1_000_000,
        ..Faults::NONE
    };
    let mut engine = engine(Policies::default(), always);
    for id in 0..2 {
        engine
            .scheduler_mut()
            .submit(Time::ZERO, request(id, 4, 1))
            .unwrap();
        let Progress::Failed { error, .. } = engine.step(Time::ZERO) else {
            panic!("the device always fails");
        };
        assert!(matches!(error, BackendError::Step { .. }), "{error}");
    }
    let counters = engine.scheduler().stats().counters;
    // The device was asked to forget the first together with the second.
    assert_eq!((counters.failed, counters.steps_failed), (2, 2));
}

#[test]
fn a_busy_engine_drains_and_then_is_drained() {
    let mut engine = engine(Policies::default(), Faults::NONE);
    engine
        .scheduler_mut()
        .submit(Time::ZERO, request(1, 4, 3))
        .unwrap();
    engine.scheduler_mut().drain(Time::ZERO);
    assert!(
        engine
            .scheduler_mut()
            .submit(Time::ZERO, request(2, 4, 3))
            .is_err()
    );
    let mut now = Time::ZERO;
    while !engine.scheduler().is_drained() {
        let Progress::Ran { until, .. } = engine.step(now) else {
            panic!("it has work to do");
        };
        now = until;
    }
    assert_eq!(engine.scheduler().stats().counters.finished, 1);
}
