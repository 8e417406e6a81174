//! What the scheduler says of itself after a step, for those on the other side of the thread.

use serve_core::{Span, Time};
use serve_sched::{Scheduler, Stats};

#[derive(Clone, Debug)]
pub(super) struct Reading {
    pub(super) stats: Stats,
    /// Requests a second that end; `None` while none has.
    drain_rate: Option<f64>,
    /// When a step ended last, or since when there is work.
    pub(super) progress_at: Time,
}

impl Reading {
    pub(super) fn of(scheduler: &Scheduler, progress_at: Time) -> Self {
        Self {
            stats: scheduler.stats(),
            drain_rate: scheduler.pace().drain_rate(),
            progress_at,
        }
    }

    /// Whether a request is in the scheduler.
    pub(super) fn has_work(&self) -> bool {
        self.stats.waiting > 0 || self.stats.running > 0
    }

    /// How long the engine takes to end `requests`, if that is known.
    pub(super) fn time_to_drain(&self, requests: u32) -> Option<Span> {
        let rate = self.drain_rate?;
        Some(Span::from_secs_f64(f64::from(requests) / rate))
    }
}
