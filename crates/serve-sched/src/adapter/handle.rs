//! The handle that async code shares.

use std::fmt;
use std::sync::Arc;

use serve_core::{CancelReason, RequestId, Time};

use super::admission::Admission;
use super::ask::Ask;
use super::clock::{Clock, TokioClock};
use super::driver::Driver;
use super::shared::Shared;
use crate::dispatcher::{Dispatcher, DispatcherStats};
use crate::settings::{Change, ChangeError};

/// A [`Dispatcher`] for any number of tasks; a clone is another handle to the same one.
///
/// [`admit`](Self::admit) waits for the right to work at a request, and gives a
/// [`Permit`](super::Permit). Dropping the future or the permit, at any point and in a panic too, cancels
/// the request and gives its slot to the next.
///
/// ```
/// use serve_sched::adapter::{Ask, AsyncDispatcher};
/// use serve_sched::{Dispatcher, limit::Fixed, order::Fifo};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), serve_sched::adapter::Rejection> {
/// let four = Box::new(Fixed::new(4));
/// let front = AsyncDispatcher::spawn(Dispatcher::new(Vec::new(), Box::new(Fifo), four));
/// let permit = front.admit(Ask::new(120, 40)).await?;
/// assert_eq!(front.stats().running, 1);
/// permit.finish();
/// assert_eq!(front.stats().counters.finished, 1);
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct AsyncDispatcher {
    shared: Arc<Shared>,
}

impl AsyncDispatcher {
    /// A handle on tokio's clock, whose [`Driver`] is a task of its own.
    ///
    /// # Panics
    ///
    /// Outside a tokio runtime, or in one whose time is not enabled.
    #[expect(clippy::disallowed_methods, reason = "the adapter's own task")]
    pub fn spawn(dispatcher: Dispatcher) -> Self {
        let (handle, driver) = Self::new(dispatcher, Arc::new(TokioClock::start()));
        tokio::spawn(driver);
        handle
    }

    /// A handle on any clock, and its [`Driver`], for the caller to spawn.
    pub fn new(dispatcher: Dispatcher, clock: Arc<dyn Clock>) -> (Self, Driver) {
        let shared = Arc::new(Shared::new(dispatcher, clock));
        let driver = Driver::new(&shared);
        (Self { shared }, driver)
    }

    /// Waits until the request may be worked at.
    ///
    /// # Errors
    ///
    /// The future gives a [`Rejection`](super::Rejection): refused by an admission policy or because the
    /// dispatcher drains, displaced from a full queue, or cancelled while it waited, as by its deadline.
    pub fn admit(&self, ask: Ask) -> Admission {
        Admission::new(Arc::clone(&self.shared), ask)
    }

    /// Goes on with other settings, as [`Dispatcher::change`] does; who waits and works is not concerned.
    ///
    /// # Errors
    ///
    /// [`ChangeError`] where one of the settings cannot change; then nothing has changed.
    pub fn change(&self, change: &Change) -> Result<(), ChangeError> {
        self.shared
            .input(|state, now| state.dispatcher.change(now, change))
    }

    /// Takes nothing in from now on; what was taken in is served to its end.
    pub fn drain(&self) {
        self.shared.input(|state, now| state.dispatcher.drain(now));
    }

    /// Waits until a [drain](Self::drain) is over: nothing waits, and every permit is gone.
    pub async fn drained(&self) {
        std::future::poll_fn(|context| self.shared.read(|state| state.poll_drained(context))).await;
    }

    /// Cancels a request, wherever it is: who waits for its permit or works at it is told. False if no
    /// such request is live.
    pub fn cancel(&self, id: RequestId, reason: CancelReason) -> bool {
        self.shared
            .input(|state, now| state.dispatcher.cancel(now, id, reason))
    }

    /// Cancels every request, as at the end of a drain's grace period. Those who wait are told;
    /// those who work learn it from [`Permit::ended`](super::Permit::ended).
    pub fn cancel_all(&self, reason: CancelReason) {
        self.shared
            .input(|state, now| state.dispatcher.cancel_all(now, reason));
    }

    /// A reading: what waits and runs, the limit, and counts since the start.
    pub fn stats(&self) -> DispatcherStats {
        self.shared.read(|state| state.dispatcher.stats())
    }

    /// The time on the dispatcher's clock.
    pub fn now(&self) -> Time {
        self.shared.clock().now()
    }
}

impl fmt::Debug for AsyncDispatcher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("AsyncDispatcher")
            .field(&self.stats())
            .finish()
    }
}
