//! Plan, execute, complete: a scheduler and a device in one, still without a clock.

use serve_core::{Backend, BackendError, Span, StepId, StepOutcome, StepPlan, Time};

use crate::scheduler::Scheduler;

/// A scheduler that drives its device. Who owns an engine owns its time: [`step`](Self::step) takes
/// `now` and says when the step has ended.
///
/// - In virtual time the next call's `now` is [`Progress::Ran::until`].
/// - In real time with a mock, which computes how long a step takes and does not wait, the driver
///   sleeps to `until`.
/// - In real time with a device, which returns when the step is done, `until` has passed already.
#[derive(Debug)]
pub struct Engine<B> {
    scheduler: Scheduler,
    backend: B,
    plan: StepPlan,
    outcome: StepOutcome,
}

/// What one call of [`Engine::step`] did.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Progress {
    /// Nothing can run now.
    Idle {
        /// When that changes without any input; `None` is never.
        wake: Option<Time>,
    },
    /// A step ran.
    Ran {
        /// Which step.
        step: StepId,
        /// When it ended. What it brought about is stamped with this time.
        until: Time,
        /// How long the device took.
        elapsed: Span,
        /// Requests in the step.
        segments: u32,
        /// Positions run.
        tokens: u32,
    },
    /// A step failed, and its requests with it; or the device was lost, and every started request.
    Failed {
        /// Which step.
        step: StepId,
        /// What the backend said.
        error: BackendError,
    },
}

impl<B: Backend> Engine<B> {
    /// An engine of a scheduler and the device whose limits it was made for.
    pub fn new(scheduler: Scheduler, backend: B) -> Self {
        Self {
            scheduler,
            backend,
            plan: StepPlan::new(),
            outcome: StepOutcome::new(),
        }
    }

    /// Plans a step at `now`, has the device run it, and books what came of it at its end. Blocks
    /// as long as the device does.
    pub fn step(&mut self, now: Time) -> Progress {
        if !self.scheduler.plan_into(now, &mut self.plan) {
            return Progress::Idle {
                wake: self.scheduler.next_timeout(),
            };
        }
        let step = self.plan.step();
        let ran = self.backend.execute(&self.plan, &mut self.outcome);
        let elapsed = ran.as_ref().map_or(Span::ZERO, |()| self.outcome.elapsed);
        let until = now + elapsed;
        let ended = ran.as_ref().map(|()| &self.outcome);
        self.scheduler.book(until, step, ended);
        match ran {
            Ok(()) => Progress::Ran {
                step,
                until,
                elapsed,
                segments: self.plan.segments().len() as u32,
                tokens: self.plan.tokens(),
            },
            Err(error) => Progress::Failed { step, error },
        }
    }
}

impl<B> Engine<B> {
    /// The scheduler.
    pub fn scheduler(&self) -> &Scheduler {
        &self.scheduler
    }

    /// The scheduler, to submit, to cancel, to poll events.
    pub fn scheduler_mut(&mut self) -> &mut Scheduler {
        &mut self.scheduler
    }

    /// The device.
    pub fn backend(&self) -> &B {
        &self.backend
    }

    /// The plan of the step that ran last.
    pub fn last_plan(&self) -> &StepPlan {
        &self.plan
    }

    /// Takes the engine apart.
    pub fn into_parts(self) -> (Scheduler, B) {
        (self.scheduler, self.backend)
    }
}
