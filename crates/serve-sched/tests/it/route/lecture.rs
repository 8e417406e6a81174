//! Worked examples of routing from a lecture on serving systems, with its numbers.

use serve_core::{RequestId, Time};
use serve_sched::RetrySettings;
use serve_sched::route::{LeastLoaded, PredictedEnd, Route, Router, RouterSettings, Terms, Work};
use serve_sched::sim::{Fleet, Poisson, RoutedRow, SlotEngine, Slots};

use super::sharing::{Failing, plain};
use super::*;
use crate::quoted::quoted;

/// Worker A has the prompt cached and a queue of 300 ms; B would have to run it, 120 ms, behind 20 ms.
#[test]
fn cached_behind_a_queue_loses_to_uncached_behind_a_short_one() {
    let mut router = router(2);
    taught(&mut router);
    let chain: Vec<u64> = (1..=10).collect();
    router.stored(A, &chain);
    let now = at(100_000);
    send_to(&mut router, A, 1, now, &Work::new(300, 1));
    send_to(&mut router, B, 2, now, &Work::new(20, 1));
    let work = Work {
        prefix: &chain,
        block_tokens: 10,
        ..Work::new(120, 1)
    };
    let chosen = router.send(now, RequestId::new(3), &work).unwrap();
    assert_eq!((chosen.upstream, chosen.cached_tokens), (B, 0));
    assert!(near(chosen.first_token, 140), "{}", chosen.first_token);
    router.ended(now, RequestId::new(3), End::Ignored);
    let cached = send_to(&mut router, A, 4, now, &work);
    assert_eq!(cached.cached_tokens, 100);
    assert!(near(cached.first_token, 320), "{}", cached.first_token);
    quoted(
        "predicted-end",
        "320 ms where it is cached, 140 ms where it is not",
    );
}

/// The same with no queue at A: then the cached prefix is worth what it saves.
#[test]
fn cached_behind_no_queue_wins() {
    let mut router = router(2);
    taught(&mut router);
    let chain: Vec<u64> = (1..=10).collect();
    router.stored(A, &chain);
    let work = Work {
        prefix: &chain,
        block_tokens: 10,
        ..Work::new(120, 1)
    };
    let sent = router.send(at(100_000), RequestId::new(1), &work).unwrap();
    assert_eq!(sent.upstream, A);
    assert!(near(sent.first_token, 20), "{}", sent.first_token);
}

/// A has two prompts of 128 tokens, B two of 4,096: of twenty more short ones, how many go to A?
fn of_twenty(policy: Box<dyn Route>) -> u32 {
    let mut router = Router::new(policy, RouterSettings::default());
    router.join(A, Terms::default());
    router.join(B, Terms::default());
    taught(&mut router);
    let now = at(100_000);
    for id in 0..2 {
        send_to(&mut router, A, id, now, &Work::new(128, 1));
        send_to(&mut router, B, 10 + id, now, &Work::new(4_096, 1));
    }
    for id in 20..40 {
        router
            .send(now, RequestId::new(id), &Work::new(128, 1))
            .unwrap();
    }
    router.in_flight(A) - 2
}

#[test]
fn equal_counts_do_not_hide_thirty_two_times_the_work() {
    let (predicted, counted) = (
        of_twenty(Box::new(PredictedEnd)),
        of_twenty(Box::new(LeastLoaded)),
    );
    assert_eq!((predicted, counted), (20, 10));
    let said = format!("sends {predicted} of 20 more to the one with 256 tokens");
    quoted("predicted-end", &said);
    let said = format!("{counted} of 20 more go to the one with 8,192 tokens");
    quoted("least-loaded", &said);
}

/// 0.2 s spent, 3.9 s of queue and 1.4 s of service miss a deadline of 5 s; another replica keeps it.
#[test]
fn a_deadline_that_one_queue_misses_is_kept_elsewhere() {
    let mut router = router(2);
    taught(&mut router);
    let (sent, now) = (at(100_000), at(100_200));
    send_to(&mut router, A, 1, now, &Work::new(3_900, 1));
    send_to(&mut router, B, 2, now, &Work::new(2_000, 1));
    let deadline = sent + Span::from_secs(5);
    let work = Work {
        deadline: Some(deadline),
        ..Work::new(1_400, 1)
    };
    let there = send_to(&mut router, A, 3, now, &work);
    assert!(near((now + there.end).since(sent), 5_500) && now + there.end > deadline);
    router.ended(now, RequestId::new(3), End::Ignored);
    let chosen = router.send(now, RequestId::new(4), &work).unwrap();
    assert_eq!(chosen.upstream, B);
    assert!(now + chosen.end < deadline);
}

/// Of 2,000 parents with 20 branches each, the part whose branches are all in time, where each branch is lost with a
/// probability of one in a hundred and its router learns that after 200 ms, and how many attempts that took.
fn parents_in_time(retries: RetrySettings) -> (f64, f64) {
    const BRANCHES: u64 = 20;
    let settings = RouterSettings {
        retries,
        // Here every upstream is as good as the others.
        ejected_percent_max: 0,
        ..RouterSettings::default()
    };
    let slots = Slots {
        slots: 64,
        prompt_token: Span::ZERO,
        ..Slots::default()
    };
    let engines = (0..20).map(|seed| Failing::new(SlotEngine::new(slots), seed, 10));
    let router = Router::new(Box::new(PredictedEnd), settings);
    let mut fleet = Fleet::new(vec![router], engines.collect(), Terms::default());
    let parents = Poisson::new(3, 20.0).zip(0..2_000_u64);
    let branches = parents.flat_map(|(at, parent)| {
        (0..BRANCHES).map(move |branch| plain(parent * BRANCHES + branch, at, 100, 10))
    });
    let mut in_time = vec![0_u64; 2_000];
    let mut attempts = 0;
    fleet.run(branches, |row: &RoutedRow| {
        attempts += row.attempts;
        let is_answered = row.usage.is_some() && row.end.since(row.arrival) < Span::from_secs(1);
        let parent = (row.request.get() / BRANCHES) as usize;
        in_time[parent] += u64::from(is_answered);
    });
    let whole = in_time.iter().filter(|&&branches| branches == BRANCHES);
    let each = f64::from(attempts) / 2_000.0 / BRANCHES as f64;
    (whole.count() as f64 / 2_000.0, each)
}

#[test]
fn twenty_branches_of_which_each_is_in_time_in_99_of_100_are_so_together_in_82() {
    let none = RetrySettings {
        attempts_max: 1,
        ..RetrySettings::default()
    };
    let (alone, _) = parents_in_time(none);
    let expected = 0.99_f64.powi(20);
    assert!(
        (expected - 0.818).abs() < 0.0005 && (alone - expected).abs() < 0.02,
        "{alone}"
    );
    let (retried, attempts) = parents_in_time(RouterSettings::default().retries);
    assert!(retried > 0.99, "{retried}");
    let said = format!(
        "{:.1}% of 2,000 parents are in time without a retry, {:.1}% with one, which takes {attempts:.2} attempts a branch",
        100.0 * alone,
        100.0 * retried
    );
    quoted("predicted-end", &said);
}

/// Nothing here reads a clock or a generator that is not seeded.
#[test]
fn the_same_calls_give_the_same_choices() {
    let run = || -> Vec<String> {
        let mut router = router(5);
        let mut rng = serve_core::rng::Rng::new(1);
        let choices = (0..400).map(|n| {
            let work = Work::new(1 + rng.below(900) as u32, 1 + rng.below(90) as u32);
            let id = RequestId::new(n);
            let now = Time::from_millis(n * 7);
            let sent = router.send(now, id, &work).unwrap();
            if n >= 10 {
                router.first_token(now, RequestId::new(n - 10));
                router.ended(now, RequestId::new(n - 10), answered(9));
            }
            format!("{sent:?}")
        });
        choices.collect()
    };
    assert_eq!(run(), run());
}
