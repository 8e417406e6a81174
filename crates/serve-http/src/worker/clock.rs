//! The one place where real time becomes [`Time`].

use std::time::Instant;

use serve_core::{Span, Time};

/// Nanoseconds since the clock was made, monotone.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Clock {
    origin: Instant,
}

impl Clock {
    /// A clock that starts at [`Time::ZERO`].
    pub(crate) fn start() -> Self {
        Self {
            origin: Instant::now(),
        }
    }

    /// The present time.
    pub(crate) fn now(&self) -> Time {
        Time::ZERO + Span::from(self.origin.elapsed())
    }
}
