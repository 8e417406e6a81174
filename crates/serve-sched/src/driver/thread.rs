//! An engine on a thread of its own.

use std::fmt;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;

use serve_core::{Backend, Request, RequestId, Span, Time};

use super::clock::{Clock, RealClock, ThreadClock};
use super::runner::{Hooks, Runner};
use super::shared::{NotTaken, SharedScheduler};
use super::tickets::{Guard, Ticket, TicketOutlet, Tickets, Word};
use crate::scheduler::Scheduler;

/// A scheduler and its device, as any number of threads use them. Dropping it ends the engine, and
/// with it whatever is in it: [`drain`](Self::drain) first.
pub struct EngineThread {
    shared: Arc<SharedScheduler>,
    tickets: Arc<Tickets>,
    next_id: AtomicU64,
}

impl EngineThread {
    /// Starts the engine of a scheduler and the device whose limits it was made for, on a thread of its own.
    ///
    /// # Errors
    ///
    /// What the operating system says when it has no thread.
    pub fn start<B: Backend + Send + 'static>(
        scheduler: Scheduler,
        backend: B,
    ) -> io::Result<Self> {
        Self::start_with(scheduler, backend, Arc::new(RealClock::start()), ())
    }

    /// The same, with a clock of one's own, and with [`Hooks`] for what is to be counted, and built anew.
    ///
    /// # Errors
    ///
    /// As [`start`](Self::start).
    pub fn start_with<B: Backend + Send + 'static>(
        scheduler: Scheduler,
        backend: B,
        clock: Arc<impl ThreadClock + 'static>,
        hooks: impl Hooks<B> + 'static,
    ) -> io::Result<Self> {
        let (engine, runner) = Self::new(scheduler, backend, Arc::clone(&clock) as _, hooks);
        let run = move || runner.run(&*clock);
        thread::Builder::new()
            .name("engine".to_owned())
            .spawn(run)?;
        Ok(engine)
    }

    /// The same without a thread: the loop is for the caller to [`run`](Runner::run), or to take the
    /// turns of.
    pub fn new<B: Backend, H: Hooks<B>>(
        scheduler: Scheduler,
        backend: B,
        clock: Arc<dyn Clock>,
        hooks: H,
    ) -> (Self, Runner<B, TicketOutlet, H>) {
        let shared = SharedScheduler::new(scheduler, clock);
        let tickets = Arc::<Tickets>::default();
        let outlet = TicketOutlet(Arc::clone(&tickets));
        let runner = Runner::new(Arc::clone(&shared), backend, outlet, hooks);
        let engine = Self {
            shared,
            tickets,
            next_id: AtomicU64::new(0),
        };
        (engine, runner)
    }

    /// An id that no other request has that asked for one here.
    pub fn next_id(&self) -> RequestId {
        RequestId::new(self.next_id.fetch_add(1, Ordering::Relaxed))
    }

    /// The time on the engine's clock.
    pub fn now(&self) -> Time {
        self.shared.now()
    }

    /// Puts a request in, whatever the device is doing, and gives its events.
    ///
    /// # Errors
    ///
    /// [`NotTaken`]: refused by the scheduler, or there is no engine.
    pub fn submit(&self, request: Request) -> Result<Ticket, NotTaken> {
        Ticket::submit(&self.tickets, &self.shared, request)
    }

    /// The same, with a function that is told each event, for a program that has no thread to wait with:
    /// it sends to a channel, or wakes a task. It is called on whatever thread the event comes from, and
    /// must neither block nor use the engine. One that panics is told nothing more, and its request is cancelled.
    ///
    /// # Errors
    ///
    /// As [`submit`](Self::submit).
    pub fn submit_to(
        &self,
        request: Request,
        sink: impl FnMut(Word) + Send + 'static,
    ) -> Result<Guard, NotTaken> {
        self.tickets.submit(&self.shared, request, Box::new(sink))
    }

    /// Takes no more requests, and waits until all have ended. Those that are left after `patience` are
    /// cancelled, between two steps.
    pub fn drain(&self, patience: Span) {
        self.shared.drain(Some(self.now() + patience));
        self.tickets.wait_all_ended();
    }

    /// The scheduler: its figures, a change while it runs, a drain that nobody waits for.
    pub fn scheduler(&self) -> &SharedScheduler {
        &self.shared
    }
}

impl Drop for EngineThread {
    fn drop(&mut self) {
        self.shared.close();
    }
}

impl fmt::Debug for EngineThread {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("EngineThread").finish_non_exhaustive()
    }
}
