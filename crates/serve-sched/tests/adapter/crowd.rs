//! A hundred thousand requests in paused time, with clients that go away and a service that panics.

#![expect(
    clippy::disallowed_methods,
    reason = "tokio's time is paused in this test"
)]

use std::convert::Infallible;
use std::time::Duration;

use axum::body::Body;
use http::{Request, Response};
use http_body_util::BodyExt;
use serve_core::rng::Rng;
use serve_core::{Class, Span, TenantId};
use serve_sched::Dispatcher;
use serve_sched::adapter::{Ask, AsyncDispatcher};
use serve_sched::admit::QueueCap;
use serve_sched::limit::Gradient;
use serve_sched::order::FairTenants;
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};
use tower::{Layer, ServiceExt, service_fn};

use crate::assert_all_ended;

const REQUESTS: u64 = 100_000;

/// What a request does, drawn from its number.
#[derive(Clone, Copy)]
struct Fate {
    work: Duration,
    frames: u64,
    panics: bool,
    status: u16,
    client_waits: Duration,
}

fn fate(n: u64) -> Fate {
    let mut rng = Rng::new(n);
    let mut below = |bound: u64| rng.next_u64() % bound;
    Fate {
        work: Duration::from_millis(below(20)),
        frames: below(4),
        panics: below(8) == 0,
        status: [200, 200, 200, 200, 400, 503][below(6) as usize],
        client_waits: match below(4) {
            0 => Duration::from_millis(below(60)),
            _ => Duration::from_secs(60),
        },
    }
}

async fn work(request: Request<Fate>) -> Result<Response<Body>, Infallible> {
    let fate = *request.body();
    sleep(fate.work).await;
    if fate.panics && fate.frames == 0 {
        // Without the message that a panic prints.
        std::panic::resume_unwind(Box::new("on purpose"));
    }
    let frames = futures::stream::unfold(fate.frames, move |left| async move {
        let next = left.checked_sub(1)?;
        sleep(Duration::from_millis(1)).await;
        if fate.panics && next == 0 {
            std::panic::resume_unwind(Box::new("on purpose"));
        }
        Some((Ok::<_, Infallible>("frame"), next))
    });
    let response = Response::builder().status(fate.status);
    Ok(response.body(Body::from_stream(frames)).unwrap())
}

#[tokio::test(start_paused = true)]
async fn of_a_hundred_thousand_requests_each_has_one_end() {
    let admit = vec![Box::new(QueueCap::new(64)) as _];
    let (order, limit) = (
        Box::new(FairTenants::default()),
        Box::new(Gradient::default()),
    );
    let front = AsyncDispatcher::spawn(Dispatcher::new(admit, order, limit));
    let layer = front.layer(|request: &Request<Fate>| {
        let millis = request.body().work.as_millis() as u32;
        let ask = Ask::new(1 + millis, 8).with_tenant(TenantId::new(millis % 5));
        let patience = millis.is_multiple_of(3).then(|| Span::from_millis(40));
        ask.with_class(Class::new((millis % 2) as u8))
            .with_patience(patience)
    });
    let service = layer.layer(service_fn(work));

    let mut clients = JoinSet::new();
    let mut ends = [0_u64; 3];
    for n in 0..REQUESTS {
        let (service, fate) = (service.clone(), fate(n));
        clients.spawn(timeout(fate.client_waits, async move {
            let Ok(response) = service.oneshot(Request::new(fate)).await;
            response.into_body().collect().await.is_ok()
        }));
        if n % 4 == 0 {
            sleep(Duration::from_millis(1)).await;
        }
        while let Some(ended) = clients.try_join_next() {
            ends[which(&ended)] += 1;
        }
    }
    while let Some(ended) = clients.join_next().await {
        ends[which(&ended)] += 1;
    }
    let stats = front.stats();
    assert_all_ended(stats);
    let counters = stats.counters;
    // Nobody's client goes away before it has asked; a panic ends a task and nothing else.
    assert_eq!(ends.iter().sum::<u64>(), REQUESTS);
    assert_eq!(counters.arrived, REQUESTS);
    let [answered, gone, panicked] = ends;
    for (what, many) in [
        ("answered", answered),
        ("gone", gone),
        ("panicked", panicked),
    ] {
        assert!(many > 500, "only {many} {what}");
    }
    for (what, many) in [
        ("finished", counters.finished),
        ("refused", counters.refused),
        ("cancelled", counters.cancelled),
        ("failed", counters.failed),
    ] {
        assert!(many > 500, "only {many} {what}");
    }
}

type Ended = Result<Result<bool, tokio::time::error::Elapsed>, tokio::task::JoinError>;

fn which(ended: &Ended) -> usize {
    match ended {
        Ok(Ok(_)) => 0,
        Ok(Err(_)) => 1,
        Err(_) => 2,
    }
}
