//! What wakes the open loop when a request is due.

use std::time::Duration;

use tokio::sync::watch;
use tokio::time::{Instant, sleep_until};

/// A way to wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Timer {
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
        let coarse = match self {
            Self::Runtime => until,
            Self::Thread => until.checked_sub(MARGIN).unwrap_or(until),
        };
        let stopped = tokio::select! {
            biased;
            _ = stop.wait_for(|stop| *stop) => true,
            () = sleep_until(coarse) => false,
        };
        if self == Self::Thread && !stopped {
            // This blocks the thread, which does nothing else.
            std::thread::sleep(until.saturating_duration_since(Instant::now()));
        }
        stopped
    }
}
