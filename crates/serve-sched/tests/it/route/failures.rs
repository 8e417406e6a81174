//! Upstreams that fail, hang, refuse, drain, come back, and one on trial.

use serve_core::RequestId;
use serve_sched::route::{
    Doubt, LeastLoaded, NoUpstream, PredictedEnd, Retry, Route, Standing, Why,
};
use serve_sched::sim::{Fleet, Poisson, SlotEngine, Slots};

use super::sharing::{Failing, plain};
use super::*;
use crate::quoted::quoted;

const WORK: Work<'static> = Work::new(100, 10);

fn fail(router: &mut Router, to: UpstreamId, id: u64, now: Time) -> Option<Retry> {
    send_to(router, to, id, now, &WORK);
    router.ended(now, RequestId::new(id), End::Failed)
}

#[test]
fn five_failures_in_a_row_eject_and_one_answer_brings_back() {
    let mut router = router(3);
    let now = at(1_000);
    for id in 0..5 {
        assert_eq!(router.standing(A), Some(Standing::Serving), "{id}");
        fail(&mut router, A, id, now);
    }
    let until = now + Span::from_secs(10);
    assert_eq!(router.standing(A), Some(Standing::Ejected { until }));
    for id in 10..30 {
        let sent = router.send(now, RequestId::new(id), &WORK).unwrap();
        assert_ne!(sent.upstream, A);
    }
    // The first request after its time is the probe, and while it is under way there is no other.
    let probe = router.send(until, RequestId::new(30), &WORK).unwrap();
    assert_eq!((probe.upstream, probe.why), (A, Why::Probe));
    assert_eq!(router.standing(A), Some(Standing::Probation));
    assert_ne!(
        router
            .send(until, RequestId::new(31), &WORK)
            .unwrap()
            .upstream,
        A
    );
    // It fails: twice as long.
    router.ended(until, RequestId::new(30), End::Failed);
    let until = until + Span::from_secs(20);
    assert_eq!(router.standing(A), Some(Standing::Ejected { until }));
    let probe = router.send(until, RequestId::new(32), &WORK).unwrap();
    assert_eq!((probe.upstream, probe.why), (A, Why::Probe));
    router.ended(until, RequestId::new(32), answered(10));
    assert_eq!(router.standing(A), Some(Standing::Serving));
}

#[test]
fn no_more_than_half_are_ejected_however_many_fail() {
    for upstreams in 1..7 {
        let mut router = router(upstreams);
        for n in 0..u64::from(upstreams) * 20 {
            let to = UpstreamId::new(n as u32 % upstreams);
            if !matches!(router.standing(to), Some(Standing::Ejected { .. })) {
                fail(&mut router, to, n, at(n));
            }
        }
        let ids = (0..upstreams).map(UpstreamId::new);
        let ejected =
            ids.filter(|&id| matches!(router.standing(id), Some(Standing::Ejected { .. })));
        assert_eq!(ejected.count() as u32, upstreams / 2);
        assert!(router.send(at(9_000), RequestId::new(9_999), &WORK).is_ok());
    }
}

/// 400 requests one by one, each in a tenth of a second and two more, `times` as long where `slow` says so: what each upstream
/// has had in the last hundred, and whether the first is ejected.
fn one_by_one(policy: Box<dyn Route>, slow: impl Fn(u64, UpstreamId) -> bool) -> ([u32; 4], bool) {
    let mut router = Router::new(policy, RouterSettings::default());
    (0..4).for_each(|id| router.join(UpstreamId::new(id), Terms::default()));
    let (mut had, mut ejected) = ([0; 4], false);
    for n in 0..400 {
        let (id, now) = (RequestId::new(n), at(n * 1_000));
        let sent = router.send(now, id, &WORK).unwrap();
        let times = if slow(n, sent.upstream) { 5 } else { 1 };
        router.first_token(now + Span::from_millis(40 * times), id);
        router.ended(now + Span::from_millis(120 * times), id, answered(10));
        had[sent.upstream.get() as usize] += u32::from(n >= 300);
        ejected |= matches!(router.standing(A), Some(Standing::Ejected { .. }));
    }
    (had, ejected)
}

#[test]
fn latency_away_from_the_others_ejects_and_latency_of_all_does_not() {
    let (_, ejected) = one_by_one(Box::new(LeastLoaded), |n, to| n >= 100 && to == A);
    assert!(ejected);
    let (_, ejected) = one_by_one(Box::new(LeastLoaded), |n, _| n >= 100);
    assert!(!ejected);
    let (had, _) = one_by_one(Box::new(PredictedEnd), |n, to| n >= 100 && to == A);
    assert!(had[0] <= 5, "it is hardly sent anything: {had:?}");
}

#[test]
fn an_upstream_that_was_slow_for_a_while_has_its_share_again_later() {
    let slow = |n, to| (100..200).contains(&n) && to == A;
    let (had, _) = one_by_one(Box::new(PredictedEnd), slow);
    assert!(had[0] >= 15, "{had:?}");
}

/// An upstream that refuses for want of capacity is left alone for as long as it says, and is never held to be broken.
#[test]
fn busy_is_not_broken() {
    let mut router = router(2);
    let now = at(1_000);
    let busy = |secs| End::Busy {
        retry_after: Some(Span::from_secs(secs)),
    };
    for id in 0..20 {
        send_to(&mut router, A, id, at(1_000 + id * 4_000), &WORK);
        router.ended(at(1_000 + id * 4_000), RequestId::new(id), busy(3));
    }
    let now = now + Span::from_secs(19 * 4);
    let until = now + Span::from_secs(3);
    assert_eq!(router.standing(A), Some(Standing::Busy { until }));
    assert_eq!(
        router
            .send(now, RequestId::new(50), &WORK)
            .unwrap()
            .upstream,
        B
    );
    router.ended(now, RequestId::new(50), busy(1));
    let none = router.send(now, RequestId::new(51), &WORK);
    let retry_after = Span::from_secs(1);
    assert_eq!(none, Err(NoUpstream::Busy { retry_after }));
    let then = now + retry_after;
    assert_eq!(
        router
            .send(then, RequestId::new(51), &WORK)
            .unwrap()
            .upstream,
        B
    );
}

#[test]
fn a_retry_goes_elsewhere_once_and_not_after_the_first_token() {
    let mut router = router(2);
    let now = at(1_000);
    let retry = fail(&mut router, A, 1, now).unwrap();
    assert_eq!(retry.at, now, "at once: it is another");
    let again = Work {
        attempt: retry.attempt,
        ..WORK
    };
    assert_eq!(
        router
            .send(now, RequestId::new(1), &again)
            .unwrap()
            .upstream,
        B
    );
    assert_eq!(
        router.ended(now, RequestId::new(1), End::Failed),
        None,
        "one retry"
    );
    send_to(&mut router, A, 2, now, &WORK);
    router.first_token(now, RequestId::new(2));
    assert_eq!(router.ended(now, RequestId::new(2), End::Failed), None);
    let late = Work {
        deadline: Some(now),
        ..WORK
    };
    send_to(&mut router, A, 3, now, &late);
    assert_eq!(
        router.ended(now, RequestId::new(3), End::Failed),
        None,
        "too late"
    );
    router.leave(A);
    let only = router.send(now, RequestId::new(4), &again).unwrap();
    assert_eq!(only.upstream, B, "it failed at A");
}

#[test]
fn retries_are_a_share_of_the_originals() {
    let mut router = router(2);
    let retries = (0..1_000).filter(|&id| fail(&mut router, A, id, at(1_000)).is_some());
    assert_eq!(retries.count(), 1_000 / 10 + 3);
}

#[test]
fn what_drains_is_sent_nothing_and_ends_what_it_has() {
    let mut router = router(2);
    send_to(&mut router, A, 1, at(0), &WORK);
    router.drain(A);
    assert_eq!(router.standing(A), Some(Standing::Draining));
    for id in 2..12 {
        assert_eq!(
            router
                .send(at(1), RequestId::new(id), &WORK)
                .unwrap()
                .upstream,
            B
        );
    }
    assert_eq!(router.in_flight(A), 1);
    router.ended(at(2), RequestId::new(1), answered(10));
    assert_eq!(router.in_flight(A), 0);
    router.drain(B);
    assert_eq!(
        router.send(at(3), RequestId::new(20), &WORK),
        Err(NoUpstream::Down)
    );
    router.join(A, Terms::default());
    assert!(router.send(at(3), RequestId::new(20), &WORK).is_ok());
}

/// An upstream that fails at once has never anything in flight: what counts requests sends it everything.
#[test]
fn a_replica_that_fails_at_once_is_no_black_hole() {
    let lost = |predicted: bool, settings: RouterSettings| {
        let policy: Box<dyn Route> = match predicted {
            true => Box::new(PredictedEnd),
            false => Box::new(LeastLoaded),
        };
        let engines = (0..4).map(|seed| {
            let per_mille = if seed == 0 { 1_000 } else { 0 };
            Failing::new(SlotEngine::new(Slots::default()), seed, per_mille)
        });
        let router = Router::new(policy, settings);
        let mut fleet = Fleet::new(vec![router], engines.collect(), Terms::default());
        let requests = Poisson::new(1, 40.0).zip(0..4_000);
        let mut lost = 0;
        fleet.run(requests.map(|(at, id)| plain(id, at, 100, 50)), |row| {
            lost += u32::from(row.usage.is_none())
        });
        lost
    };
    let never = RouterSettings {
        ejected_percent_max: 0,
        ..RouterSettings::default()
    };
    for predicted in [true, false] {
        let (ejecting, control) = (
            lost(predicted, RouterSettings::default()),
            lost(predicted, never),
        );
        assert!(ejecting <= 10, "{ejecting}");
        assert!(control > 300, "{control}");
    }
    let said = format!(
        "loses {} of 4,000 requests, and {} without ejection",
        lost(true, RouterSettings::default()),
        lost(true, never)
    );
    quoted("predicted-end", &said);
}

/// A new revision takes 5 of 100 requests, fails so many of a hundred, or takes so many times as long; requests it has had
/// when it loses its share, or `None` if it keeps it for 20,000 requests of all.
fn until_it_loses_its_share(fails_percent: u64, times: u64) -> (Option<u32>, Option<Standing>) {
    let mut router = router(3);
    let canary = UpstreamId::new(9);
    router.join(
        canary,
        Terms {
            trial_percent: Some(5),
            ..Terms::default()
        },
    );
    let mut rng = serve_core::rng::Rng::new(4);
    let mut had = 0;
    for n in 0..20_000 {
        let (id, now) = (RequestId::new(n), at(n * 1_000));
        let sent = router.send(now, id, &WORK).unwrap();
        let is_canary = sent.upstream == canary;
        had += u32::from(is_canary);
        let fails = rng.below(100) < if is_canary { fails_percent } else { 0 };
        let factor = if is_canary { times } else { 100 };
        let took = (80 + rng.below(41)) * factor / 100;
        if !fails {
            router.first_token(now + Span::from_millis(took), id);
        }
        let end = if fails { End::Failed } else { answered(10) };
        router.ended(now + Span::from_millis(4 * took), id, end);
        if matches!(router.standing(canary), Some(Standing::Worse(_))) {
            return (Some(had), router.standing(canary));
        }
    }
    assert_eq!(had, 1_000, "five of a hundred, to the request");
    (None, router.standing(canary))
}

#[test]
fn a_new_revision_loses_its_share_when_it_is_worse() {
    let (alike, standing) = until_it_loses_its_share(0, 100);
    assert_eq!((alike, standing), (None, Some(Standing::OnTrial)));
    let (broken, standing) = until_it_loses_its_share(100, 100);
    assert_eq!(standing, Some(Standing::Worse(Doubt::Failures)));
    let (failing, standing) = until_it_loses_its_share(20, 100);
    assert_eq!(standing, Some(Standing::Worse(Doubt::Failures)));
    let (slow, standing) = until_it_loses_its_share(0, 150);
    assert_eq!(standing, Some(Standing::Worse(Doubt::Latency)));
    let said = format!(
        "after {} of its requests if all fail, after {} if one in five does, after {} if each takes half as long again",
        broken.unwrap(),
        failing.unwrap(),
        slow.unwrap()
    );
    quoted("predicted-end", &said);
}

#[test]
fn what_is_found_worse_gets_nothing_until_it_joins_anew() {
    let mut router = router(1);
    let trial = Terms {
        trial_percent: Some(50),
        ..Terms::default()
    };
    router.join(B, trial);
    for id in 0..6 {
        fail(&mut router, B, id, at(id));
    }
    assert_eq!(router.standing(B), Some(Standing::Worse(Doubt::Failures)));
    for id in 10..30 {
        assert_eq!(
            router
                .send(at(10), RequestId::new(id), &WORK)
                .unwrap()
                .upstream,
            A
        );
    }
    router.join(B, trial);
    assert_eq!(router.standing(B), Some(Standing::OnTrial));
}
