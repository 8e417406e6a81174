//! The one inference thread, and the ways to it and from it.
//!
//! Requests and cancellations go to the scheduler under a lock, from the requests' own handlers; what
//! happens to requests comes out in one batch for each step and is handed to each request's own task.
//! The loop is [`serve_sched::driver`]'s. The server adds permits, batches, bounds for slow readers, metrics,
//! and another engine after a panic.
//! The thread is the only place that touches the device, and nobody waits for the device but the
//! thread: a request is taken or refused at once, whatever step is running.

mod live;
mod outlet;
mod permits;
mod reservation;
mod supervise;
mod update;

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;

use serve_core::{
    Backend, CancelReason, Class, Limit, Limits, Refusal, Request, RequestId, Span, TenantId, Time,
    TokenId,
};
use serve_sched::driver::{Clock, NotTaken, RealClock, Runner, SharedScheduler};
use serve_sched::settings::{Change, ChangeError};
use serve_sched::{ConfigError, Policies, Scheduler, Stats};
use thiserror::Error;
use tokio::sync::mpsc;

use crate::error::Problem;
use crate::lifecycle::{Lifecycle, State};
use crate::metrics::Metrics;
use live::Live;
use outlet::Messages;
use permits::Permits;
use supervise::Supervisor;

pub use permits::Permit;
pub(crate) use reservation::Reservation;
pub use supervise::Rebuild;
pub use update::Update;

/// Steps whose updates may be on their way to the requests' tasks at once. When the async side
/// falls further behind than this, the inference thread waits for it.
const BATCHES_MAX: usize = 64;

/// Updates that may lie unread for one request. The request of a client that falls further behind is cancelled:
/// without a bound, one that stopped reading would cost memory for as long as it stays connected.
const UNREAD_MAX: usize = 4_096;

/// Updates that a request's task takes from its channel at once.
const RECEIVED_MAX: usize = 32;

/// The inference thread, as the rest of the server sees it. Dropping it ends the thread.
pub struct Worker {
    shared: Arc<SharedScheduler>,
    live: Arc<Live>,
    permits: Arc<Permits>,
    limits: Limits,
    next_id: AtomicU64,
}

/// Why there is no inference thread.
#[derive(Debug, Error)]
pub enum WorkerError {
    /// The scheduler cannot run under these limits or policies.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The operating system gave no thread.
    #[error("the inference thread could not be started: {0}")]
    Thread(#[from] io::Error),
}

impl Worker {
    /// Starts the thread. At most `queue_cap` requests of one tenant are in the server beside those that
    /// the device can run at once, and twice as many of all together; 0 lets any number in. After a panic `rebuild` makes another
    /// engine, and `lifecycle` is told; without it, or when it keeps failing, nothing is taken any
    /// more. Must be called inside a tokio runtime.
    ///
    /// # Errors
    ///
    /// [`WorkerError`] when the limits or policies cannot work, or there is no thread to be had.
    pub(crate) fn start(
        backend: Box<dyn Backend + Send>,
        policies: Policies,
        queue_cap: u32,
        rebuild: Option<Rebuild>,
        lifecycle: Arc<Lifecycle>,
        metrics: Arc<Metrics>,
    ) -> Result<Self, WorkerError> {
        let limits = backend.limits();
        let scheduler = Scheduler::new(limits, policies)?;
        let clock = Arc::new(RealClock::start());
        let shared = SharedScheduler::new(scheduler, Arc::clone(&clock) as Arc<dyn Clock>);
        let share = match queue_cap {
            0 => Permits::SHARE_MAX,
            cap => cap.saturating_add(limits.sequences_max),
        };
        let live = Arc::new(Live::new(Arc::clone(&shared), Arc::clone(&metrics)));
        let (messages, received) = mpsc::channel(BATCHES_MAX);
        let supervisor = Supervisor::new(Arc::clone(&shared), limits, lifecycle, rebuild, metrics);
        let loop_of = Arc::clone(&shared);
        thread::Builder::new()
            .name("inference".to_owned())
            .spawn(move || {
                let outlet = Messages::new(messages);
                Runner::new(loop_of, backend, outlet, supervisor).run(&*clock);
            })?;
        tokio::spawn(live::fan_out(Arc::clone(&live), received));
        Ok(Self {
            shared,
            live,
            permits: Permits::new(share),
            limits,
            next_id: AtomicU64::new(1),
        })
    }

    /// What the device can hold.
    pub fn limits(&self) -> Limits {
        self.limits
    }

    /// The present time of the engine's clock.
    pub fn now(&self) -> Time {
        self.shared.now()
    }

    /// Goes on with other settings of the scheduler. `None` where there is none at the moment.
    pub(crate) fn change(&self, change: &Change) -> Option<Result<(), ChangeError>> {
        self.shared
            .with(|scheduler, now| scheduler.change(now, change))
    }

    /// An id that no other request has.
    pub fn next_id(&self) -> RequestId {
        RequestId::new(self.next_id.fetch_add(1, Ordering::Relaxed))
    }

    /// Takes a permit for a request of `tenant` that is about to come, before any work is done for it.
    ///
    /// # Errors
    ///
    /// A refusal for now, when the tenant has as many requests in the server as it may beside the others'.
    pub fn reserve(&self, tenant: TenantId) -> Result<Permit, Refusal> {
        self.permits.reserve(tenant).map_err(|full| Refusal::Later {
            limit: Limit::Concurrency {
                in_flight: full.taken,
                max: full.share,
            },
            // One permit is enough, and each of those refused needs its own.
            retry_after: self.time_to_drain(full.refused),
        })
    }

    /// Refuses what a rate, or a limit on what a tenant or a class has in flight, would refuse at any length,
    /// before any work is done for it, and sets aside `tokens` of the rates for that work.
    ///
    /// # Errors
    ///
    /// [`Problem::Refused`] by the scheduler.
    pub(crate) fn pre_admit(
        &self,
        tenant: TenantId,
        class: Class,
        tokens: usize,
    ) -> Result<Reservation, Problem> {
        let least = vec![TokenId::new(0)];
        let least = Request::new(self.next_id(), self.now(), least, 1)?;
        let least = least.with_tenant(tenant).with_class(class);
        let tokens = u32::try_from(tokens).unwrap_or(u32::MAX);
        match self.shared.pre_admit(&least, tokens) {
            Err(NotTaken::Refused(refusal)) => Err(Problem::Refused(refusal)),
            // It is told when the request comes.
            Ok(()) | Err(_) => Ok(Reservation::new(Arc::clone(&self.shared), least, tokens)),
        }
    }

    /// How long the engine takes to end `requests`, if that is known.
    fn time_to_drain(&self, requests: u32) -> Option<Span> {
        let rate = |scheduler: &Scheduler| scheduler.pace().drain_rate();
        let rate = self.shared.look(rate).flatten()?;
        Some(Span::from_secs_f64(f64::from(requests) / rate))
    }

    /// Puts a request into the scheduler. Its permit is given back when the engine has let go of it.
    ///
    /// # Errors
    ///
    /// [`Problem::Refused`] by the scheduler, or what is the matter when there is no engine.
    pub fn submit(&self, permit: Permit, request: Request) -> Result<Ticket, Problem> {
        let id = request.id();
        // Started, tokens, end.
        let updates_max = (request.output_tokens_max() as usize).saturating_add(2);
        let (sender, updates) = mpsc::channel(updates_max.min(UNREAD_MAX) + 1);
        let taken = self.live.submit(request, permit, sender);
        taken.map_err(|not_taken| match not_taken {
            NotTaken::Refused(refusal) => Problem::Refused(refusal),
            NotTaken::Rebuilding => Problem::NotReady(State::Rebuilding),
            NotTaken::Stopped => Problem::EngineStopped,
        })?;
        Ok(Ticket {
            id,
            updates,
            received: Vec::new(),
            live: Arc::clone(&self.live),
            ended: false,
        })
    }

    /// Cancels a request as if its client had gone away, except that the client is told.
    pub fn cancel(&self, id: RequestId) {
        self.live.cancel(id);
    }

    /// How long there has been work and no step has ended; zero where there is none.
    pub fn without_progress(&self) -> Span {
        self.shared.without_progress()
    }

    /// Has predictions begin anew: the warm-up, short and alone, is no measure of what follows it.
    pub(crate) fn forget_pace(&self) {
        self.shared.with(|scheduler, _| scheduler.forget_pace());
    }

    /// Has the scheduler take no more requests.
    pub fn drain(&self) {
        self.shared.drain(None);
    }

    /// Cancels every live request because the server is shutting down. Returns how many.
    pub fn cancel_all(&self) -> usize {
        let live = self.live();
        self.shared.cancel_all(CancelReason::Drain);
        live
    }

    /// Waits until no request is in the server and keeps new ones from coming in.
    pub async fn idle(&self) {
        self.permits.all_free().await;
    }

    /// Requests that the engine has not let go of.
    pub fn live(&self) -> usize {
        self.live.len()
    }

    /// How long the request of each class that has waited longest for its first step has waited.
    pub(crate) fn oldest_waits(&self) -> Vec<(Class, Span)> {
        self.live.oldest_waits(self.shared.now())
    }

    /// The scheduler's figures.
    pub fn stats(&self) -> Stats {
        self.shared.stats()
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        self.shared.close();
    }
}

/// One request in the engine. Dropping it before its last update cancels the request.
pub struct Ticket {
    id: RequestId,
    updates: mpsc::Receiver<Update>,
    /// Updates that have been received, the next one last: to take many from the channel costs hardly more than
    /// to take one.
    received: Vec<Update>,
    live: Arc<Live>,
    ended: bool,
}

impl Ticket {
    /// The next update; after the last one, [`Update::EngineStopped`] for ever.
    pub async fn next(&mut self) -> Update {
        if self.received.is_empty() {
            let several = self.updates.recv_many(&mut self.received, RECEIVED_MAX);
            several.await;
            self.received.reverse();
        }
        let update = self.received.pop().unwrap_or(Update::EngineStopped);
        self.ended |= update.is_last();
        update
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        if !self.ended {
            self.live.cancel(self.id);
        }
    }
}
