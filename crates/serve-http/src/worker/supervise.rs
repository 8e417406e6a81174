//! Keeps an engine running: when one panics, whoever was in it is told, and another one is built.
//!
//! A panic is a fault of the device or of this code, and nothing that the engine held can be trusted
//! after it, so all of it is dropped and made anew. That is tried a few times in a row and not for
//! ever: a fault that comes back at once will come back again, and then a process that ends its
//! readiness for good is more use to whoever watches it than one that pretends.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use serve_core::{Backend, Limits, Request, RequestId, TokenId};
use serve_sched::{Engine, Policies, Progress, Scheduler};
use tokio::sync::mpsc;
use tracing::{error, info};

use super::clock::Clock;
use super::drive::Drive;
use super::inbox::Inbox;
use super::live::{Batch, Message, Update};
use super::reading::{Past, Reading};
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

pub(super) type AnyEngine = Engine<Box<dyn Backend + Send>>;

/// What outlives an engine.
pub(super) struct Supervisor {
    pub(super) inbox: Arc<Inbox>,
    pub(super) messages: mpsc::Sender<Message>,
    pub(super) clock: Clock,
    pub(super) reading: Arc<Mutex<Reading>>,
    pub(super) limits: Limits,
    pub(super) lifecycle: Arc<Lifecycle>,
    pub(super) rebuild: Option<Rebuild>,
    pub(super) metrics: Arc<Metrics>,
}

impl Supervisor {
    /// Runs `engine`, and others after it, until the inbox is closed or no engine can be had. The
    /// end of the message channel, when this returns, fails whatever is live.
    pub(super) fn run(mut self, engine: AnyEngine) {
        let mut attempts = 0;
        let mut finished = 0;
        let mut past = Past::default();
        let mut next = Some(engine);
        while let Some(engine) = next.take() {
            let drive = Drive::new(
                engine,
                Arc::clone(&self.inbox),
                self.messages.clone(),
                self.clock,
                Arc::clone(&self.reading),
                Arc::clone(&self.metrics),
            );
            let mut drive = drive.after(past.clone());
            // The engine is dropped below and not used again after a panic, so nothing sees its
            // broken state.
            if catch_unwind(AssertUnwindSafe(|| drive.run())).is_ok() {
                break;
            }
            error!("the inference thread panicked");
            let unanswered = drive.unanswered().to_vec();
            // What is broken may panic again while it is dropped.
            let _ = catch_unwind(AssertUnwindSafe(|| drop(drive)));
            let last = self.reading().stats.clone();
            if last.counters.finished > finished {
                attempts = 0;
            }
            finished = last.counters.finished;
            past = Past::ended_with(&last).with_failed(unanswered.len());
            self.show_lost(&past);
            // First the state, so that whoever is told finds it. A server that drains ends without.
            let rebuilding = self.rebuild.is_some() && self.lifecycle.rebuild();
            let listening = self.tell_lost(&unanswered);
            if rebuilding && listening {
                next = self.another(&past, &mut attempts);
            }
            if next.is_none() {
                error!("nothing can be served any more");
                self.inbox.close();
                // They are told by the end of the messages.
                past = past.with_failed(self.inbox.submissions());
                self.show_lost(&past);
                self.lifecycle.advance(State::Failed);
            }
        }
        self.inbox.close();
    }

    /// Shows that no engine holds anything now.
    fn show_lost(&self, past: &Past) {
        let mut reading = self.reading();
        *reading = Reading::lost(&reading, past);
    }

    /// Tells everybody whose request is gone with the engine: those it had not even answered, and
    /// those it had accepted. Returns whether anybody still listens.
    fn tell_lost(&self, unanswered: &[RequestId]) -> bool {
        let unanswered = unanswered.iter().map(|&id| (id, Update::EngineStopped));
        let unanswered = Message::Batch(Batch {
            updates: unanswered.collect(),
            ..Batch::default()
        });
        [unanswered, Message::EngineLost]
            .into_iter()
            .all(|message| self.messages.blocking_send(message).is_ok())
    }

    /// Another engine, if one can be built.
    fn another(&mut self, past: &Past, attempts: &mut u32) -> Option<AnyEngine> {
        while *attempts < ATTEMPTS_MAX {
            if *attempts > 0 {
                thread::sleep(PAUSE * (1 << (*attempts - 1)));
            }
            *attempts += 1;
            match self.build() {
                Ok(engine) => {
                    let reading = Reading::of(engine.scheduler(), past, self.clock.now());
                    *self.reading() = reading;
                    info!(attempt = *attempts, "the backend was built anew");
                    // Not when the server drains by now; then the engine will be told to drain.
                    self.lifecycle.advance(State::Ready);
                    return Some(engine);
                }
                Err(cause) => error!(attempt = *attempts, %cause, "the backend could not be built"),
            }
        }
        None
    }

    fn build(&mut self) -> Result<AnyEngine, String> {
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
        Ok(Engine::new(scheduler, backend))
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

    fn reading(&self) -> std::sync::MutexGuard<'_, Reading> {
        self.reading.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
