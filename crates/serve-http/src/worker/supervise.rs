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

use serve_core::{
    Backend, BackendError, Limits, Request, RequestId, Span, StepOutcome, StepPlan, TokenId,
};
use serve_sched::driver::{Hooks, SharedScheduler, Stopped};
use serve_sched::{Engine, Policies, Progress, Scheduler};
use tracing::{error, info, warn};

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

type AnyBackend = Box<dyn Backend + Send>;

/// What outlives an engine.
pub(super) struct Supervisor {
    shared: Arc<SharedScheduler>,
    limits: Limits,
    lifecycle: Arc<Lifecycle>,
    rebuild: Option<Rebuild>,
    metrics: Arc<Metrics>,
    /// Attempts since a request has finished, and how many had then.
    attempts: u32,
    finished: u64,
}

impl Supervisor {
    pub(super) fn new(
        shared: Arc<SharedScheduler>,
        limits: Limits,
        lifecycle: Arc<Lifecycle>,
        rebuild: Option<Rebuild>,
        metrics: Arc<Metrics>,
    ) -> Self {
        Self {
            shared,
            limits,
            lifecycle,
            rebuild,
            metrics,
            attempts: 0,
            finished: 0,
        }
    }
}

impl Hooks<AnyBackend> for Supervisor {
    fn stepped(&mut self, plan: &StepPlan, ended: Result<&StepOutcome, &BackendError>, took: Span) {
        let sequences = plan.segments().len() as u32;
        match ended {
            // One that runs nothing only lets the backend forget requests.
            Ok(_) if sequences > 0 => self.metrics.stepped(took, sequences, plan.tokens()),
            Ok(_) => {}
            Err(error) => warn!(step = plan.step().get(), %error, "a step failed"),
        }
    }

    fn lost(&mut self, why: &Stopped) -> bool {
        error!(cause = &*why.cause, "the inference thread panicked");
        // First the state, so that a client that hears of it finds it. A server that drains ends without.
        let rebuilding = self.rebuild.is_some() && self.lifecycle.rebuild();
        if !rebuilding {
            self.give_up();
        }
        rebuilding
    }

    fn rebuild(&mut self) -> Option<(Scheduler, AnyBackend)> {
        let finished = self.shared.stats().counters.finished;
        if finished > self.finished {
            self.attempts = 0;
        }
        self.finished = finished;
        let another = self.another();
        if another.is_none() {
            self.give_up();
        }
        another
    }

    fn rebuilt(&mut self) {
        // Not when the server drains by now; then it has told the engine.
        self.lifecycle.advance(State::Ready);
    }
}

impl Supervisor {
    /// Another engine, if one can be built.
    fn another(&mut self) -> Option<(Scheduler, AnyBackend)> {
        while self.attempts < ATTEMPTS_MAX {
            if self.attempts > 0 {
                thread::sleep(PAUSE * (1 << (self.attempts - 1)));
            }
            self.attempts += 1;
            let attempt = self.attempts;
            match self.build() {
                Ok(engine) => {
                    info!(attempt, "the backend was built anew");
                    return Some(engine);
                }
                Err(cause) => error!(attempt, %cause, "the backend could not be built"),
            }
        }
        None
    }

    fn give_up(&self) {
        error!("nothing can be served any more");
        self.shared.close();
        self.lifecycle.advance(State::Failed);
    }

    fn build(&mut self) -> Result<(Scheduler, AnyBackend), String> {
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
        Ok((scheduler, backend))
    }

    /// Has a new backend run one short request from its first step to its last, before anybody's,
    /// under a scheduler of its own: it counts for nothing and uses up nobody's rate.
    fn warm_up(&self, backend: AnyBackend) -> Result<AnyBackend, String> {
        let scheduler = Scheduler::new(self.limits, Policies::default());
        let mut engine = Engine::new(scheduler.map_err(|error| error.to_string())?, backend);
        let mut now = self.shared.now();
        let tokens = 2.min(self.limits.context_max / 2).max(1);
        let request = Request::new(WARM_UP, now, vec![TokenId::new(0)], tokens)
            .map_err(|error| error.to_string())?;
        let taken = engine.scheduler_mut().submit(now, request);
        taken.map_err(|refusal| refusal.to_string())?;
        loop {
            now = match engine.step(now) {
                // What a mock has only computed need not be waited for.
                Progress::Ran { until, .. } => until.max(self.shared.now()),
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
