//! A stand-in for somebody else's inference service: it takes every request, works at four at a time
//! and keeps the others in a queue of its own, first come, first served. A real one is behind HTTP.

use std::sync::Arc;
use std::time::Duration;

use examples_support::Occupancy;
use tokio::sync::Semaphore;
use tokio::time::sleep;

/// What the service works at side by side.
pub(crate) const SLOTS: u32 = 4;
/// How long it takes for each token.
const TOKEN: Duration = Duration::from_millis(1);

/// The service, as a client sees it.
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

    /// Answers a request of so many tokens, sooner or later.
    pub(crate) async fn complete(&self, output_tokens: u32) {
        let _inside = self.occupancy.enter();
        let _slot = self.slots.acquire().await;
        sleep(TOKEN * output_tokens).await;
    }

    /// The most requests that it ever had at once, those in its own queue included.
    pub(crate) fn most_inside(&self) -> u32 {
        self.occupancy.most()
    }
}
