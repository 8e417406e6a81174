//! What admission is for: those who are taken get what they were promised, at twice the load that
//! the engine can carry.

use serve_core::mock::{Mock, MockConfig};
use serve_core::{Backend as _, Class, Limit, Limits, Span, Time};
use serve_sched::Policies;
use serve_sched::admit::{Admit, DeadlinePrediction, LatencyBudget, QueueCap, TokenBacklog};
use serve_sched::batch::{Batch, Continuous, Static, Window};
use serve_sched::kv::KvSettings;
use serve_sched::sim::{Poisson, Report, Row, Terminal};

use super::{Spec, percentile, run};

const REQUESTS: usize = 6_000;
const TARGET: Span = Span::from_millis(2_500);

/// The measured server: a batch of 8 chats on the default cost model takes 1.09 s.
fn server() -> Mock {
    let mock = Mock::default();
    let limits = Limits {
        sequences_max: 8,
        ..mock.limits()
    };
    Mock::new(MockConfig {
        limits,
        ..mock.config().clone()
    })
}

fn static_batch() -> Box<dyn Batch> {
    Box::new(Static::new(8, Window::Fixed(Span::from_millis(10))))
}

fn continuous() -> Box<dyn Batch> {
    Box::new(Continuous::default())
}

fn chat(arrival: Time) -> Spec {
    Spec {
        arrival,
        prompt: 3,
        ..Spec::new(0, 64)
    }
}

/// Chats at `rate` a second.
fn chats(rate: f64) -> Vec<Spec> {
    Poisson::new(11, rate).take(REQUESTS).map(chat).collect()
}

fn simulate(batch: Box<dyn Batch>, admit: Box<dyn Admit>, specs: &[Spec]) -> Report {
    let policies = Policies {
        admit: vec![admit],
        batch,
        kv: KvSettings {
            reuse_prefixes: false, // so that the simulation can jump
            ..KvSettings::default()
        },
        ..Policies::default()
    };
    run(server(), policies, specs).0
}

/// Requests that this server ends in a second when there are always enough.
fn capacity(batch: fn() -> Box<dyn Batch>) -> f64 {
    let specs = vec![chat(Time::ZERO); 800];
    let report = simulate(batch(), Box::new(QueueCap::new(0)), &specs);
    800.0 / report.end.as_secs_f64()
}

fn finished(report: &Report) -> impl Iterator<Item = &Row> {
    report.rows.iter().filter(|row| row.is_finished())
}

fn p99(report: &Report) -> f64 {
    percentile(finished(report).map(Row::response_time), 99.0)
}

#[test]
fn a_latency_budget_keeps_its_p99_within_five_percent_at_twice_the_load() {
    for batch in [static_batch, continuous] {
        let name = batch().name();
        let capacity = capacity(batch);
        let specs = chats(2.0 * capacity);
        let off = simulate(batch(), Box::new(LatencyBudget::new(Span::ZERO)), &specs);
        let on = simulate(batch(), Box::new(LatencyBudget::new(TARGET)), &specs);
        let over = p99(&on) / TARGET.as_secs_f64() - 1.0;
        assert!(over.abs() <= 0.05, "{name}: {:.1}% over", over * 100.0);
        assert!(p99(&off) > 100.0, "{name}: a queue without end");

        // Nothing is lost by it: the engine does as much as it can in either case.
        let rate = finished(&on).count() as f64 / on.end.as_secs_f64();
        assert!(
            rate > 0.97 * capacity,
            "{name}: {rate} of {capacity} a second"
        );
    }
}

/// The depth from the textbook formula, which leaves out the batch in flight, is over its target.
#[test]
fn a_depth_that_forgets_the_batch_in_flight_breaks_its_promise() {
    let capacity = capacity(static_batch);
    let batch_time = 8.0 / capacity;
    let depth = (TARGET.as_secs_f64() - batch_time) * 8.0 / batch_time;
    let cap = QueueCap::new(depth as u32);
    let report = simulate(static_batch(), Box::new(cap), &chats(2.0 * capacity));
    let over = p99(&report) / TARGET.as_secs_f64() - 1.0;
    assert_eq!(depth as u32, 10);
    assert!(over > 0.15, "{:.1}% over", over * 100.0);
}

#[test]
fn a_lower_class_is_refused_first_and_the_same_number_are_taken() {
    let mut specs = chats(2.0 * capacity(static_batch));
    for (n, spec) in specs.iter_mut().enumerate() {
        spec.class = (n % 2) as u8;
    }
    let finished_of = |report: &Report, class| {
        let of_class = finished(report).filter(|row| row.class == Class::new(class));
        of_class.count() as f64
    };
    let flat = simulate(static_batch(), Box::new(QueueCap::new(16)), &specs);
    let cap = QueueCap::new(16).with_class(Class::new(1), 4);
    let tiered = simulate(static_batch(), Box::new(cap), &specs);
    let total = |report: &Report| finished_of(report, 0) + finished_of(report, 1);
    assert!((total(&tiered) / total(&flat) - 1.0).abs() < 0.02);
    assert!(finished_of(&tiered, 0) > 1.3 * finished_of(&flat, 0));
    assert!(finished_of(&tiered, 1) < 0.7 * finished_of(&flat, 1));
}

#[test]
fn predicted_deadlines_leave_no_work_for_answers_that_come_too_late() {
    let capacity = capacity(continuous);
    let mut specs = chats(2.0 * capacity);
    for spec in &mut specs {
        spec.deadline = Some(spec.arrival + Span::from_secs(3));
    }
    let off = simulate(continuous(), Box::new(QueueCap::new(0)), &specs);
    let margin = Span::from_millis(200);
    let on = simulate(
        continuous(),
        Box::new(DeadlinePrediction::new(margin)),
        &specs,
    );

    let goodput = |report: &Report| finished(report).count() as f64 / report.end.as_secs_f64();
    let cancelled = |report: &Report| {
        let late = report
            .rows
            .iter()
            .filter(|row| matches!(row.terminal, Terminal::Cancelled(_)));
        late.count() as f64 / report.rows.len() as f64
    };
    assert!(goodput(&on) > 0.97 * capacity, "{}", goodput(&on));
    assert!(goodput(&off) < 0.9 * capacity, "{}", goodput(&off));
    assert!(cancelled(&on) < 0.01, "{}", cancelled(&on));
    assert!(cancelled(&off) > 0.4, "{}", cancelled(&off));
}

#[test]
fn a_token_backlog_keeps_first_tokens_near_their_target_whatever_the_prompts() {
    // Prompts from 10 to 1,500 tokens, one token out: prefill is all there is.
    let mut rng = serve_core::rng::Rng::new(5);
    let specs: Vec<Spec> = Poisson::new(12, 83.0)
        .take(8_000)
        .map(|arrival| Spec {
            prompt: match rng.below(10) {
                0 => 1_500,
                _ => 10 + rng.below(200) as u32,
            },
            ..Spec {
                output: 1,
                ..chat(arrival)
            }
        })
        .collect();
    let target = Span::from_secs(2);
    let first_token = |admit: Box<dyn Admit>| {
        let report = simulate(continuous(), admit, &specs);
        let times = report.rows.iter().filter_map(Row::first_token_time);
        percentile(times, 99.0)
    };
    let on = first_token(Box::new(TokenBacklog::new(target)));
    let off = first_token(Box::new(TokenBacklog::new(Span::ZERO)));
    assert!(off > 20.0, "{off}");
    // The step in flight comes on top of what waits: at most one step of 1,500 tokens and more.
    assert!(on < 2.0 * target.as_secs_f64(), "{on}");
}

#[test]
fn a_refusal_says_what_was_predicted_and_when_to_come_back() {
    let specs = chats(2.0 * capacity(static_batch));
    let report = simulate(static_batch(), Box::new(LatencyBudget::new(TARGET)), &specs);
    let refused = report.rows.iter().filter_map(|row| match row.terminal {
        Terminal::Refused(refusal) => Some(refusal),
        _ => None,
    });
    let mut count = 0;
    for refusal in refused {
        let Limit::LatencyBudget { predicted, target } = refusal.limit() else {
            panic!("{refusal}");
        };
        let after = refusal.retry_after().unwrap();
        assert!(predicted > target && after == predicted.saturating_sub(target));
        count += 1;
    }
    assert!(count > REQUESTS / 3, "{count}");
}
