//! What wakes the open loop when a request is due.

use std::time::Duration;

use tokio::sync::watch;
use tokio::time::{Instant, sleep_until};

/// A way to wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Timer {
    /// The runtime's timer. It counts whole milliseconds, and tests can move it.
    Runtime,
    /// A thread of its own that sleeps through the last milliseconds. It is exact to less than a tenth
    /// of one, so that a thousand requests a second are not sent in clumps of a millisecond.
    Thread,
}

/// How long before its time the thread stops relying on the runtime, which may wake a millisecond late.
const MARGIN: Duration = Duration::from_millis(3);

impl Timer {
    /// Waits; true if `stop` turned true meanwhile or before.
    pub(super) async fn wait(self, until: Instant, stop: &mut watch::Receiver<bool>) -> bool {
        tokio::select! {
            biased;
            _ = stop.wait_for(|stop| *stop) => true,
            () = self.sleep_until(until) => false,
        }
    }

    /// Waits.
    pub(crate) async fn sleep_until(self, until: Instant) {
        match self {
            Self::Runtime => sleep_until(until).await,
            Self::Thread => {
                sleep_until(until.checked_sub(MARGIN).unwrap_or(until)).await;
                // This blocks the thread, which does nothing else.
                std::thread::sleep(until.saturating_duration_since(Instant::now()));
            }
        }
    }
}
