//! The one inference thread, and the ways to it and from it.
//!
//! Requests and cancellations go to the scheduler under a lock (`shared`), from the requests' own handlers; what
//! happens to requests comes out in one batch for each step and is handed to each request's own task.
//! The thread is the only place that touches the device, and nobody waits for the device but the
//! thread: a request is taken or refused at once, whatever step is running.

mod clock;
mod drive;
mod live;
mod past;
mod permits;
mod shared;
mod supervise;
mod update;

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;

use serve_core::{
    Backend, CancelReason, Limit, Limits, Refusal, Request, RequestId, Span, TenantId, Time,
};
use serve_sched::{ConfigError, Policies, Scheduler, Stats};
use thiserror::Error;
use tokio::sync::mpsc;

use crate::error::Problem;
use crate::lifecycle::{Lifecycle, State};
use crate::metrics::Metrics;
pub(crate) use clock::Clock;
use live::{Entered, Live, WayOut};
use permits::Permits;
use shared::{SharedScheduler, Turned};
use supervise::Supervisor;

pub use permits::Permit;
pub use supervise::Rebuild;
pub use update::Update;

/// Steps whose updates may be on their way to the requests' tasks at once. When the async side
/// falls further behind than this, the inference thread waits for it.
const BATCHES_MAX: usize = 64;

/// Updates that may lie unread for one request. The request of a client that falls further behind is cancelled:
/// without a bound, one that stopped reading would cost memory for as long as it stays connected.
const UNREAD_MAX: usize = 4_096;

/// The inference thread, as the rest of the server sees it. Dropping it ends the thread.
pub struct Worker {
    shared: Arc<SharedScheduler>,
    live: Arc<Live>,
    permits: Arc<Permits>,
    limits: Limits,
    clock: Clock,
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
        let clock = Clock::start();
        let shared = Arc::new(SharedScheduler::new(scheduler, clock));
        let share = match queue_cap {
            0 => Permits::SHARE_MAX,
            cap => cap.saturating_add(limits.sequences_max),
        };
        let live = Arc::new(Live::default());
        let (messages, received) = mpsc::channel(BATCHES_MAX);
        let supervisor = Supervisor {
            shared: Arc::clone(&shared),
            messages,
            clock,
            limits,
            lifecycle,
            rebuild,
            metrics: Arc::clone(&metrics),
        };
        thread::Builder::new()
            .name("inference".to_owned())
            .spawn(move || supervisor.run(backend))?;
        let way = WayOut {
            shared: Arc::clone(&shared),
            clock,
            metrics,
        };
        tokio::spawn(live::fan_out(Arc::clone(&live), way, received));
        Ok(Self {
            shared,
            live,
            permits: Permits::new(share),
            limits,
            clock,
            next_id: AtomicU64::new(1),
        })
    }

    /// What the device can hold.
    pub fn limits(&self) -> Limits {
        self.limits
    }

    /// The present time of the engine's clock.
    pub fn now(&self) -> Time {
        self.clock.now()
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
            retry_after: self.shared.time_to_drain(full.refused),
        })
    }

    /// Puts a request into the scheduler. Its permit is given back when the engine has let go of it.
    ///
    /// # Errors
    ///
    /// [`Problem::Refused`] by the scheduler, or what is the matter when there is no engine.
    pub fn submit(&self, permit: Permit, request: Request) -> Result<Ticket, Problem> {
        let entered = Entered::of(&request);
        // Started, tokens, end.
        let updates_max = (request.output_tokens_max() as usize).saturating_add(2);
        let (sender, updates) = mpsc::channel(updates_max.min(UNREAD_MAX) + 1);
        let enter = |engine| self.live.enter(entered, engine, permit, sender);
        if let Err(turned) = self.shared.submit(request, enter) {
            self.live.leave(entered.id);
            return Err(match turned {
                Turned::Refused(refusal) => Problem::Refused(refusal),
                Turned::Rebuilding => Problem::NotReady(State::Rebuilding),
                Turned::Closed => Problem::EngineStopped,
            });
        }
        Ok(Ticket {
            id: entered.id,
            updates,
            shared: Arc::clone(&self.shared),
            clock: self.clock,
            ended: false,
        })
    }

    /// Cancels a request as if its client had gone away, except that the client is told.
    pub fn cancel(&self, id: RequestId) {
        self.shared
            .cancel(id, CancelReason::Client, self.clock.now());
    }

    /// How long there has been work and no step has ended; zero where there is none.
    pub fn without_progress(&self) -> Span {
        self.shared.without_progress()
    }

    /// Has predictions begin anew: the warm-up, short and alone, is no measure of what follows it.
    pub(crate) fn forget_pace(&self) {
        self.shared.forget_pace();
    }

    /// Has the scheduler take no more requests.
    pub fn drain(&self) {
        self.shared.drain();
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
    shared: Arc<SharedScheduler>,
    clock: Clock,
    ended: bool,
}

impl Ticket {
    /// The next update; after the last one, [`Update::EngineStopped`] for ever.
    pub async fn next(&mut self) -> Update {
        let update = match self.updates.recv().await {
            Some(update) => update,
            None => Update::EngineStopped,
        };
        self.ended |= update.is_last();
        update
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        if !self.ended {
            self.shared
                .cancel(self.id, CancelReason::Client, self.clock.now());
        }
    }
}
