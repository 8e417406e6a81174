//! What a router had in flight at an upstream in the last seconds, to tell what others have there.
//!
//! A view says what an upstream had at a time that has passed. What this router had there at that time, and not what it has now,
//! is to be taken off: with views of seconds ago the two have little to do with each other.

use std::collections::VecDeque;

use serve_core::{Span, Time};

/// Requests in flight, in the numbers that matter.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Held {
    pub(super) in_flight: u32,
    pub(super) waiting: u32,
    pub(super) waiting_tokens: u64,
    pub(super) running_tokens: u64,
}

impl Held {
    /// Saturates: what others have is what an upstream says, which may be anything.
    pub(super) fn plus(self, other: Self) -> Self {
        Self {
            in_flight: self.in_flight.saturating_add(other.in_flight),
            waiting: self.waiting.saturating_add(other.waiting),
            waiting_tokens: self.waiting_tokens.saturating_add(other.waiting_tokens),
            running_tokens: self.running_tokens.saturating_add(other.running_tokens),
        }
    }

    pub(super) fn less(self, other: Self) -> Self {
        Self {
            in_flight: self.in_flight.saturating_sub(other.in_flight),
            waiting: self.waiting.saturating_sub(other.waiting),
            waiting_tokens: self.waiting_tokens.saturating_sub(other.waiting_tokens),
            running_tokens: self.running_tokens.saturating_sub(other.running_tokens),
        }
    }
}

/// The last [`KEPT`] seconds.
#[derive(Debug, Default)]
pub(super) struct History {
    entries: VecDeque<(Time, Held)>,
}

/// A view of more than two seconds ago says nothing: it is noise (docs/policies/predicted-end.md).
pub(super) const KEPT: Span = Span::from_secs(2);

/// Changes closer together than this are one, so that there are 200 entries at most.
const APART: Span = Span::from_millis(10);

impl History {
    pub(super) fn note(&mut self, now: Time, held: Held) {
        if let Some((at, last)) = self.entries.back_mut()
            && now.since(*at) < APART
        {
            *last = held;
            return;
        }
        // The last one that is older is what held until then.
        while self
            .entries
            .get(1)
            .is_some_and(|&(at, _)| now.since(at) > KEPT)
        {
            self.entries.pop_front();
        }
        self.entries.push_back((now, held));
    }

    /// What was in flight at a time.
    pub(super) fn at(&self, time: Time) -> Held {
        let after = self.entries.partition_point(|&(at, _)| at <= time);
        match after.checked_sub(1) {
            Some(index) => self.entries[index].1,
            None => Held::default(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_says_what_was_and_stays_bounded() {
        let mut history = History::default();
        let held = |n: u64| Held {
            waiting_tokens: n,
            ..Held::default()
        };
        for ms in 0..60_000 {
            history.note(Time::from_millis(ms), held(ms));
        }
        assert!(history.entries.len() <= 202, "{}", history.entries.len());
        for ms in (58_100..60_000).step_by(37) {
            let then = history.at(Time::from_millis(ms)).waiting_tokens;
            assert!(then.abs_diff(ms) <= 10, "{then} at {ms}");
        }
        let mut quiet = History::default();
        assert_eq!(quiet.at(Time::from_secs(5)), Held::default());
        quiet.note(Time::from_secs(1), held(7));
        quiet.note(Time::from_secs(100), held(8));
        assert_eq!(quiet.at(Time::from_secs(99)), held(7), "it held until then");
    }
}
