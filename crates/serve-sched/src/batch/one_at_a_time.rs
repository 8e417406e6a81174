//! One request at a time, from its first token to its last: the control condition of every batching
//! experiment.

use super::{Batch, BatchView, Join};

/// One request at a time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OneAtATime;

impl Batch for OneAtATime {
    fn name(&self) -> &'static str {
        "one-at-a-time"
    }

    fn join(&mut self, view: &BatchView) -> Join {
        Join::UpTo(u32::from(view.running == 0))
    }

    fn sequences_max(&self) -> Option<u32> {
        Some(1)
    }
}
