//! The clock of a driver: the machine's, or one's own. Of this module, nothing else reads a clock.

#![expect(clippy::disallowed_types, reason = "this is the clock")]

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Condvar, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use serve_core::{Span, Time};

/// What time it is, and what ends a wait.
pub trait Clock: Send + Sync {
    /// The time now, from an origin of the clock's own choosing. It never goes back.
    fn now(&self) -> Time;

    /// There is something to do: ends the wait of the engine's loop, or its next one if it does not wait
    /// now. Called with every input.
    fn wake(&self);
}

/// A clock for which a thread can wait.
pub trait ThreadClock: Clock {
    /// Blocks until [`now`](Clock::now) has reached `at`, whatever comes.
    fn sleep_until(&self, at: Time);

    /// Blocks until [`wake`](Clock::wake) has been called since this returned last, or until `at`,
    /// where there is one. May return too early.
    fn wait_until(&self, at: Option<Time>);
}

/// The machine's monotonic clock; its origin is its making. For one engine.
#[derive(Debug)]
pub struct RealClock {
    origin: Instant,
    woken: AtomicBool,
    asleep: Mutex<()>,
    bell: Condvar,
}

impl RealClock {
    /// A clock that is at [`Time::ZERO`] now.
    #[expect(clippy::disallowed_methods, reason = "this is the clock")]
    pub fn start() -> Self {
        Self {
            origin: Instant::now(),
            woken: AtomicBool::new(false),
            asleep: Mutex::new(()),
            bell: Condvar::new(),
        }
    }

    fn left_until(&self, at: Time) -> Duration {
        at.since(self.now()).into()
    }
}

impl Clock for RealClock {
    fn now(&self) -> Time {
        Time::ZERO + Span::from(self.origin.elapsed())
    }

    fn wake(&self) {
        // A loop that is busy is woken by a store, and one that has been woken already by nothing.
        if !self.woken.swap(true, Ordering::AcqRel) {
            // Not between its last look and its sleep.
            drop(self.asleep.lock());
            self.bell.notify_one();
        }
    }
}

impl ThreadClock for RealClock {
    #[expect(clippy::disallowed_methods, reason = "this is the clock")]
    fn sleep_until(&self, at: Time) {
        let left = self.left_until(at);
        if !left.is_zero() {
            thread::sleep(left);
        }
    }

    fn wait_until(&self, at: Option<Time>) {
        let quiet = |(): &mut ()| !self.woken.load(Ordering::Acquire);
        let asleep = self.asleep.lock().unwrap_or_else(PoisonError::into_inner);
        match at {
            Some(at) => drop(
                self.bell
                    .wait_timeout_while(asleep, self.left_until(at), quiet),
            ),
            None => drop(self.bell.wait_while(asleep, quiet)),
        }
        self.woken.store(false, Ordering::Release);
    }
}
