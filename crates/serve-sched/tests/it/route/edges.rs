//! Numbers that lie, costs that are no numbers, upstreams that come back, and none that is left but the ejected.

use proptest::prelude::*;
use serve_core::RequestId;
use serve_sched::route::{Candidate, LeastLoaded, Route, Standing, View};

use super::*;

/// A cost for each upstream, by its number.
struct Costs(Vec<f64>);

impl Route for Costs {
    fn name(&self) -> &'static str {
        "costs"
    }

    fn cost(&self, _: &Work<'_>, candidate: &Candidate) -> f64 {
        self.0[candidate.upstream.get() as usize]
    }
}

fn extreme() -> impl Strategy<Value = u64> {
    prop_oneof![
        Just(0),
        Just(1),
        Just(u64::from(u32::MAX)),
        Just(u64::MAX - 1),
        Just(u64::MAX)
    ]
}

proptest! {
    /// A cost that is no number is the highest, whatever its sign, and there is one zero.
    #[test]
    fn the_lowest_cost_is_chosen_and_no_number_is_the_highest(
        costs in prop::collection::vec(
            prop::sample::select(vec![f64::NAN, -f64::NAN, f64::INFINITY, -f64::INFINITY, 0.0, -0.0, 1.0]),
            2..6,
        ),
    ) {
        let mut router = Router::new(Box::new(Costs(costs.clone())), RouterSettings::default());
        (0..costs.len() as u32).for_each(|id| router.join(UpstreamId::new(id), Terms::default()));
        let least = costs.iter().copied().fold(f64::NAN, f64::min);
        let equal = |cost: f64| cost == least || (cost.is_nan() && least.is_nan());
        let equals = costs.iter().filter(|cost| equal(**cost)).count();
        let mut chosen = std::collections::BTreeSet::new();
        for id in 0..equals as u64 {
            let sent = router.send(at(0), RequestId::new(id), &Work::new(100, 10)).unwrap();
            prop_assert!(equal(costs[sent.upstream.get() as usize]), "{costs:?}");
            chosen.insert(sent.upstream);
        }
        prop_assert_eq!(chosen.len(), equals, "of equals the one that was given the least");
    }

    /// An upstream that says that it has more than there can be is full, not empty, and nothing overflows.
    #[test]
    fn an_upstream_that_lies_of_its_load_is_taken_at_its_word(
        (in_flight, waiting, waiting_tokens, running_tokens) in
            (extreme(), extreme(), extreme(), extreme()),
        tokens in prop::sample::select(vec![0, 1, 100, u32::MAX]),
    ) {
        for policy in [Box::new(PredictedEnd) as Box<dyn Route>, Box::new(LeastLoaded)] {
            let mut router = Router::new(policy, RouterSettings::default());
            [A, B].iter().for_each(|&id| router.join(id, Terms::default()));
            let view = View {
                at: at(10),
                in_flight: u32::try_from(in_flight).unwrap_or(u32::MAX),
                waiting: u32::try_from(waiting).unwrap_or(u32::MAX),
                waiting_tokens,
                running_tokens,
            };
            router.report(at(10), A, &view);
            for id in 0..8_u64 {
                let request = RequestId::new(id);
                let sent = router.send(at(11 + id), request, &Work::new(tokens, tokens)).unwrap();
                if in_flight > 8 && waiting > 8 && waiting_tokens > u64::from(u32::MAX) {
                    prop_assert!(sent.upstream == B || tokens == u32::MAX);
                }
                if id % 2 == 0 {
                    router.first_token(at(12 + id), request);
                    router.ended(at(12 + id), request, answered(tokens));
                }
            }
        }
    }
}

/// What an upstream has lost it is given no credit for, be it known by a chain or by a conversation.
#[test]
fn what_an_upstream_has_lost_is_not_cached_there() {
    let chain: Vec<u64> = (0..20).collect();
    let by_chain = Work {
        prefix: &chain,
        ..Work::new(400, 10)
    };
    let by_session = Work {
        session: Some(7),
        ..Work::new(400, 10)
    };
    let again = |router: &mut Router| {
        router.leave(A);
        router.join(A, Terms::default());
    };
    let smaller = |router: &mut Router| {
        let cache_blocks = 0;
        router.join(
            A,
            Terms {
                cache_blocks,
                ..Terms::default()
            },
        );
    };
    let loses: [fn(&mut Router); 3] = [|router| router.emptied(A), again, smaller];
    for work in [by_chain, by_session] {
        for lose in loses {
            let mut router = router(1);
            serve(&mut router, 1, at(0), &work, 50);
            let before = router.send(at(100), RequestId::new(2), &work).unwrap();
            assert!(before.cached_tokens > 0);
            lose(&mut router);
            let after = router.send(at(200), RequestId::new(3), &work).unwrap();
            assert_eq!(after.cached_tokens, 0, "{work:?}");
        }
        let mut drained = router(1);
        serve(&mut drained, 1, at(0), &work, 50);
        drained.drain(A);
        drained.join(A, Terms::default());
        let after = drained.send(at(100), RequestId::new(2), &work).unwrap();
        assert!(after.cached_tokens > 0, "nothing was lost: {work:?}");
    }
}

/// One that joins anew is held to nothing of before: not to be busy, nor on probation for a probe that was sent then.
#[test]
fn one_that_joins_anew_is_neither_busy_nor_on_probation() {
    let mut busy = router(1);
    let request = RequestId::new(1);
    busy.send(at(0), request, &Work::new(100, 10)).unwrap();
    busy.ended(
        at(1),
        request,
        End::Busy {
            retry_after: Some(Span::from_secs(9)),
        },
    );
    busy.join(A, Terms::default());
    assert_eq!(busy.standing(A), Some(Standing::Serving));

    let mut router = router(2);
    for id in 0..5 {
        send_to(&mut router, A, id, at(id), &Work::new(100, 10));
        router.ended(at(id), RequestId::new(id), End::Failed);
    }
    assert!(matches!(router.standing(A), Some(Standing::Ejected { .. })));
    let now = at(20_000);
    let probe = router.send(now, request, &Work::new(100, 10)).unwrap();
    assert_eq!(probe.upstream, A);
    router.join(A, Terms::default());
    router.ended(now, request, End::Failed);
    assert_eq!(
        router.standing(A),
        Some(Standing::Serving),
        "one failure of five"
    );
}

/// Where only such are left that no policy is asked of, the policy is asked of those.
#[test]
fn where_only_the_ejected_are_left_they_share_the_requests() {
    for only_trials in [false, true] {
        let mut router = Router::new(Box::new(LeastLoaded), RouterSettings::default());
        for id in 0..8 {
            let trial_percent = (only_trials && id < 4).then_some(0);
            let terms = Terms {
                trial_percent,
                ..Terms::default()
            };
            router.join(UpstreamId::new(id), terms);
        }
        if !only_trials {
            for id in 0..20 {
                let to = UpstreamId::new(id as u32 / 5);
                send_to(&mut router, to, id, at(id), &Work::new(100, 10));
                router.ended(at(id), RequestId::new(id), End::Failed);
                assert!(
                    id % 5 < 4 || matches!(router.standing(to), Some(Standing::Ejected { .. }))
                );
            }
        }
        (4..8).for_each(|id| router.drain(UpstreamId::new(id)));
        for id in 100..120 {
            router
                .send(at(50), RequestId::new(id), &Work::new(100, 10))
                .unwrap();
        }
        let given = [0, 1, 2, 3].map(|id| router.in_flight(UpstreamId::new(id)));
        assert_eq!(given, [5; 4], "trials: {only_trials}");
    }
}

/// Shares that are more than all there is are cut alike.
#[test]
fn trials_of_more_than_all_requests_have_like_shares() {
    for trials in [2, 3, 5, 8] {
        let mut router = router(1);
        for id in 1..=trials {
            let terms = Terms {
                trial_percent: Some(50),
                ..Terms::default()
            };
            router.join(UpstreamId::new(id), terms);
        }
        for id in 0..u64::from(trials) * 100 {
            router
                .send(at(0), RequestId::new(id), &Work::new(100, 10))
                .unwrap();
        }
        for id in 1..=trials {
            let given = router.in_flight(UpstreamId::new(id));
            assert!(
                (90..=110).contains(&given),
                "{given} of 100 at {id} of {trials}"
            );
        }
    }
}

/// Blocks of which the upstream says that they are gone, one by one and in any order, or that its room has made us forget.
#[test]
fn a_chain_is_cached_up_to_the_first_block_that_is_gone() {
    let chain: Vec<u64> = (1..=8).collect();
    let cached = |router: &mut Router| {
        let work = Work {
            prefix: &chain,
            block_tokens: 16,
            ..Work::new(200, 10)
        };
        router
            .send(at(0), RequestId::new(1), &work)
            .unwrap()
            .cached_tokens
    };
    for gone in 0..chain.len() {
        let mut router = router(1);
        router.stored(UpstreamId::new(0), &chain);
        router.evicted(UpstreamId::new(0), &chain[gone..=gone]);
        assert_eq!(
            cached(&mut router),
            16 * gone as u32,
            "without block {gone}"
        );
    }
    let mut router = Router::new(Box::new(LeastLoaded), RouterSettings::default());
    let terms = Terms {
        cache_blocks: 8,
        ..Terms::default()
    };
    router.join(UpstreamId::new(0), terms);
    for block in &chain {
        router.stored(UpstreamId::new(0), &[*block]);
    }
    router.stored(UpstreamId::new(0), &[100, 101]);
    assert_eq!(cached(&mut router), 0, "the first two were forgotten");
}
