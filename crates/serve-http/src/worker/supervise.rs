//! Keeps an engine running: when one panics, its requests end with an error, and another one is built.
//!
//! A panic is a fault of the device or of this code, and nothing that the engine held can be trusted
//! after it, so all of it is dropped and made anew. That is tried a few times in a row and not for
//! ever: a fault that comes back at once will come back again, and then a process that ends its
//! readiness for good is more use to its operator than one that pretends.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use serve_core::{Backend, Limits, Request, RequestId, TokenId};
use serve_sched::{Engine, Policies, Progress, Scheduler};
use tokio::sync::mpsc;
use tracing::{error, info};

use super::clock::Clock;
use super::drive::{Drive, Over};
use super::shared::SharedScheduler;
use super::update::{Batch, Message};
use crate::lifecycle::{Lifecycle, State};
use crate::metrics::Metrics;

/// Makes the device and the policies anew. The error is for the log.
pub type Rebuild = Box<dyn FnMut() -> Result<(Box<dyn Backend + Send>, Policies), String> + Send>;

/// Attempts in a row, without a request that has finished in between.
const ATTEMPTS_MAX: u32 = 3;

/// Before the second attempt, and twice as long before each further one.
const PAUSE: Duration = Duration::from_millis(200);

/// The request that a new backend runs first; those of clients count from 1.
const WARM_UP: RequestId = RequestId::new(0);

/// What outlives an engine.
pub(super) struct Supervisor {
    pub(super) shared: Arc<SharedScheduler>,
    pub(super) messages: mpsc::Sender<Message>,
    pub(super) clock: Clock,
    pub(super) limits: Limits,
    pub(super) lifecycle: Arc<Lifecycle>,
    pub(super) rebuild: Option<Rebuild>,
    pub(super) metrics: Arc<Metrics>,
}

impl Supervisor {
    /// Runs `backend`, and others after it, until it is closed or no engine can be had. The
    /// end of the message channel, when this returns, fails whatever is live.
    pub(super) fn run(mut self, backend: Box<dyn Backend + Send>) {
        let mut attempts = 0;
        let mut finished = 0;
        let mut next = Some(backend);
        while let Some(backend) = next.take() {
            let drive = Drive {
                backend,
                shared: Arc::clone(&self.shared),
                messages: self.messages.clone(),
                clock: self.clock,
                metrics: Arc::clone(&self.metrics),
            };
            // The backend is dropped in here and the scheduler is given up below, so nothing sees
            // their broken state.
            if catch_unwind(AssertUnwindSafe(|| drive.run())).is_ok_and(|over| over == Over::Closed)
            {
                break;
            }
            error!("the inference thread panicked");
            // First the state, so that a client that hears of it finds it. A server that drains ends without.
            let rebuilding = self.rebuild.is_some() && self.lifecycle.rebuild();
            if !rebuilding {
                self.shared.close();
            }
            let listening = self.tell_lost();
            let now_finished = self.shared.stats().counters.finished;
            if now_finished > finished {
                attempts = 0;
            }
            finished = now_finished;
            if rebuilding && listening {
                next = self.another(&mut attempts);
            }
            if next.is_none() {
                error!("nothing can be served any more");
                self.shared.close();
                self.lifecycle.advance(State::Failed);
            }
        }
        self.shared.close();
    }

    /// Gives the engine up and tells everybody who was in it. Returns whether anybody still listens.
    fn tell_lost(&self) -> bool {
        let mut last_words = Batch::default();
        let engine = self.shared.lose(&mut last_words);
        [Message::Batch(last_words), Message::EngineLost(engine)]
            .into_iter()
            .all(|message| self.messages.blocking_send(message).is_ok())
    }

    /// Another engine, if one can be built.
    fn another(&mut self, attempts: &mut u32) -> Option<Box<dyn Backend + Send>> {
        while *attempts < ATTEMPTS_MAX {
            if *attempts > 0 {
                thread::sleep(PAUSE * (1 << (*attempts - 1)));
            }
            *attempts += 1;
            match self.build() {
                Ok((backend, scheduler)) => {
                    self.shared.install(scheduler);
                    info!(attempt = *attempts, "the backend was built anew");
                    // Not when the server drains by now; then it has told the engine.
                    self.lifecycle.advance(State::Ready);
                    return Some(backend);
                }
                Err(cause) => error!(attempt = *attempts, %cause, "the backend could not be built"),
            }
        }
        None
    }

    fn build(&mut self) -> Result<(Box<dyn Backend + Send>, Scheduler), String> {
        let Some(rebuild) = &mut self.rebuild else {
            return Err("there is nothing to build it with".to_owned());
        };
        let built = catch_unwind(AssertUnwindSafe(rebuild));
        let (backend, policies) = built.unwrap_or_else(|_| Err("it panicked".to_owned()))?;
        if backend.limits() != self.limits {
            return Err("it holds something else than the one before".to_owned());
        }
        let warm = catch_unwind(AssertUnwindSafe(|| self.warm_up(backend)));
        let warm = warm.unwrap_or_else(|_| Err("it panicked".to_owned()));
        let backend = warm.map_err(|cause| format!("its first request failed: {cause}"))?;
        let scheduler = Scheduler::new(self.limits, policies).map_err(|error| error.to_string())?;
        Ok((backend, scheduler))
    }

    /// Has a new backend run one short request from its first step to its last, before anybody's,
    /// under a scheduler of its own: it counts for nothing and uses up nobody's rate.
    fn warm_up(&self, backend: Box<dyn Backend + Send>) -> Result<Box<dyn Backend + Send>, String> {
        let scheduler = Scheduler::new(self.limits, Policies::default());
        let mut engine = Engine::new(scheduler.map_err(|error| error.to_string())?, backend);
        let mut now = self.clock.now();
        let tokens = 2.min(self.limits.context_max / 2).max(1);
        let request = Request::new(WARM_UP, now, vec![TokenId::new(0)], tokens)
            .map_err(|error| error.to_string())?;
        let taken = engine.scheduler_mut().submit(now, request);
        taken.map_err(|refusal| refusal.to_string())?;
        loop {
            now = match engine.step(now) {
                // What a mock has only computed need not be waited for.
                Progress::Ran { until, .. } => until.max(self.clock.now()),
                Progress::Idle { wake: Some(wake) } => wake,
                Progress::Failed { error, .. } => return Err(error.to_string()),
                // It is over, and the backend has been told to forget it.
                Progress::Idle { wake: None } => break,
            };
        }
        let (scheduler, backend) = engine.into_parts();
        match scheduler.stats().counters.finished {
            0 => Err("it did not finish".to_owned()),
            _ => Ok(backend),
        }
    }
}
