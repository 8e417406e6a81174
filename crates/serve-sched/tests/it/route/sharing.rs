//! What goes wrong where several upstreams share a load: known failures of routers, each as a test.

use std::collections::BTreeMap;
use std::sync::Arc;

use serve_core::rng::Rng;
use serve_core::{Request, RequestId, TokenId};
use serve_sched::Outcome;
use serve_sched::route::View;
use serve_sched::sim::{EngineModel, Reply, Routed};

use super::*;
use crate::quoted::quoted;

/// A request of these sizes that shares nothing.
pub(super) fn plain(id: u64, at: Time, prompt: u32, output: u32) -> Routed {
    let prompt = vec![TokenId::new(id as u32); prompt as usize];
    Routed {
        request: Arc::new(Request::new(RequestId::new(id), at, prompt, output).unwrap()),
        chain: Vec::new(),
        block_tokens: 16,
        session: None,
    }
}

/// An engine that loses so many of a thousand requests, which is found out after 200 ms.
pub(super) struct Failing<E> {
    engine: E,
    rng: Rng,
    per_mille: u64,
    lost: BTreeMap<(Time, RequestId), ()>,
}

impl<E> Failing<E> {
    pub(super) fn new(engine: E, seed: u64, per_mille: u64) -> Self {
        Self {
            engine,
            rng: Rng::new(seed),
            per_mille,
            lost: BTreeMap::new(),
        }
    }
}

impl<E: EngineModel> EngineModel for Failing<E> {
    fn send(&mut self, now: Time, request: &Arc<Request>) {
        match self.rng.below(1_000) < self.per_mille {
            true => {
                let found_out = now + Span::from_millis(200);
                self.lost.insert((found_out, request.id()), ());
            }
            false => self.engine.send(now, request),
        }
    }

    fn abort(&mut self, now: Time, id: RequestId) {
        self.engine.abort(now, id);
    }

    fn reply(&mut self, now: Time) -> Option<(RequestId, Reply)> {
        if let Some(entry) = self.lost.first_entry()
            && entry.key().0 <= now
        {
            let id = entry.remove_entry().0.1;
            let lost = Outcome::Overloaded {
                cause: Arc::from("lost"),
                retry_after: None,
            };
            return Some((id, Reply::Done(lost)));
        }
        self.engine.reply(now)
    }

    fn next_at(&self) -> Option<Time> {
        let lost = self.lost.keys().next().map(|&(at, _)| at);
        lost.into_iter().chain(self.engine.next_at()).min()
    }
}

/// Chains of 448 requests that never overlap: 56 conversations of 8 turns that share a system prompt, or 448 prompts that
/// are all the same, or that share nothing.
fn one_by_one(chain: impl Fn(u64) -> Vec<u64>) -> [u32; 2] {
    let mut router = router(2);
    let mut counts = [0, 0];
    for n in 0..448 {
        let chain = chain(n);
        let work = Work {
            prefix: &chain,
            ..Work::new(16 * chain.len() as u32 + 8, 20)
        };
        let (id, now) = (RequestId::new(n), at(n * 60_000));
        let sent = router.send(now, id, &work).unwrap();
        let uncached = u64::from(work.prompt_tokens - sent.cached_tokens);
        let first = now + Span::from_millis(20 + uncached / 10);
        router.first_token(first, id);
        router.ended(first + Span::from_millis(380), id, answered(20));
        counts[sent.upstream.get() as usize] += 1;
    }
    counts
}

/// A load term that is empty between requests sent 448 of 448 to one of two upstreams.
#[test]
fn requests_that_never_overlap_are_shared_evenly() {
    let system = || 0..32_u64;
    let conversations = one_by_one(|n| {
        let said = (0..(n / 56) * 8).map(|block| 1_000 * (1 + n % 56) + block);
        system().chain(said).collect()
    });
    let same = one_by_one(|_| system().collect());
    let nothing = one_by_one(|n| vec![n; 1].into_iter().map(|n| 1_000 + n).collect());
    for counts in [conversations, same, nothing] {
        assert!(counts[0].abs_diff(counts[1]) <= 448 / 10, "{counts:?}");
    }
    let said = format!(
        "{} and {} where all are the same, {} and {} where conversations of eight turns take turns",
        same[0], same[1], conversations[0], conversations[1]
    );
    quoted("predicted-end", &said);
}

/// What is sent counts at once, whatever the views of the moment before say.
#[test]
fn a_burst_does_not_go_where_one_picture_of_the_load_says() {
    let mut router = router(8);
    let system: Vec<u64> = (0..8).collect();
    router.stored(A, &system);
    let now = at(1_000);
    for id in 0..8 {
        router.report(
            now,
            UpstreamId::new(id),
            &View {
                at: now,
                ..View::default()
            },
        );
    }
    let work = Work {
        prefix: &system,
        ..Work::new(160, 50)
    };
    for id in 0..64 {
        router.send(now, RequestId::new(id), &work).unwrap();
    }
    let counts: Vec<u32> = (0..8)
        .map(|id| router.in_flight(UpstreamId::new(id)))
        .collect();
    assert!(
        counts.iter().all(|count| (6..=10).contains(count)),
        "{counts:?}"
    );
}

/// Where nothing is cached anywhere, the smallest cache is no reason to choose: it is small because the work there shares nothing.
#[test]
fn the_upstream_with_the_least_cached_is_not_preferred() {
    let mut router = router(2);
    router.stored(B, &(0..10_000).collect::<Vec<_>>());
    let now = at(1_000);
    for id in 0..4 {
        send_to(&mut router, A, id, now, &Work::new(8_000, 100));
    }
    for id in 10..14 {
        let sent = router
            .send(now, RequestId::new(id), &Work::new(500, 100))
            .unwrap();
        assert_eq!(sent.upstream, B);
    }
}

/// A view says what was; seconds later it has been worked at, and after two it is forgotten. None is no load.
#[test]
fn a_view_that_is_old_is_not_taken_for_saturation() {
    let full = |at| View {
        at,
        in_flight: 16,
        waiting: 16,
        waiting_tokens: 2_000,
        running_tokens: 0,
    };
    let chosen = |age_ms: u64| {
        let mut router = router(2);
        taught(&mut router);
        let now = at(200_000);
        router.report(now, A, &full(now - Span::from_millis(age_ms)));
        // B is worth less than A when A is idle, as A has the prefix.
        let chain: Vec<u64> = (0..30).collect();
        router.stored(A, &chain);
        let work = Work {
            prefix: &chain,
            ..Work::new(500, 1)
        };
        router.send(now, RequestId::new(1), &work).unwrap().upstream
    };
    assert_eq!(chosen(0), B);
    assert_eq!(chosen(200), B);
    assert_eq!(chosen(5_000), A, "two seconds of work five seconds ago");
    assert_eq!(chosen(60_000), A);
}

/// What a view shows of this router's own requests is not counted twice, however late it comes.
#[test]
fn ones_own_requests_in_a_late_view_are_not_those_of_others() {
    let mut router = router(2);
    taught(&mut router);
    let work = Work::new(500, 1);
    send_to(&mut router, A, 1, at(100_000), &work);
    let seen = View {
        at: at(100_100),
        in_flight: 1,
        waiting: 1,
        waiting_tokens: 500,
        running_tokens: 500,
    };
    router.first_token(at(100_500), RequestId::new(1));
    router.ended(at(100_500), RequestId::new(1), answered(1));
    router.report(at(100_501), A, &seen);
    let sent = send_to(&mut router, A, 2, at(100_501), &work);
    assert!(near(sent.first_token, 500), "{}", sent.first_token);
}
