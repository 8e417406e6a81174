//! What the budgets promise: who waits for whose prompt, and how long a decode waits.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::{Arc, Mutex};

use proptest::prelude::*;
use serve_core::mock::{CostModel, Mock, MockConfig};
use serve_core::{
    Backend, BackendError, Class, EventKind, Limits, Request, RequestId, Span, StepOutcome,
    StepPlan, Time, TokenId,
};
use serve_sched::budget::{Budget, ClassFirst, FirstCome, InterTokenTarget};
use serve_sched::journal::{Decision, Entry};
use serve_sched::kv::KvSettings;
use serve_sched::order::{AgingTiers, Fifo, Order, StrictTiers};
use serve_sched::sim::{Arrivals, Report, Row, Simulation};
use serve_sched::victim::Preemption;
use serve_sched::{Policies, Scheduler};

use super::percentile;
use crate::quoted::quoted;

fn limits(sequences_max: u32, step_tokens_max: u32) -> Limits {
    Limits {
        sequences_max,
        step_tokens_max,
        context_max: 131_072,
        block_size: 16,
        blocks: 20_000,
    }
}

/// Steps of 10 ms and 60 us for each prompt token.
fn mock(limits: Limits) -> Mock {
    let points = vec![(1, Span::from_millis(10))];
    let cost = CostModel::new(points, Span::from_micros(60), Span::ZERO);
    Mock::new(MockConfig {
        limits,
        cost: cost.unwrap(),
        ..MockConfig::default()
    })
}

fn request(id: u64, at_ms: u64, prompt: u32, output: u32, class: u8) -> Request {
    let tokens: Vec<_> = (0..prompt)
        .map(|position| TokenId::new((id as u32) << 18 | position))
        .collect();
    Request::new(RequestId::new(id), Time::from_millis(at_ms), tokens, output)
        .unwrap()
        .with_class(Class::new(class))
}

fn policies(budget: impl Budget + 'static, order: impl Order + 'static) -> Policies {
    Policies {
        admit: Vec::new(),
        order: Box::new(order),
        budget: Box::new(budget),
        kv: KvSettings {
            reuse_prefixes: false,
            watermark_blocks: Some(0),
            ..KvSettings::default()
        },
        ..Policies::default()
    }
}

fn run(limits: Limits, policies: Policies, requests: Vec<Request>) -> Report {
    let scheduler = Scheduler::new(limits, policies).unwrap();
    Simulation::new(scheduler, mock(limits)).run(&mut Arrivals::new(requests))
}

/// The times to first token of the requests that `are` so.
fn first_tokens(report: &Report, are: impl Fn(&Row) -> bool) -> Vec<Span> {
    let rows = report.rows.iter().filter(|row| are(row));
    rows.map(|row| row.first_token_time().unwrap()).collect()
}

/// Class 0 asks for little after class 1 has asked for a hundred thousand tokens of prompt.
fn behind_a_lower_class(policies: Policies, slots: u32, long: u64) -> Span {
    let mut requests: Vec<_> = (0..long)
        .map(|id| request(id, 0, 100_000 / long as u32, 10, 1))
        .collect();
    requests.extend((0..5).map(|n| request(100 + n, 100 + n * 10, 20, 5, 0)));
    let report = run(limits(slots, 512), policies, requests);
    let first = first_tokens(&report, |row| row.class == Class::HIGHEST);
    first.into_iter().max().unwrap()
}

#[test]
fn no_higher_class_waits_behind_a_lower_ones_prompt() {
    // A full step takes 41 ms: one that runs already, and its own.
    let two_steps = Span::from_millis(82);
    let first_come = behind_a_lower_class(policies(FirstCome, StrictTiers), 64, 1);
    assert!(first_come > Span::from_secs(7), "{first_come}");
    let class_first = behind_a_lower_class(policies(ClassFirst::default(), StrictTiers), 64, 1);
    assert!(class_first <= two_steps, "{class_first}");
    for budget in [ClassFirst::new(None), ClassFirst::new(Some(100))] {
        let first = behind_a_lower_class(policies(budget, StrictTiers), 64, 7);
        assert!(first <= two_steps, "{first}");
    }
    let target = InterTokenTarget::default();
    let first = behind_a_lower_class(policies(target, StrictTiers), 64, 3);
    assert!(first <= two_steps, "{first}");
    let said = format!(
        "the first token of class 0 came after {:.0} ms at the latest, against {:.2} s first come",
        class_first.as_millis_f64(),
        first_come.as_secs_f64(),
    );
    quoted("class-first", &said);
}

#[test]
fn nor_does_it_where_slots_are_missing_and_a_lower_class_gives_one_up() {
    for slots in [2, 6] {
        let by_class = |budget: Box<dyn Budget>| Policies {
            budget,
            preemption: Preemption {
                by_class: true,
                ..Preemption::default()
            },
            ..policies(FirstCome, StrictTiers)
        };
        let budget = Box::new(ClassFirst::default());
        let first = behind_a_lower_class(by_class(budget), slots, u64::from(slots));
        assert!(
            first <= Span::from_millis(82 + 50),
            "{first} with {slots} slots"
        );
    }
}

/// Where the step's tokens go before the head, nobody is preempted for it in vain.
#[test]
fn nobody_gives_a_slot_to_a_prompt_that_would_get_no_token() {
    let by_class = Policies {
        preemption: Preemption {
            by_class: true,
            ..Preemption::default()
        },
        ..policies(FirstCome, Fifo)
    };
    // Two slots: a long prompt of class 0, and a decode of class 1.
    let requests = vec![
        request(1, 0, 4, 4_000, 1),
        request(2, 15, 50_000, 2, 0),
        request(3, 100, 20, 2, 0),
    ];
    let device = limits(2, 512);
    let mut scheduler = Scheduler::new(device, by_class).unwrap();
    let sink = Arc::new(Mutex::new(Vec::new()));
    let entries = Arc::clone(&sink);
    scheduler.set_journal(Some(Box::new(move |entry: &Entry| {
        if let Decision::Preempted { .. } = entry.decision {
            sink.lock().unwrap().push(entry.at);
        }
    })));
    let report = Simulation::new(scheduler, mock(device)).run(&mut Arrivals::new(requests));
    let long = report.rows.iter().find(|row| row.request.get() == 2);
    let first = long.unwrap().first_token.unwrap();
    // It goes when the other's prompt leaves something of a step, and not before.
    let displaced = entries.lock().unwrap().clone();
    assert_eq!(displaced.len(), 1, "{displaced:?}");
    assert!(
        first.since(displaced[0]) <= Span::from_millis(41),
        "{displaced:?}"
    );
}

#[test]
fn short_prompts_do_not_wait_for_a_long_one_of_their_class() {
    let load = |long: bool| {
        let mut requests: Vec<_> = (0..50).map(|id| request(id, 1, 30, 5, 0)).collect();
        if long {
            requests.insert(0, request(999, 0, 100_000, 5, 0));
        }
        requests
    };
    let short = |report: &Report| {
        let first = first_tokens(report, |row| row.request.get() < 999);
        percentile(first.into_iter(), 50.0)
    };
    let long = |report: &Report| first_tokens(report, |row| row.request.get() == 999)[0];
    let serve = |budget: Box<dyn Budget>, with_long| {
        let policies = Policies {
            budget,
            ..policies(FirstCome, Fifo)
        };
        run(limits(64, 2_048), policies, load(with_long))
    };
    let alone = short(&serve(Box::new(FirstCome), false));
    let first_come = serve(Box::new(FirstCome), true);
    let capped = serve(Box::<ClassFirst>::default(), true);
    assert!(short(&first_come) > 6.0);
    assert!(short(&capped) < 0.4, "{}", short(&capped));
    // What is left of the step goes to the long one.
    assert!(long(&capped) < long(&first_come) + Span::from_millis(200));
    let said = format!(
        "the median first token of the short ones came after {:.2} s, against {:.2} s first come and \
         {alone:.2} s without the long one, whose own came after {:.2} s instead of {:.2} s",
        short(&capped),
        short(&first_come),
        long(&capped).as_secs_f64(),
        long(&first_come).as_secs_f64(),
    );
    quoted("class-first", &said);
}

#[test]
fn what_an_aging_order_has_promised_is_not_taken_back_in_the_step() {
    // Class 1 ages after a second, while class 0 asks for more prompt than there are tokens.
    let mut requests = vec![request(0, 0, 6_000, 2, 1)];
    requests.extend((1..120).map(|n| request(n, n * 50, 700, 2, 0)));
    let aging = || AgingTiers::new(Span::from_secs(1));
    let aged = |order: AgingTiers| {
        let policies = policies(ClassFirst::default(), order);
        let report = run(limits(64, 512), policies, requests.clone());
        first_tokens(&report, |row| row.class != Class::HIGHEST)[0]
    };
    let (with, without) = (aged(aging()), aged(AgingTiers::new(Span::ZERO)));
    // A second and the steps of its own prompt.
    assert!(
        with < Span::from_secs(1) + Span::from_millis(13 * 41),
        "{with}"
    );
    assert!(without > Span::from_secs(4), "{without}");
}

/// Two long prompts side by side end later, taken together, than one after the other.
#[test]
fn side_by_side_costs_the_first_of_two_long_prompts() {
    let serve = |budget: Box<dyn Budget>| {
        let policies = Policies {
            budget,
            ..policies(FirstCome, Fifo)
        };
        let requests = (0..4).map(|id| request(id, 0, 20_000, 2, 0)).collect();
        let report = run(limits(64, 2_048), policies, requests);
        let first = first_tokens(&report, |_| true);
        first.iter().map(|first| first.as_secs_f64()).sum::<f64>() / 4.0
    };
    let one_by_one = serve(Box::new(FirstCome));
    let side_by_side = serve(Box::<ClassFirst>::default());
    assert!(side_by_side > 1.3 * one_by_one);
    let said = format!(
        "Four prompts of 20,000 tokens that come together have their first tokens after {side_by_side:.2} s \
         on average, where one after the other it is {one_by_one:.2} s"
    );
    quoted("class-first", &said);
}

/// Eight conversations of 1,000 tokens each, and a prompt of 8,000 every two seconds.
#[test]
fn the_target_buys_steady_tokens_with_the_first_ones_of_long_prompts() {
    type Make = fn() -> Box<dyn Budget>;
    let chats = || (0..8).map(|id| request(id, id * 10, 50, 1_000, 0));
    let long = (0..5).map(|n| request(100 + n, 1_000 + 2_000 * n, 8_000, 2, 0));
    let requests: Vec<_> = chats().chain(long).collect();
    let serve = |budget: Make| {
        let with = || Policies {
            budget: budget(),
            ..policies(FirstCome, Fifo)
        };
        let device = limits(16, 2_048);
        let longest = gaps(mock(device), with(), requests.clone())
            .into_iter()
            .max();
        let report = run(device, with(), requests.clone());
        let first = first_tokens(&report, |row| row.request.get() >= 100);
        let first = percentile(first.into_iter(), 50.0);
        (longest.unwrap().as_millis_f64(), first)
    };
    let rows: [(&str, Make); 4] = [
        ("first-come", || Box::new(FirstCome)),
        ("target 100 ms", || {
            Box::new(InterTokenTarget::new(Span::from_millis(100), 32))
        }),
        ("target 50 ms", || Box::new(InterTokenTarget::default())),
        ("target 20 ms", || {
            Box::new(InterTokenTarget::new(Span::from_millis(20), 32))
        }),
    ];
    for (name, budget) in rows {
        let (longest, first) = serve(budget);
        quoted(
            "inter-token-target",
            &format!("| {name} | {longest:.0} ms | {first:.2} s |"),
        );
    }
}

/// A mock whose every step takes `factor` times as long from some step on.
struct Slower {
    mock: Mock,
    from: u64,
    factor: u64,
}

impl Backend for Slower {
    fn limits(&self) -> Limits {
        self.mock.limits()
    }

    fn execute(&mut self, plan: &StepPlan, outcome: &mut StepOutcome) -> Result<(), BackendError> {
        self.mock.execute(plan, outcome)?;
        if plan.step().get() >= self.from {
            outcome.elapsed = outcome.elapsed * self.factor;
        }
        Ok(())
    }
}

/// Each time between two tokens of one request, with the step's number in which it ended.
fn gaps(backend: impl Backend, policies: Policies, requests: Vec<Request>) -> Vec<Span> {
    let scheduler = Scheduler::new(backend.limits(), policies).unwrap();
    let gaps = Rc::new(RefCell::new(Vec::new()));
    let sink = Rc::clone(&gaps);
    let mut last = BTreeMap::new();
    let simulation = Simulation::new(scheduler, backend).with_observer(move |event| {
        if let EventKind::Token { .. } = event.kind
            && let Some(before) = last.insert(event.request, event.at)
        {
            sink.borrow_mut().push(event.at.since(before));
        }
    });
    let report = simulation.run(&mut Arrivals::new(requests));
    assert_eq!(report.stats.counters.preempted, 0, "or a gap is a wait");
    gaps.take()
}

fn load() -> impl Strategy<Value = Vec<Request>> {
    let one = (0_u64..200, 1_u32..6_000, 1_u32..60, 0_u8..3);
    prop::collection::vec(one, 1..40).prop_map(|many| {
        let mut at_ms = 0;
        let request = |(id, (gap, prompt, output, class))| {
            at_ms += gap;
            request(id, at_ms, prompt, output, class)
        };
        (0..).zip(many).map(request).collect()
    })
}

fn device(decode_us: u64, token_us: u64) -> Mock {
    let points = vec![(1, Span::from_micros(decode_us))];
    let cost = CostModel::new(points, Span::from_micros(token_us), Span::ZERO);
    Mock::new(MockConfig {
        limits: limits(16, 2_048),
        cost: cost.unwrap(),
        ..MockConfig::default()
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(100))]

    /// The stall that the target allows, for any cost that does not change.
    #[test]
    fn no_decode_waits_longer_than_the_target_and_the_least_chunk_allow(
        load in load(),
        decode_us in 100_u64..60_000,
        token_us in 0_u64..400,
        target_ms in 5_u64..80,
        least in 1_u32..100,
    ) {
        let target = Span::from_millis(target_ms);
        let budget = InterTokenTarget::new(target, least);
        // One request alone shows what decodes cost; the others come after it.
        let mut requests = vec![request(999, 0, 2, 4, 0)];
        requests.extend(load.into_iter().map(|request| {
            let at = request.arrival() + Span::from_secs(1);
            Request::new(request.id(), at, request.prompt().clone(), request.output_tokens_max())
                .unwrap()
                .with_class(request.class())
        }));
        let gaps = gaps(device(decode_us, token_us), policies(budget, StrictTiers), requests);
        let token = Span::from_micros(token_us);
        let bound = target.max(Span::from_micros(decode_us) + token * u64::from(least));
        let longest = gaps.iter().max().copied().unwrap_or_default();
        // A last chunk of one token is taken for a decode.
        prop_assert!(longest <= bound + token + Span::from_micros(1), "{longest} of {bound}");
    }

    /// From the first step on: before a step without prompts was measured, one is longer by the
    /// decodes' own time at most.
    #[test]
    fn before_anything_was_measured_it_is_over_by_the_decodes_at_most(
        load in load(),
        decode_us in 100_u64..60_000,
        token_us in 0_u64..400,
        target_ms in 5_u64..80,
        least in 1_u32..100,
    ) {
        let target = Span::from_millis(target_ms);
        let budget = InterTokenTarget::new(target, least);
        let gaps = gaps(device(decode_us, token_us), policies(budget, StrictTiers), load);
        let decodes = Span::from_micros(decode_us);
        let bound = target.max(decodes + Span::from_micros(token_us) * u64::from(least));
        // A last chunk of one token is taken for a decode.
        let rounding = Span::from_micros(token_us + 1);
        let over = gaps.iter().filter(|&&gap| gap > bound + rounding);
        let longest = gaps.iter().max().copied().unwrap_or_default();
        prop_assert!(longest <= bound + decodes + rounding, "{longest} of {bound}");
        // As many as decode at once miss it in such a step.
        prop_assert!(over.count() <= 16 * 8, "of {}", gaps.len());
    }

    /// The same where the device becomes slower in the middle.
    #[test]
    fn a_slower_device_is_over_the_target_for_a_few_steps_only(
        load in load(),
        factor in 1_u64..5,
        from in 10_u64..60,
    ) {
        let target = Span::from_millis(50);
        let slower = Slower { mock: device(5_000, 60), from, factor };
        let budget = InterTokenTarget::new(target, 8);
        let gaps = gaps(slower, policies(budget, StrictTiers), load);
        let (longest, bound) = (gaps.iter().max(), target * factor + Span::from_millis(5 * factor));
        prop_assert!(longest.is_none_or(|&longest| longest <= bound), "{longest:?}");
        let over = gaps.iter().filter(|&&gap| gap > target + target / 10);
        prop_assert!(over.count() <= 16 * 8, "of {}", gaps.len());
    }
}
