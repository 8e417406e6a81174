//! Several upstreams: what the router promises, the examples of a lecture, and fleets in virtual time.

mod bounds;
mod edges;
mod failures;
mod fleet;

mod lecture;
mod sharing;

use serve_core::{RequestId, Span, Time, Usage};
use serve_sched::route::{
    End, PredictedEnd, Router, RouterSettings, Sent, Terms, UpstreamId, Work,
};

const A: UpstreamId = UpstreamId::new(0);
const B: UpstreamId = UpstreamId::new(1);

fn at(ms: u64) -> Time {
    Time::from_millis(ms)
}

fn router(upstreams: u32) -> Router {
    with(upstreams, RouterSettings::default())
}

fn with(upstreams: u32, settings: RouterSettings) -> Router {
    let mut router = Router::new(Box::new(PredictedEnd), settings);
    for id in 0..upstreams {
        router.join(UpstreamId::new(id), Terms::default());
    }
    router
}

fn answered(output_tokens: u32) -> End {
    End::Answered(Usage {
        output_tokens,
        ..Usage::default()
    })
}

/// Sends a request that is answered `took_ms` later with one token.
fn serve(router: &mut Router, id: u64, now: Time, work: &Work<'_>, took_ms: u64) -> UpstreamId {
    let id = RequestId::new(id);
    let sent = router.send(now, id, work).unwrap();
    let end = now + Span::from_millis(took_ms);
    router.first_token(end, id);
    router.ended(end, id, answered(work.output_tokens));
    sent.upstream
}

/// Requests one by one until the router knows that a prompt token takes a millisecond; then it is 100 s.
fn taught(router: &mut Router) {
    for n in 0..64 {
        let prompt = 50 + 10 * (n % 11) as u32;
        let work = Work::new(prompt, 1);
        serve(
            router,
            1_000_000 + n,
            at(n * 1_000),
            &work,
            u64::from(prompt),
        );
    }
    // The last one has been learned from when another is sent.
    serve(router, 2_000_000, at(99_000), &Work::new(100, 1), 100);
}

/// Sends to this one, whatever the policy says.
fn send_to(router: &mut Router, to: UpstreamId, id: u64, now: Time, work: &Work<'_>) -> Sent {
    let others: Vec<_> = (0..8).map(UpstreamId::new).filter(|&id| id != to).collect();
    others.iter().for_each(|&other| router.down(other));
    let sent = router.send(now, RequestId::new(id), work).unwrap();
    others.iter().for_each(|&other| router.up(other));
    assert_eq!(sent.upstream, to);
    sent
}

fn near(span: Span, ms: u64) -> bool {
    span.as_millis().abs_diff(ms) <= 1 + ms / 50
}
