//! The requests that one decision is taken about: those sent since the last one that mattered.

use serve_core::{Span, Time};

use crate::limit::{Departure, Signal};

/// A round of requests that have left the engine.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(in crate::limit) struct Round {
    /// Those sent earlier say nothing of the limit as it is now.
    from: Time,
    answered: u32,
    overloaded: u32,
    in_flight_max: u32,
}

impl Round {
    /// A round of requests that are sent from `now` on, after the limit was raised.
    pub(in crate::limit) fn raised(now: Time) -> Self {
        Self {
            from: now,
            ..Self::default()
        }
    }

    /// A round of requests that are sent after `now`, at which the limit was lowered. What was sent
    /// up to then is not heard a second time: however many fail together, one cut answers them.
    pub(in crate::limit) fn lowered(now: Time) -> Self {
        Self::raised(now + Span::from_nanos(1))
    }

    /// The next round under a limit that has hardly changed.
    pub(in crate::limit) fn next(self) -> Self {
        Self::raised(self.from)
    }

    /// Counts a departure. False if it says nothing of the limit as it is now.
    pub(in crate::limit) fn hear(&mut self, now: Time, departure: &Departure) -> bool {
        let sent = now - departure.took;
        if sent < self.from || departure.signal == Signal::Ignored {
            return false;
        }
        let overloaded = departure.signal == Signal::Overloaded;
        self.overloaded += u32::from(overloaded);
        self.answered += u32::from(!overloaded);
        self.in_flight_max = self.in_flight_max.max(departure.in_flight);
        true
    }

    /// Requests heard of.
    pub(in crate::limit) fn requests(&self) -> u32 {
        self.answered + self.overloaded
    }

    /// Of those, requests that were too much for the engine.
    pub(in crate::limit) fn overloaded(&self) -> u32 {
        self.overloaded
    }

    /// Which part of them was too much for the engine.
    pub(in crate::limit) fn overloaded_share(&self) -> f64 {
        f64::from(self.overloaded) / f64::from(self.requests().max(1))
    }

    /// Whether at least one in `part` of `limit` was in use at some time.
    pub(in crate::limit) fn used(&self, limit: f64, part: u32) -> bool {
        f64::from(self.in_flight_max) * f64::from(part) >= limit
    }
}
