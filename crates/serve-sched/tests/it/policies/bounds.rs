//! Promised wait bounds: aging tiers, and the longest wait under highest response ratio next.

use proptest::prelude::*;
use serve_core::{Span, Time};
use serve_sched::Policies;
use serve_sched::batch::{Continuous, Static, Window};
use serve_sched::order::{AgingTiers, Fifo, Order, Place, ResponseRatio, StrictTiers, Waiting};
use serve_sched::sim::{Poisson, Report, Row};

use super::{Spec, device, run, serial};
use crate::quoted::quoted;

/// Requests of three classes at about one and a half times what a serial server can do.
fn overload() -> impl Strategy<Value = Vec<Spec>> {
    let one = (0_u64..140, 1_u32..20, 0_u8..3);
    prop::collection::vec(one, 2..120).prop_map(|many| {
        let mut at = 0;
        let spec = |(gap, output, class)| {
            at += gap;
            Spec {
                class,
                ..Spec::new(at, output)
            }
        };
        many.into_iter().map(spec).collect()
    })
}

/// `wait <= age_after + what is in service then + work of the older ones that wait then`.
fn check_bound(rows: &[Row], age_after: Span) -> Result<(), TestCaseError> {
    for row in rows {
        let (started, ages_at) = (row.started.unwrap(), row.arrival + age_after);
        if started <= ages_at {
            continue;
        }
        let (mut bound, mut older) = (age_after, 0);
        for other in rows {
            let other_started = other.started.unwrap();
            if other_started <= ages_at {
                bound += other.end.since(ages_at);
            } else if (other.arrival, other.request) < (row.arrival, row.request) {
                bound += other.end.since(other_started);
                older += 1;
            }
        }
        let waited = row.waited().unwrap();
        prop_assert!(
            waited <= bound,
            "{} waited {waited} of {bound}, {older} older ones",
            row.request
        );
    }
    Ok(())
}

/// Once a request has waited for `age_after`, nobody younger starts before it.
fn check_nobody_passes(rows: &[Row], age_after: Span) -> Result<(), TestCaseError> {
    for row in rows {
        let (started, ages_at) = (row.started.unwrap(), row.arrival + age_after);
        for other in rows.iter().filter(|other| other.arrival > row.arrival) {
            let other_started = other.started.unwrap();
            prop_assert!(
                other_started < ages_at || started <= other_started,
                "{} passes {} at {other_started}",
                other.request,
                row.request
            );
        }
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn aging_bounds_every_wait_on_a_serial_server(
        specs in overload(),
        age_after_ms in 1_u64..800,
    ) {
        let age_after = Span::from_millis(age_after_ms);
        let report = serial(AgingTiers::new(age_after), &specs);
        check_bound(&report.rows, age_after)?;
        check_nobody_passes(&report.rows, age_after)?;
    }

    #[test]
    fn a_request_that_has_aged_is_passed_by_none_in_batches(
        specs in overload(),
        age_after_ms in 1_u64..800,
        continuous: bool,
        size in 1_u32..5,
    ) {
        let age_after = Span::from_millis(age_after_ms);
        let policies = Policies {
            admit: Vec::new(),
            order: Box::new(AgingTiers::new(age_after)),
            batch: match continuous {
                true => Box::new(Continuous::default()),
                false => Box::new(Static::new(size, Window::Fixed(Span::from_millis(10)))),
            },
            ..Policies::default()
        };
        let (report, _) = run(device(size, 30), policies, &specs);
        check_nobody_passes(&report.rows, age_after)?;
    }

    #[test]
    fn the_longest_wait_of_the_response_ratio_order_is_bounded(
        specs in overload(),
        wait_max_ms in 1_u64..800,
    ) {
        let wait_max = Span::from_millis(wait_max_ms);
        let report = serial(ResponseRatio::new(wait_max), &specs);
        check_bound(&report.rows, wait_max)?;
        check_nobody_passes(&report.rows, wait_max)?;
    }
}

/// A full load of the highest class, and one request of a lower one.
fn steady_higher_class() -> Vec<Spec> {
    let mut specs: Vec<Spec> = (0..2_000).map(|n| Spec::new(n * 50, 5)).collect();
    specs.insert(
        1,
        Spec {
            class: 1,
            ..Spec::new(10, 5)
        },
    );
    specs.insert(1, Spec::new(5, 5));
    specs
}

fn wait_of_the_lower_class(order: impl Order + 'static) -> Span {
    let report = serial(order, &steady_higher_class());
    let lower = report.rows.iter().find(|row| row.class.rank() == 1);
    lower.and_then(Row::waited).unwrap()
}

#[test]
fn a_steady_higher_class_starves_a_lower_one_only_without_aging() {
    let strict = wait_of_the_lower_class(StrictTiers);
    assert!(strict > Span::from_secs(99), "{strict}");
    let aging = wait_of_the_lower_class(AgingTiers::new(Span::from_secs(2)));
    let bound = Span::from_secs(2) + Span::from_millis(2 * 50);
    assert!(aging <= bound, "{aging}");
    let said = format!(
        "waited {:.0} s, that is until the load ended; with [aging](aging-tiers.md) it waited \
         {:.2} s",
        strict.as_secs_f64(),
        aging.as_secs_f64(),
    );
    quoted("strict-tiers", &said);
}

/// The control of the response ratio: shortest first, without any aging.
struct ShortestFirst;

impl Order for ShortestFirst {
    fn name(&self) -> &'static str {
        "shortest-first"
    }

    fn place(&mut self, waiting: &Waiting<'_>, _now: Time) -> Place {
        Place::by_key(u64::from(waiting.request.output_tokens_max()))
    }
}

/// Short requests use the server up, and a long one comes early on.
#[test]
fn waiting_makes_up_for_being_long() {
    let mut specs: Vec<Spec> = (0..4_000).map(|n| Spec::new(n / 2 * 100, 5)).collect();
    specs.insert(2, Spec::new(50, 50));
    let wait_of_the_long = |report: Report| {
        let long = report.rows.iter().find(|row| row.usage.output_tokens == 50);
        long.and_then(Row::waited).unwrap()
    };
    let shortest = wait_of_the_long(serial(ShortestFirst, &specs));
    let ratio = wait_of_the_long(serial(ResponseRatio::new(Span::ZERO), &specs));
    assert!(shortest > Span::from_secs(199), "{shortest}");
    assert!(ratio < Span::from_secs(2), "{ratio}");
}

/// Of nine short requests and a long one, at 85% load.
#[test]
fn the_response_ratio_lies_between_first_come_and_shortest_first() {
    let specs: Vec<Spec> = Poisson::new(4, 11.0)
        .take(5_000)
        .enumerate()
        .map(|(n, arrival)| Spec {
            arrival,
            ..Spec::new(0, if n % 10 == 0 { 50 } else { 3 })
        })
        .collect();
    let fifo = serial(Fifo, &specs);
    let ratio = serial(ResponseRatio::new(Span::ZERO), &specs);
    let shortest = serial(ShortestFirst, &specs);
    let mean = |report: &Report| {
        let total: Span = report.rows.iter().map(Row::response_time).sum();
        total.as_secs_f64() / report.rows.len() as f64
    };
    let longest = |report: &Report| report.rows.iter().filter_map(Row::waited).max();
    assert!(mean(&shortest) < mean(&ratio) && mean(&ratio) < 0.8 * mean(&fifo));
    assert!(longest(&ratio) < longest(&shortest));
    let said = format!(
        "the mean response was {:.3} s, against {:.3} s first come, first served, and {:.3} s \
         shortest first",
        mean(&ratio),
        mean(&fifo),
        mean(&shortest),
    );
    quoted("response-ratio", &said);
}
