//! One request at a time, from its first token to its last: the control condition of every batching
//! experiment.

use super::{Batch, BatchView, Join};
use crate::settings::Named;

/// As its family lists it.
pub(super) const POLICY: Named<dyn Batch> = Named {
    name: "one-at-a-time",
    settings: &[],
    build: |_| Box::new(OneAtATime),
};

/// One request at a time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OneAtATime;

impl Batch for OneAtATime {
    fn name(&self) -> &'static str {
        POLICY.name
    }

    fn join(&mut self, view: &BatchView) -> Join {
        Join::UpTo(u32::from(view.running == 0))
    }

    fn sequences_max(&self) -> Option<u32> {
        Some(1)
    }
}
