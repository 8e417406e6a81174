//! The clock of an adapter: tokio's, or one's own. Here, and nowhere else in this crate, a clock is read.

use std::pin::Pin;

use serve_core::{Span, Time};
use tokio::time::Instant;

/// A future that is ready when a time has come.
pub type Sleep = Pin<Box<dyn Future<Output = ()> + Send>>;

/// What time it is, and how to wait for a time.
///
/// [`now`](Self::now) never goes back. What [`sleep_until`](Self::sleep_until) gives may be ready too late,
/// which makes deadlines and promotions late; if it is ready too early, it is asked for again.
pub trait Clock: Send + Sync {
    /// The time now, from an origin of the clock's own choosing.
    fn now(&self) -> Time;

    /// Ready when [`now`](Self::now) has reached `at`.
    fn sleep_until(&self, at: Time) -> Sleep;
}

/// Tokio's clock, which tests can pause; its origin is its making.
#[derive(Clone, Copy, Debug)]
pub struct TokioClock {
    origin: Instant,
}

impl TokioClock {
    /// A clock that is at [`Time::ZERO`] now.
    #[expect(clippy::disallowed_methods, reason = "this is the clock")]
    pub fn start() -> Self {
        Self {
            origin: Instant::now(),
        }
    }
}

impl Clock for TokioClock {
    fn now(&self) -> Time {
        Time::ZERO + Span::from(self.origin.elapsed())
    }

    #[expect(clippy::disallowed_methods, reason = "this is the clock")]
    fn sleep_until(&self, at: Time) -> Sleep {
        let sleep = tokio::time::sleep_until(self.origin + at.since(Time::ZERO).into());
        Box::pin(sleep)
    }
}
