//! Virtual time: inputs take effect at their own times, and rows say what happened when.

use std::cell::RefCell;
use std::rc::Rc;

use serve_core::mock::{CostModel, Faults, Mock, MockConfig};
use serve_core::{Backend, CancelReason, EventKind, FinishReason, RequestId, Span, Time};
use serve_sched::admit::QueueCap;
use serve_sched::sim::{Arrivals, ClosedLoop, Input, Report, Script, Simulation, Terminal};
use serve_sched::{Policies, Scheduler};

use crate::support::{LIMITS, request};

fn mock(faults: Faults) -> Mock {
    let cost = CostModel::new(
        vec![(1, Span::from_millis(10))],
        Span::from_millis(1),
        Span::ZERO,
    );
    Mock::new(MockConfig {
        limits: LIMITS,
        cost: cost.unwrap(),
        faults,
        ..MockConfig::default()
    })
}

fn simulation(policies: Policies) -> Simulation<Mock> {
    let mock = mock(Faults::NONE);
    Simulation::new(Scheduler::new(mock.limits(), policies).unwrap(), mock)
}

fn ms(millis: u64) -> Time {
    Time::from_millis(millis)
}

fn submit(id: u64, at: u64, prompt: u32, output: u32) -> (Time, Input) {
    (ms(at), Input::Submit(request(id, prompt, output)))
}

fn cancel(id: u64, at: u64) -> (Time, Input) {
    let (request, reason) = (RequestId::new(id), CancelReason::Client);
    (ms(at), Input::Cancel { request, reason })
}

#[test]
fn a_row_says_when_its_request_started_answered_and_ended() {
    let script = [submit(0, 0, 6, 3), submit(1, 4, 4, 1)];
    let report = simulation(Policies::default()).run(&mut Script::new(script));
    let [second, first] = report.rows[..] else {
        panic!("two rows, not {}", report.rows.len());
    };
    assert_eq!(first.started, Some(ms(0)));
    assert_eq!(first.first_token, Some(ms(16)));
    // Its second token shares a step with the other's prompt.
    assert_eq!(first.end, ms(16 + 14 + 10));
    assert_eq!(first.time_per_output_token(), Some(Span::from_millis(12)));
    assert_eq!(first.terminal, Terminal::Finished(FinishReason::Length));
    assert_eq!(second.started, Some(ms(16)));
    assert_eq!((second.first_token, second.end), (Some(ms(30)), ms(30)));
    assert_eq!((report.end, report.busy), (ms(40), Span::from_millis(40)));
}

#[test]
fn a_cancel_in_the_middle_of_a_step_takes_effect_at_its_own_time() {
    let script = [submit(0, 0, 20, 9), cancel(0, 7), submit(1, 8, 4, 1)];
    let report = simulation(Policies::default()).run(&mut Script::new(script));
    let [cancelled, other] = report.rows[..] else {
        panic!("two rows");
    };
    assert_eq!(cancelled.end, ms(7));
    assert_eq!(
        cancelled.terminal,
        Terminal::Cancelled(CancelReason::Client)
    );
    // The device is busy with the cancelled step until 30 ms.
    assert_eq!(other.started, Some(ms(30)));
}

#[test]
fn a_refused_request_has_a_row_too() {
    let policies = Policies {
        admit: vec![Box::new(QueueCap::new(1))],
        ..Policies::default()
    };
    let script = (0..10).map(|id| submit(id, 0, 4, 1));
    let report = simulation(policies).run(&mut Script::new(script));
    let refused = report
        .rows
        .iter()
        .filter(|row| matches!(row.terminal, Terminal::Refused(_)));
    assert_eq!(refused.count() as u64, report.stats.counters.refused);
    assert_eq!(report.rows.len(), 10);
}

#[test]
fn an_observer_sees_every_token_and_changes_nothing() {
    let requests = || (0..20).map(|id| request(id, 3 + id as u32, 5));
    let events = Rc::new(RefCell::new(Vec::new()));
    let sink = Rc::clone(&events);
    let observed = simulation(Policies::default())
        .with_observer(move |event| sink.borrow_mut().push(event.clone()))
        .run(&mut Arrivals::new(requests()));
    let plain = simulation(Policies::default()).run(&mut Arrivals::new(requests()));
    assert_eq!(observed.rows, plain.rows);
    let events = events.borrow();
    let tokens = events
        .iter()
        .filter(|event| matches!(event.kind, EventKind::Token { .. }));
    assert_eq!(tokens.count(), 20 * 5);
    assert!(events.is_sorted_by_key(|event| event.at));
}

#[test]
fn a_closed_loop_never_has_more_requests_than_clients() {
    let mut workload = ClosedLoop::new(
        3,
        |n, at| {
            let prompt = request(n, 4, 6).prompt().clone();
            let request = serve_core::Request::new(RequestId::new(n), at, prompt, 6);
            (n < 50).then(|| request.unwrap())
        },
        || Span::from_millis(5),
    );
    let report = simulation(Policies::default()).run(&mut workload);
    assert_eq!(report.rows.len(), 50);
    let alive_at = |at: Time| {
        let alive = report
            .rows
            .iter()
            .filter(|row| row.arrival <= at && at < row.end);
        alive.count()
    };
    assert!(report.rows.iter().all(|row| alive_at(row.arrival) <= 3));
}

fn faulty(seed: u64) -> Report {
    let faults = Faults {
        errors_per_million: 50_000,
        stalls_per_million: 50_000,
        stall: Span::from_millis(90),
    };
    let mock = Mock::new(MockConfig {
        seed,
        ..mock(faults).config().clone()
    });
    let scheduler = Scheduler::new(LIMITS, Policies::default()).unwrap();
    let requests = (0..300).map(|id| request(id, 5, 6));
    Simulation::new(scheduler, mock).run(&mut Arrivals::new(requests))
}

#[test]
fn faults_are_part_of_the_seed_and_everybody_is_answered() {
    let report = faulty(1);
    assert_eq!(report.rows.len(), 300);
    let failed = report
        .rows
        .iter()
        .filter(|row| row.terminal == Terminal::Failed);
    let failed = failed.count() as u64;
    assert_eq!(failed, report.stats.counters.failed);
    assert!(failed > 10 && report.stats.counters.finished > 100);
    assert_eq!(report.rows, faulty(1).rows);
    assert_ne!(report.rows, faulty(2).rows);
}
