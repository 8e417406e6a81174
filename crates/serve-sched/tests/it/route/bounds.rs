//! How uneven prefixes can make it: the two bounds of the page, however requests come.

use proptest::prelude::*;
use serve_core::RequestId;
use serve_sched::route::PredictedEnd;

use super::*;

/// A request: prompt tokens, tokens of the answer, and how many blocks of which prefix.
type Drawn = (u32, u32, u64, usize);

fn drawn() -> impl Strategy<Value = Vec<Drawn>> {
    prop::collection::vec((1_u32..4_000, 1_u32..400, 0_u64..4, 0_usize..120), 1..120)
}

fn chain(prefix: u64, blocks: usize) -> Vec<u64> {
    (0..blocks as u64)
        .map(|block| prefix * 1_000 + block)
        .collect()
}

/// The bound is on the end, not on the queue: where one holds much and its steps are longer for it, the queue of the other grows.
#[test]
fn a_queue_is_longer_where_its_steps_are_shorter() {
    let mut router = router(2);
    for n in 0..64_u64 {
        // A millisecond for each prompt token, 10 us between tokens for each one held.
        let (id, now, prompt) = (RequestId::new(n), at(n * 10_000), 50 + 20 * (n % 11) as u32);
        router.send(now, id, &Work::new(prompt, 101)).unwrap();
        let first = now + Span::from_millis(u64::from(prompt));
        router.first_token(first, id);
        let end = first + Span::from_millis(u64::from(prompt + 50));
        router.ended(end, id, answered(101));
    }
    let (long, now) = (RequestId::new(100), at(700_000));
    send_to(&mut router, A, 100, now, &Work::new(50_000, 101));
    router.first_token(now + Span::from_millis(50_000), long);
    let now = now + Span::from_millis(50_001);
    for id in 200..220 {
        let sent = router
            .send(now, RequestId::new(id), &Work::new(100, 101))
            .unwrap();
        assert_eq!(sent.upstream, B);
        // At A: no queue, 100 ms for the prompt, a hundred steps of half a second.
        assert!(sent.end < Span::from_millis(50_250), "{:?}", sent.end);
    }
}

proptest! {
    /// While none ends, the upstream with the most ahead has no more than the one with the least and one whole request.
    #[test]
    fn no_queue_is_longer_than_the_shortest_and_one_request(
        upstreams in 2_u32..6,
        requests in drawn(),
    ) {
        let mut router = router(upstreams);
        taught(&mut router);
        let now = at(100_000);
        let mut ahead = vec![0_u64; upstreams as usize];
        let mut longest = 0;
        for (&(prompt, output, prefix, blocks), id) in requests.iter().zip(0..) {
            let prompt = prompt.max(16 * blocks as u32 + 1);
            let chain = chain(prefix, blocks);
            let work = Work { prefix: &chain, ..Work::new(prompt, output) };
            let sent = router.send(now, RequestId::new(id), &work).unwrap();
            ahead[sent.upstream.get() as usize] += u64::from(prompt - sent.cached_tokens);
            longest = longest.max(prompt);
            let (most, least) = (ahead.iter().max().unwrap(), ahead.iter().min().unwrap());
            // At a millisecond for each token, as learned.
            prop_assert!(most - least <= u64::from(longest) + u64::from(longest) / 50 + 20, "{ahead:?}");
        }
    }

    /// One by one, so that nothing is ever ahead, none is given more than 5/4 of the least given and five requests.
    #[test]
    fn prefixes_alone_put_no_upstream_far_ahead(
        upstreams in 2_u32..6,
        requests in drawn(),
    ) {
        let mut router = router(upstreams);
        let mut given = vec![0.0_f64; upstreams as usize];
        let mut largest = 0.0_f64;
        for (&(prompt, _, prefix, blocks), id) in requests.iter().zip(0..) {
            let prompt = prompt.max(16 * blocks as u32 + 1);
            let chain = chain(prefix, blocks);
            let work = Work { prefix: &chain, ..Work::new(prompt, 1) };
            // Nothing is learned of what ends without a word, so that a request is worth the same all the time.
            let sent = router.send(at(id), RequestId::new(id), &work).unwrap();
            router.ended(at(id), RequestId::new(id), End::Ignored);
            let whole = 0.01 + 1e-4 * f64::from(prompt);
            given[sent.upstream.get() as usize] += whole;
            largest = largest.max(whole);
            let most = given.iter().copied().fold(0.0, f64::max);
            let least = given.iter().copied().fold(f64::MAX, f64::min);
            // What is forgotten of a hundred requests is a tenth at most.
            prop_assert!(most <= 1.15 * (1.25 * least + 5.0 * largest), "{given:?}");
        }
    }

    /// Whatever happens in whatever order, nothing panics, and each request that was sent is in flight until it ends.
    #[test]
    fn the_book_adds_up(calls in prop::collection::vec((0_u8..12, 0_u32..5, 0_u64..30), 1..300)) {
        let settings = RouterSettings { bad_in_a_row: 2, ..RouterSettings::default() };
        let mut router = Router::new(Box::new(PredictedEnd), settings);
        let mut live = std::collections::BTreeMap::new();
        for (n, &(call, upstream, request)) in calls.iter().enumerate() {
            let (now, id, upstream) =
                (at(n as u64 * 50), RequestId::new(request), UpstreamId::new(upstream));
            match call {
                0 => router.join(upstream, Terms::default()),
                1 => router.join(upstream, Terms { trial_percent: Some(20), cache_blocks: 4 }),
                2 => {
                    router.leave(upstream);
                    live.retain(|_, to| *to != upstream);
                }
                3 => router.drain(upstream),
                4 => router.down(upstream),
                5 => router.up(upstream),
                6 => router.first_token(now, id),
                7 | 8 => {
                    let end = [answered(3), End::Failed, End::Busy { retry_after: None }];
                    router.ended(now, id, end[n % 3]);
                    live.remove(&id);
                }
                _ => {
                    let chain: Vec<u64> = (0..request).collect();
                    let work = Work { prefix: &chain, session: Some(request), ..Work::new(99, 9) };
                    live.remove(&id);
                    if let Ok(sent) = router.send(now, id, &work) {
                        live.insert(id, sent.upstream);
                    }
                }
            }
            for upstream in (0..5).map(UpstreamId::new) {
                let there = live.values().filter(|to| **to == upstream).count();
                prop_assert_eq!(router.in_flight(upstream) as usize, there);
            }
        }
    }
}
