//! What a dispatcher does when nothing comes in: deadlines, promotions, the end of a pause.

use std::fmt;
use std::pin::Pin;
use std::sync::{Arc, Weak};
use std::task::{Context, Poll};

use serve_core::Time;

use super::clock::{Clock, Sleep};
use super::shared::Shared;

/// The task that keeps a dispatcher's times, to be spawned once; it ends with the last handle, future
/// and permit. Without it requests are still sent, and nobody is told that a deadline has passed.
#[must_use = "deadlines are kept by this future; spawn it"]
pub struct Driver {
    shared: Weak<Shared>,
    clock: Arc<dyn Clock>,
    alarm: Option<(Time, Sleep)>,
}

impl Driver {
    pub(super) fn new(shared: &Arc<Shared>) -> Self {
        Self {
            shared: Arc::downgrade(shared),
            clock: Arc::clone(shared.clock()),
            alarm: None,
        }
    }
}

impl Future for Driver {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        let Some(shared) = self.shared.upgrade() else {
            return Poll::Ready(());
        };
        let (due, _before) = shared.input(|state, now| {
            state.dispatcher.handle_timeout(now);
            state.set_alarm(context.waker())
        });
        drop(shared);
        if self.alarm.as_ref().map(|(at, _)| *at) != due {
            self.alarm = due.map(|at| (at, self.clock.sleep_until(at)));
        }
        if let Some((_, sleep)) = &mut self.alarm
            && sleep.as_mut().poll(context).is_ready()
        {
            // What is due is done the next time, so that other tasks get their turn.
            self.alarm = None;
            context.waker().wake_by_ref();
        }
        Poll::Pending
    }
}

impl fmt::Debug for Driver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let alarm = self.alarm.as_ref().map(|(at, _)| at);
        let mut debug = f.debug_struct("Driver");
        debug.field("alarm", &alarm).finish_non_exhaustive()
    }
}
