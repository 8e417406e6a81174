//! What each limit does in front of an engine, and what it does not mind.

use serve_core::Limits;
use serve_core::mock::{CostModel, Mock, MockConfig};
use serve_core::rng::Rng;
use serve_sched::limit::{Aimd, AimdSettings, Gradient, GradientSettings};
use serve_sched::sim::{Behaviour, SlotEngine, SteppedEngine};
use serve_sched::{Policies, Scheduler};

use super::*;
use crate::quoted::quoted;

#[test]
fn it_settles_somewhat_above_what_the_engine_serves_side_by_side() {
    for n in [1, 4, 16, 64] {
        let engine = SlotEngine::new(slots(n));
        let (_, log) = watch(Gradient::default(), engine, backlog(20_000));
        let ratio = f64::from(log.settled()) / f64::from(n);
        let most = if n == 1 { 4.5 } else { 2.5 };
        assert!((1.0..=most).contains(&ratio), "{ratio} x {n} slots");
    }
}

#[test]
fn a_start_finds_sixty_four_slots_in_tens_of_requests() {
    let (_, log) = watch(
        Gradient::default(),
        SlotEngine::new(slots(64)),
        backlog(2_000),
    );
    let limits = log.limits();
    let found = 1 + limits.iter().position(|&limit| limit >= 64).unwrap();
    assert!(found < 100, "{found} requests");
    // It does not run away: it stops within one doubling of what the engine serves.
    assert!(limits.iter().all(|&limit| limit <= 128));
    quoted("gradient", &format!("from 8 to 64 in {found} requests"));
    let honest = Slots {
        queue_max: Some(0),
        ..slots(64)
    };
    let (_, log) = watch(Aimd::default(), SlotEngine::new(honest), backlog(2_000));
    let limits = log.limits();
    let found = 1 + limits.iter().position(|&limit| limit >= 57).unwrap();
    assert!(found < 100, "{found} requests");
    let late = &limits[300..];
    assert!(late.iter().all(|limit| (50..=70).contains(limit)));
}

/// The limit after each of `requests`, in front of an engine that never queues.
fn of_an_engine_that_is_never_full(
    behaviour: impl FnMut(&Request) -> Behaviour + 'static,
    requests: Vec<Request>,
) -> Vec<u32> {
    let engine = SlotEngine::new(Slots {
        prompt_token: Span::from_millis(1),
        ..slots(1_000)
    });
    let engine = engine.with_behaviour(behaviour);
    watch(Gradient::default(), engine, requests).1.limits()
}

#[test]
fn mistakes_of_clients_are_no_overload() {
    for percent in [1, 2, 5, 10, 50] {
        let mut rng = Rng::new(3);
        let behaviour = move |_: &Request| match rng.below(100) < percent {
            true => Behaviour::Mistake,
            false => Behaviour::Serve,
        };
        let limits = of_an_engine_that_is_never_full(behaviour, backlog(20_000));
        let high = limits[2_000..].iter().filter(|&&limit| limit == 256);
        let share = high.count() as f64 / (limits.len() - 2_000) as f64;
        assert!(share > 0.8, "{percent}%: at its highest for {share}");
    }
}

/// Requests of these sizes, all at once, and an engine that never queues: for which part of the time,
/// after the first `settled` requests, the limit was not near its highest.
fn low_in_front_of_never_full(settled: usize, sizes: impl Fn(u64) -> (u32, u32)) -> f64 {
    let requests = (0..40_000).map(|id| {
        let (prompt, output) = sizes(id);
        request(id, Time::ZERO, prompt, output)
    });
    let limits = of_an_engine_that_is_never_full(|_| Behaviour::Serve, requests.collect());
    let late = &limits[settled..];
    let low = late.iter().filter(|&&limit| limit < 200).count();
    low as f64 / late.len() as f64
}

/// Tokens of the n-th request's prompt and of its answer.
type Sizes = fn(u64) -> (u32, u32);

#[test]
fn sizes_are_not_load_however_they_mix_and_change() {
    // 500 ms of prompt, then 100 tokens of 10 ms; from the middle on, 5 of them; and back.
    let shorter = |id: u64| (500, if id < 20_000 { 100 } else { 5 });
    let longer = |id: u64| (500, if id < 20_000 { 5 } else { 100 });
    let in_turns = |id: u64| {
        (
            500,
            if (id / 1_000).is_multiple_of(2) {
                100
            } else {
                5
            },
        )
    };
    let mixed = |id: u64| (100, if id.is_multiple_of(2) { 1 } else { 200 });
    let few_long_prompts = |id: u64| (if id % 10 == 7 { 6_000 } else { 100 }, 50);
    let prompts_grow = |id: u64| (if id < 20_000 { 50 } else { 4_000 }, 20);
    let sizes: [(&str, Sizes); 6] = [
        ("shorter", shorter),
        ("longer", longer),
        ("in turns", in_turns),
        ("mixed", mixed),
        ("few long prompts", few_long_prompts),
        ("prompts grow", prompts_grow),
    ];
    for (name, sizes) in sizes {
        let low = low_in_front_of_never_full(3_000, sizes);
        assert!(low < 0.1, "{name}: below 200 of 256 for {low} of the time");
    }
}

#[test]
fn it_follows_an_engine_that_loses_capacity_or_becomes_slower() {
    let at = Time::from_secs(300);
    let engine = SlotEngine::new(slots(32)).becoming(at, slots(8));
    let (_, log) = watch(Gradient::default(), engine, backlog(100_000));
    let less = log.settled();
    assert!((8..=20).contains(&less), "{less} on 8 slots");
    let slow = Slots {
        output_token: Span::from_millis(100),
        ..slots(32)
    };
    let engine = SlotEngine::new(slots(32)).becoming(at, slow);
    let (_, log) = watch(Gradient::default(), engine, backlog(100_000));
    let slower = log.settled();
    assert!((32..=80).contains(&slower), "{slower} on 32 slots, slower");
}

#[test]
fn a_limit_that_is_not_used_does_not_grow() {
    // Two at a time.
    let requests = arrivals(10.0, 5_000, |_| (4, 10));
    let (_, log) = watch(Gradient::default(), SlotEngine::new(slots(64)), requests);
    assert!(log.limits().iter().all(|&limit| limit <= 16));
}

/// Requests with a second to live, as many as may be with the engine at a time.
fn hung(limit: impl Concurrency + 'static, requests: u64) -> Vec<u32> {
    let engine = SlotEngine::new(slots(1_000)).with_behaviour(|_| Behaviour::Hang);
    let deadline = |id: u64| Time::from_secs(1 + id / 8);
    let each = |id: u64| {
        let at = Time::from_secs(id / 8);
        request(id, at, 4, 10).with_deadline(Some(deadline(id)))
    };
    watch(limit, engine, (0..requests).map(each).collect())
        .1
        .limits()
}

#[test]
fn an_engine_that_hangs_brings_every_limit_down_to_its_least() {
    assert_eq!(hung(Gradient::default(), 400).last(), Some(&1));
    assert_eq!(hung(Aimd::default(), 400).last(), Some(&1));
}

/// It has answered thousands before, and those that wait have less and less time left when they are
/// sent.
#[test]
fn an_engine_that_hangs_after_a_while_does_so_too() {
    for load in [0.5, 1.0, 2.0, 4.0] {
        // 64 slots of 130 ms each: about 490 a second.
        let requests = arrivals(490.0 * load, 20_000, |id| (4, 10 + (id % 7) as u32));
        let from = requests[10_000].arrival();
        let with_deadline = requests.into_iter().map(|request| {
            let deadline = request.arrival() + Span::from_secs(1);
            request.with_deadline(Some(deadline))
        });
        let engine = SlotEngine::new(slots(64)).with_behaviour(move |request| {
            match request.arrival() < from {
                true => Behaviour::Serve,
                false => Behaviour::Hang,
            }
        });
        let (_, log) = watch(Gradient::default(), engine, with_deadline.collect());
        let limits = log.limits();
        assert_eq!(limits.last(), Some(&1), "at {load} times the load");
    }
}

#[test]
fn what_fails_together_is_one_cut() {
    for together in [8, 64, 256] {
        let settings = GradientSettings {
            limit_initial: together,
            ..GradientSettings::default()
        };
        let mut gradient = Gradient::new(settings).unwrap();
        let settings = AimdSettings {
            limit_initial: together,
            ..AimdSettings::default()
        };
        let mut aimd = Aimd::new(settings).unwrap();
        let departure = Departure {
            took: Span::from_secs(1),
            first_token: None,
            prompt_tokens: 4,
            output_tokens: 0,
            in_flight: together,
            signal: Signal::Overloaded,
        };
        let now = Time::from_secs(1);
        for _ in 0..together {
            gradient.left(now, &departure);
            aimd.left(now, &departure);
        }
        let least = together / 2;
        assert!((least..together).contains(&gradient.limit()));
        assert_eq!(aimd.limit(), (f64::from(together) * 0.9) as u32);
    }
}

/// After how many departures the limit was cut for a probe.
fn probes(seed: u64) -> Vec<usize> {
    let settings = GradientSettings {
        seed,
        probe_every: 20,
        ..GradientSettings::default()
    };
    let limit = Gradient::new(settings).unwrap();
    let engine = SlotEngine::new(slots(16));
    let limits = watch(limit, engine, backlog(20_000)).1.limits();
    let cut = |pair: &[u32]| pair[1] * 3 < pair[0];
    let steps = limits.windows(2).enumerate();
    steps
        .filter(|(_, pair)| cut(pair))
        .map(|(n, _)| n)
        .collect()
}

#[test]
fn dispatchers_that_started_together_do_not_probe_together() {
    let (one, same, other) = (probes(1), probes(1), probes(2));
    assert!(one.len() > 20, "{}", one.len());
    assert_eq!(one, same);
    let together = one.iter().filter(|&at| other.contains(at)).count();
    assert!(together * 5 < one.len(), "{together} of {}", one.len());
}

#[test]
fn at_its_least_it_measures_anew() {
    // Pinned by a baseline of a faster engine, it would stay where it is until the next probe.
    let settings = GradientSettings {
        probe_every: 100_000,
        ..GradientSettings::default()
    };
    let slow = Slots {
        output_token: Span::from_millis(200),
        ..slots(16)
    };
    let engine = SlotEngine::new(slots(16)).becoming(Time::from_secs(100), slow);
    let limit = Gradient::new(settings).unwrap();
    let (_, log) = watch(limit, engine, backlog(25_000));
    let settled = log.settled();
    assert!((16..=40).contains(&settled), "{settled}");
}

/// Tokens a second over the first 100 s of a run in front of a scheduler on the mock, whose decode step
/// takes longer the more it serves and which runs prompts in the same steps; the mean time from being
/// sent to the end, and the mean limit.
fn in_front_of_a_scheduler(limit: Box<dyn Concurrency>, long_prompts: bool) -> (f64, f64, f64) {
    let limits = Limits {
        sequences_max: 64,
        step_tokens_max: 2_048,
        context_max: 32_768,
        block_size: 16,
        blocks: 64 * 256 + 1,
    };
    let step = |slots, micros| (slots, Span::from_micros(micros));
    let steps = vec![step(1, 16_000), step(16, 17_760), step(64, 24_000)];
    let config = MockConfig {
        limits,
        cost: CostModel::new(steps, Span::from_micros(60), Span::ZERO).unwrap(),
        ..MockConfig::default()
    };
    let scheduler = Scheduler::new(limits, Policies::default()).unwrap();
    let engine = SteppedEngine::new(scheduler, Mock::new(config));
    let mut rng = Rng::new(9);
    let times = Poisson::new(2, 60.0).zip(0_u32..6_000);
    let requests = times.map(|(at, id)| {
        let prompt = match long_prompts {
            true if rng.below(10) == 0 => 6_000,
            true => 100,
            false => 1 + rng.exponential(200.0) as u32,
        };
        let output = 1 + rng.exponential(100.0) as u32;
        // Prompts share nothing, as the scheduler would reuse what they share.
        let token = |at| TokenId::new(id.wrapping_mul(100_003) ^ at);
        let tokens: Vec<_> = (0..prompt).map(token).collect();
        Request::new(RequestId::new(id.into()), at, tokens, output).unwrap()
    });
    let until = Time::from_secs(100);
    let (report, mean) = run(limit, Vec::new(), engine, requests.collect());
    let rows: Vec<_> = report.rows.iter().filter(|row| row.end <= until).collect();
    let tokens: u32 = rows.iter().map(|row| row.usage.output_tokens).sum();
    let inside = rows.iter().map(|row| row.end.since(row.started.unwrap()));
    let inside = inside.sum::<Span>().as_secs_f64() / rows.len() as f64;
    (f64::from(tokens) / 100.0, inside, mean)
}

#[test]
fn in_front_of_a_scheduler_the_start_costs_little() {
    let of = |tolerance, long_prompts| {
        let settings = GradientSettings {
            tolerance,
            ..GradientSettings::default()
        };
        let limit = Gradient::new(settings).unwrap();
        in_front_of_a_scheduler(Box::new(limit), long_prompts)
    };
    let fixed = |long| in_front_of_a_scheduler(Box::new(Fixed::new(64)), long);
    let told = |(tokens, inside, mean): (f64, f64, f64), (all, control, _): (f64, f64, f64)| {
        let part = 100.0 * tokens / all;
        format!(
            "{tokens:.0} tokens a second of the {all:.0} with 64 fixed ({part:.0}%), {inside:.1} s in \
             the engine and not {control:.1}, at a mean limit of {mean:.0}"
        )
    };
    let (chats, control) = (of(1.5, false), fixed(false));
    quoted("gradient", &told(chats, control));
    assert!(chats.0 > 0.95 * control.0);
    // Each long prompt slows all others down: latency rises long before the slots are full.
    let (long, control) = (of(1.5, true), fixed(true));
    quoted("gradient", &told(long, control));
    assert!(long.1 < 0.7 * control.1);
    let tolerant = of(3.0, true);
    quoted("gradient", &told(tolerant, control));
    assert!(tolerant.0 > 0.95 * control.0);
}
