//! A request that waits, with what the queue knows of it.

use std::sync::Arc;

use serve_core::{Request, Span, Time};

use super::Taken;
use crate::demand::Demand;
use crate::order::Waiting;
use crate::pace::Queued;

/// A request that waits.
#[derive(Clone, Debug)]
pub(super) struct Entry {
    pub(super) request: Arc<Request>,
    pub(super) sequence: u64,
    pub(super) since: Time,
    pub(super) preemptions: u32,
    /// What it asks of the device, as expected when it began to wait.
    pub(super) demand: Demand,
    /// How long it was predicted to wait, and with whom; zero if nothing was.
    pub(super) predicted: (Queued, Span),
    /// The lane that it stands in, and where in it.
    pub(super) leaf: u32,
    pub(super) key: u64,
    /// When to ask for its place again; never is [`Time::MAX`].
    pub(super) again: Time,
    /// Stands in no lane before then.
    pub(super) held: bool,
}

impl Entry {
    /// `taken`, which waits from `since` on.
    pub(super) fn new(
        taken: Taken,
        since: Time,
        demand: Demand,
        predicted: (Queued, Span),
    ) -> Self {
        Self {
            request: taken.request,
            sequence: taken.sequence,
            since,
            preemptions: taken.preemptions,
            demand,
            predicted,
            leaf: 0,
            key: 0,
            again: Time::MAX,
            held: false,
        }
    }

    /// When it is of no use any more to wait.
    pub(super) fn expires(&self) -> Option<Time> {
        let start_by = self.request.start_by();
        let start_by = start_by.filter(|_| self.preemptions == 0);
        [self.request.deadline(), start_by]
            .into_iter()
            .flatten()
            .min()
    }

    /// Whether its time to wait is over.
    pub(super) fn is_overdue(&self, now: Time) -> bool {
        self.expires().is_some_and(|expires| expires <= now)
    }

    /// Whether it may be made to give its place in a full queue up.
    pub(super) fn is_displaceable(&self) -> bool {
        self.preemptions == 0 && !self.request.is_committed()
    }

    pub(super) fn view(&self) -> Waiting<'_> {
        Waiting {
            request: &self.request,
            sequence: self.sequence,
            since: self.since,
            preemptions: self.preemptions,
        }
    }
}
