//! What admission is for: those who are taken get what they were promised, at twice the load that
//! the engine can carry.

use serve_core::mock::{Mock, MockConfig};
use serve_core::{Backend as _, Class, Limit, Limits, Span, Time};
use serve_sched::Policies;
use serve_sched::admit::{Admit, DeadlinePrediction, FirstTokenBudget, LatencyBudget, QueueCap};
use serve_sched::batch::{Batch, Continuous, Static, Window};
use serve_sched::kv::KvSettings;
use serve_sched::order::{AgingTiers, EarliestDeadline, Fifo, Order, StrictTiers};
use serve_sched::sim::{Poisson, Report, Row, Terminal};

use super::{Spec, percentile, run};
use crate::quoted::{count, quoted};

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
        prompt: 30,
        ..Spec::new(0, 64)
    }
}

/// Chats at `rate` a second.
fn chats(rate: f64) -> Vec<Spec> {
    Poisson::new(11, rate).take(REQUESTS).map(chat).collect()
}

fn simulate(batch: Box<dyn Batch>, admit: Box<dyn Admit>, specs: &[Spec]) -> Report {
    in_order(Box::new(Fifo), batch, vec![admit], specs)
}

fn in_order(
    order: Box<dyn Order>,
    batch: Box<dyn Batch>,
    admit: Vec<Box<dyn Admit>>,
    specs: &[Spec],
) -> Report {
    let policies = Policies {
        admit,
        order,
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
    capacity_for(batch, chat(Time::ZERO))
}

fn capacity_for(batch: fn() -> Box<dyn Batch>, spec: Spec) -> f64 {
    let specs = vec![spec; 800];
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

        // It learns from batches that are not full yet, and of those only the first ones are late.
        let learnt = |row: &&Row| row.arrival > Time::from_secs(20);
        let longest = |learnt_or_not: bool| {
            let rows = finished(&on).filter(|row| learnt(row) == learnt_or_not);
            rows.map(Row::response_time).max().unwrap().as_secs_f64()
        };
        let (first, later) = (longest(false), longest(true));
        assert!(first < 1.11 * TARGET.as_secs_f64(), "{name}: {first}");
        assert!(later < 1.01 * TARGET.as_secs_f64(), "{name}: {later}");

        // Nothing is lost by it: the engine does as much as it can in either case.
        let rate = finished(&on).count() as f64 / on.end.as_secs_f64();
        assert!(
            rate > 0.97 * capacity,
            "{name}: {rate} of {capacity} a second"
        );
        let row = format!(
            "| {name} | {:.2} s | {first:.2} s | {later:.2} s | {rate:.2} of {capacity:.2} | {:.0} s |",
            p99(&on),
            p99(&off)
        );
        quoted("latency-budget", &row);
    }
}

/// The batch time, the depth that the textbook formula gives for it, which leaves out the batch in
/// flight, and the p99 that comes of it, for answers of `output` tokens.
fn textbook_depth(output: u32) -> (f64, u32, f64) {
    let of_length = |spec| Spec { output, ..spec };
    let capacity = capacity_for(static_batch, of_length(chat(Time::ZERO)));
    let batch_time = 8.0 / capacity;
    let depth = ((TARGET.as_secs_f64() - batch_time) * 8.0 / batch_time) as u32;
    let specs = chats(2.0 * capacity).into_iter().map(of_length);
    let specs: Vec<Spec> = specs.collect();
    let report = simulate(static_batch(), Box::new(QueueCap::new(depth)), &specs);
    (batch_time, depth, p99(&report))
}

#[test]
fn a_depth_that_forgets_the_batch_in_flight_breaks_its_promise() {
    let (batch_time, depth, p99) = textbook_depth(64);
    let over = p99 / TARGET.as_secs_f64() - 1.0;
    assert!(depth == 10 && over > 0.15, "{depth}: {over}");
    let said = format!("batches of 8 in {batch_time:.2} s it says {depth}");
    quoted("latency-budget", &said);
    let said = format!("it gives {p99:.2} s, {:.0}% over", over * 100.0);
    quoted("latency-budget", &said);

    // How far off it is depends on where the division lands.
    let (batch_time, depth, p99) = textbook_depth(71);
    let over = p99 / TARGET.as_secs_f64() - 1.0;
    assert!(depth == 8 && over < 0.0, "{depth}: {over}");
    let said = format!(
        "batches of {batch_time:.2} s the depth is {depth}, one batch exactly, and the p99 is \
         {p99:.2} s",
    );
    quoted("latency-budget", &said);
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
    let [flat, tiered] = [flat, tiered].map(|report| {
        let of = |class| count(finished_of(&report, class));
        format!("{} and {}", of(0), of(1))
    });
    let said =
        format!("{flat} of two classes with one depth for both, {tiered} with a depth of 4 of 16");
    quoted("queue-cap", &said);
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
    let said = format!(
        "{:.2} requests a second were answered in time, of {capacity:.2} that the engine can do",
        goodput(&on),
    );
    quoted("deadline-prediction", &said);
    let said = format!("{:.2} a second, first come, first served", goodput(&off));
    quoted("deadline-prediction", &said);
}

/// At twice the load, a quarter of it of the higher class, all due in three seconds.
#[test]
fn in_tiers_a_prediction_does_not_refuse_a_class_for_those_that_it_goes_before() {
    let mut specs = chats(2.0 * capacity(continuous));
    for (n, spec) in specs.iter_mut().enumerate() {
        spec.class = u8::from(n % 4 > 0);
        spec.deadline = Some(spec.arrival + Span::from_secs(3));
    }
    let in_time = |order: Box<dyn Order>| {
        let admit: Vec<Box<dyn Admit>> =
            vec![Box::new(DeadlinePrediction::new(Span::from_millis(200)))];
        let report = in_order(order, continuous(), admit, &specs);
        [0, 1].map(|class| {
            let of_class = |row: &&Row| row.class == Class::new(class);
            let all = report.rows.iter().filter(of_class).count();
            100.0 * finished(&report).filter(of_class).count() as f64 / all as f64
        })
    };
    let fifo = in_time(Box::new(Fifo));
    let strict = in_time(Box::new(StrictTiers));
    let aging = in_time(Box::new(AgingTiers::new(Span::from_secs(1))));
    assert!(strict[0] > 99.0 && aging[0] > 95.0, "{strict:?} {aging:?}");
    for (name, [higher, lower]) in [
        ("fifo", fifo),
        ("strict-tiers", strict),
        ("aging-tiers", aging),
    ] {
        let row = format!("| {name} | {higher:.1}% | {lower:.1}% |");
        quoted("deadline-prediction", &row);
    }
}

/// At nine tenths of the capacity, half of the requests due in two seconds and half in ten.
#[test]
fn before_earliest_deadline_first_a_prediction_refuses_a_few_needlessly() {
    let mut specs = chats(0.9 * capacity(continuous));
    for (n, spec) in specs.iter_mut().enumerate() {
        let patience = Span::from_secs(if n % 2 == 0 { 2 } else { 10 });
        spec.deadline = Some(spec.arrival + patience);
    }
    let refused = |admit| -> f64 {
        let report = in_order(Box::new(EarliestDeadline), continuous(), admit, &specs);
        let counters = report.stats.counters;
        assert_eq!(counters.cancelled, 0, "nobody who was taken is late");
        100.0 * counters.refused as f64 / REQUESTS as f64
    };
    assert_eq!(refused(Vec::new()), 0.0, "all deadlines can be met");
    let refused = refused(vec![Box::new(DeadlinePrediction::default())]);
    assert!(refused < 10.0, "{refused}% refused");
    let said = format!("{refused:.1}% were refused");
    quoted("deadline-prediction", &said);
    quoted("earliest-deadline", &said);
}

#[test]
fn a_first_token_budget_keeps_first_tokens_near_their_target_whatever_the_prompts() {
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
    let on = first_token(Box::new(FirstTokenBudget::new(target)));
    let off = first_token(Box::new(FirstTokenBudget::new(Span::ZERO)));
    assert!(off > 20.0, "{off}");
    // The step in flight comes on top of what waits: at most one step of 1,500 tokens and more.
    assert!(on < 2.0 * target.as_secs_f64(), "{on}");
    let said = format!("{on:.2} s for a target of 2 s, against {off:.1} s without");
    quoted("first-token-budget", &said);
}

#[test]
fn a_refusal_says_what_was_predicted_and_when_to_come_back() {
    let specs = chats(2.0 * capacity(static_batch));
    let report = simulate(static_batch(), Box::new(LatencyBudget::new(TARGET)), &specs);
    let refused = report.rows.iter().filter_map(|row| match row.terminal {
        Terminal::Refused(refusal) => Some(refusal),
        _ => None,
    });
    let (mut count, mut exact) = (0, 0);
    for refusal in refused {
        let Limit::LatencyBudget { predicted, target } = refusal.limit() else {
            panic!("{refusal}");
        };
        // The excess, and a departure more for each that was refused since the last one.
        let (after, excess) = (
            refusal.retry_after().unwrap(),
            predicted.saturating_sub(target),
        );
        assert!(predicted > target && after >= excess);
        exact += usize::from(after == excess);
        count += 1;
    }
    assert!(count > REQUESTS / 3, "{count}");
    assert!(exact > count / 10 && exact < count, "{exact}");
}
