//! Worked examples of overload control from a lecture on serving systems, with its numbers: slots
//! and a bounded queue, a deadline budget, a retry budget.

use serve_core::{FinishReason, Limit, Refusal, Request, RequestId, Span, Time, TokenId, Usage};
use serve_sched::admit::{Admit, DeadlinePrediction, QueueCap};
use serve_sched::limit::Fixed;
use serve_sched::order::Fifo;
use serve_sched::sim::{Report, Row};
use serve_sched::{Dispatcher, FailedAttempt, Outcome, Policies, RetryBudget, RetrySettings};

use crate::policies::{Spec, device, run};
use crate::quoted::quoted;

fn request(id: u64, arrival: Time) -> Request {
    Request::new(RequestId::new(id), arrival, [TokenId::new(1)], 10).unwrap()
}

fn finished() -> Outcome {
    Outcome::Answered {
        reason: FinishReason::Length,
        usage: Usage::default(),
    }
}

/// 64 requests come at once to 8 slots with room for `waiting_max` more. Each takes 1.4 s.
fn burst(waiting_max: u32, deadline: Option<Time>) -> Report {
    let spec = Spec {
        deadline,
        ..Spec::new(0, 14)
    };
    let policies = Policies {
        admit: vec![Box::new(QueueCap::new(waiting_max))],
        ..Policies::default()
    };
    run(device(8, 100), policies, &[spec; 64]).0
}

fn finished_rows(report: &Report) -> Vec<&Row> {
    report.rows.iter().filter(|row| row.is_finished()).collect()
}

#[test]
fn eight_slots_and_sixteen_places_take_twenty_four_of_sixty_four() {
    let report = burst(16, None);
    let counters = report.stats.counters;
    assert_eq!((counters.finished, counters.refused), (24, 40));
    let said = format!("16 places are taken as {}", counters.finished);
    quoted("queue-cap", &said);
    let ends: Vec<u64> = finished_rows(&report)
        .iter()
        .map(|row| row.end.as_nanos() / 1_000_000)
        .collect();
    let waves: Vec<u64> = [1_400, 2_800, 4_200]
        .iter()
        .flat_map(|&end| [end; 8])
        .collect();
    assert_eq!(ends, waves, "three waves, first come, first served");
}

#[test]
fn the_dispatcher_takes_twenty_four_however_it_is_driven() {
    for at_once in [true, false] {
        let admit: Vec<Box<dyn Admit>> = vec![Box::new(QueueCap::new(16))];
        let mut dispatcher = Dispatcher::new(admit, Box::new(Fifo), Box::new(Fixed::new(8)));
        let (mut taken, mut sent) = (0, 0);
        for id in 0..64 {
            let request = request(id, Time::ZERO);
            taken += u32::from(dispatcher.submit(Time::ZERO, request).is_ok());
            if !at_once {
                sent += u32::from(dispatcher.next(Time::ZERO).is_some());
            }
        }
        sent += std::iter::from_fn(|| dispatcher.next(Time::ZERO)).count() as u32;
        assert_eq!((taken, sent), (24, 8), "at once: {at_once}");
    }
}

/// A longer queue turns early refusals into late failures: nobody more is served in time.
#[test]
fn a_longer_queue_serves_nobody_more_in_time() {
    let deadline = Some(Time::from_secs(5));
    let (short, long) = (burst(16, deadline), burst(64, deadline));
    assert_eq!(finished_rows(&short).len(), 24);
    assert_eq!(finished_rows(&long).len(), 24);
    let (short, long) = (short.stats.counters, long.stats.counters);
    assert_eq!((short.refused, short.cancelled), (40, 0));
    assert_eq!(
        (long.refused, long.cancelled),
        (0, 40),
        "five seconds later"
    );
}

/// 0.2 s on the way, 3.9 s of queue and 1.4 s of service are 5.5 s: half a second over.
#[test]
fn a_five_second_budget_is_missed_by_half_a_second() {
    let admit: Vec<Box<dyn Admit>> = vec![Box::new(DeadlinePrediction::default())];
    let mut dispatcher = Dispatcher::new(admit, Box::new(Fifo), Box::new(Fixed::new(1)));
    let at = Time::from_millis;
    // One request tells how long they take. Then one has run for 0.3 s and two wait behind it.
    for id in 0..4 {
        dispatcher.submit(at(0), request(id, at(0))).unwrap();
    }
    let first = dispatcher.next(at(0)).unwrap();
    dispatcher.done(at(1_400), first.id(), finished());
    dispatcher.next(at(1_400)).unwrap();
    let (sent, arrives) = (at(1_500), at(1_700));
    let with_budget =
        |id, budget_ms| request(id, sent).with_deadline(Some(sent + Span::from_millis(budget_ms)));
    let refusal = dispatcher
        .submit(arrives, with_budget(4, 5_000))
        .unwrap_err();
    let limit = Limit::Deadline {
        predicted: Span::from_millis(3_900 + 1_400),
        left: Span::from_millis(5_000 - 200),
    };
    let later = Refusal::Later {
        limit,
        retry_after: Some(Span::from_millis(500)),
    };
    assert_eq!(refusal, later);
    assert!(dispatcher.submit(arrives, with_budget(5, 5_500)).is_ok());
}

/// Of 100 originals 20 time out and are tried again; 4 of those time out again.
fn attempts(settings: RetrySettings) -> u32 {
    let mut budget = RetryBudget::new(settings, 1);
    let mut attempts = 0;
    let mut to_send = vec![1_u32; 100];
    let times_out = |number: u32, nth: usize| number <= 2 && nth.is_multiple_of(5);
    while !to_send.is_empty() {
        let mut again = Vec::new();
        for (nth, &number) in to_send.iter().enumerate() {
            attempts += 1;
            if number == 1 {
                budget.original();
            }
            let failed = FailedAttempt {
                number,
                deadline: None,
                refusal: None,
            };
            if times_out(number, nth) && budget.retry(Time::ZERO, &failed).is_some() {
                again.push(number + 1);
            }
        }
        to_send = again;
    }
    attempts
}

#[test]
fn one_retry_makes_120_attempts_of_100_originals_and_not_124() {
    let one_retry = RetrySettings {
        attempts_max: 2,
        retries_percent: 100,
        reserve: 0,
        ..RetrySettings::default()
    };
    assert_eq!(attempts(one_retry), 120);
    let unlimited = RetrySettings {
        attempts_max: u32::MAX,
        ..one_retry
    };
    assert_eq!(attempts(unlimited), 124, "the control");
    let said = format!(
        "{} attempts, and not the {}",
        attempts(one_retry),
        attempts(unlimited)
    );
    quoted("retry-budget", &said);
    let shared = RetrySettings {
        retries_percent: 20,
        ..unlimited
    };
    assert_eq!(
        attempts(shared),
        120,
        "a fifth of the originals, whichever fail"
    );
}
