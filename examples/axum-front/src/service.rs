//! A stand-in for an inference service: it takes every request, works at four at a time, keeps the others
//! in a queue of its own, and streams an answer of forty tokens, one each millisecond.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::extract::State;
use axum::routing::post;
use examples_support::{Inside, Occupancy};
use futures::stream;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{Instant, Interval, interval_at};

/// What the service works at side by side.
pub(crate) const SLOTS: u32 = 4;
/// How long an answer is.
pub(crate) const OUTPUT_TOKENS: u32 = 40;
/// How long it takes for each token.
const TOKEN: Duration = Duration::from_millis(1);

/// The service; a clone is the same one.
#[derive(Clone)]
pub(crate) struct Service {
    slots: Arc<Semaphore>,
    occupancy: Occupancy,
}

impl Service {
    pub(crate) fn new() -> Self {
        Self {
            slots: Arc::new(Semaphore::new(SLOTS as usize)),
            occupancy: Occupancy::default(),
        }
    }

    pub(crate) fn router(&self) -> Router {
        let routes = Router::new().route("/generate", post(generate));
        routes.with_state(self.clone())
    }

    /// The most requests that it ever had at once, those in its own queue included.
    pub(crate) fn most_inside(&self) -> u32 {
        self.occupancy.most()
    }

    /// Whether it works at nothing.
    #[cfg(test)]
    pub(crate) fn is_empty(&self) -> bool {
        self.occupancy.is_empty()
    }
}

/// Streams tokens, as soon as there is a slot.
async fn generate(State(service): State<Service>) -> Body {
    let inside = service.occupancy.enter();
    let slot = Arc::clone(&service.slots).acquire_owned().await.ok();
    let work = Work {
        _inside: inside,
        _slot: slot,
        ticks: interval_at(Instant::now() + TOKEN, TOKEN),
        tokens: 0,
    };
    Body::from_stream(stream::unfold(work, async |mut work| {
        work.ticks.tick().await;
        work.tokens += 1;
        let left = work.tokens <= OUTPUT_TOKENS;
        left.then_some((Ok::<_, Infallible>("token "), work))
    }))
}

/// An answer that is being worked at.
struct Work {
    _inside: Inside,
    _slot: Option<OwnedSemaphorePermit>,
    /// On time on average, however coarse the timer is.
    ticks: Interval,
    tokens: u32,
}
