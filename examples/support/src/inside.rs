//! How many requests a service has at once.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

/// Counts the requests inside of a service; a clone is the same count.
#[derive(Clone, Debug, Default)]
pub struct Occupancy {
    now: Arc<AtomicU32>,
    most: Arc<AtomicU32>,
}

/// A request is inside until this is dropped: it has its answer, or its client has hung up.
#[must_use]
#[derive(Debug)]
pub struct Inside(Arc<AtomicU32>);

impl Occupancy {
    /// One more is inside.
    pub fn enter(&self) -> Inside {
        let now = self.now.fetch_add(1, Ordering::Relaxed) + 1;
        self.most.fetch_max(now, Ordering::Relaxed);
        Inside(Arc::clone(&self.now))
    }

    /// The most that were ever inside at once.
    pub fn most(&self) -> u32 {
        self.most.load(Ordering::Relaxed)
    }

    /// Whether none is inside.
    pub fn is_empty(&self) -> bool {
        self.now.load(Ordering::Relaxed) == 0
    }
}

impl Drop for Inside {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}
