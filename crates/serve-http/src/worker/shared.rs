//! The scheduler, as both of its sides share it.
//!
//! Requests are put in and cancelled by their own handlers, under a lock that the inference thread
//! holds while it plans a step and while it books what came of it, but never while the device runs.
//! So a request is taken or refused at once, whatever step is running, and however long it takes.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use serve_core::{
    BackendError, CancelReason, Refusal, Request, RequestId, Span, StepOutcome, StepPlan, Time,
};
use serve_sched::{Scheduler, Stats};

use super::clock::Clock;
use super::past::Past;
use super::update::{Batch, EngineNumber, Update};

/// Why a request was not put in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Turned {
    /// The scheduler has refused it.
    Refused(Refusal),
    /// There is no engine, and another one is being built.
    Rebuilding,
    /// There is no engine and there will be none.
    Closed,
}

/// What the thread is to do now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Planned {
    /// Run the plan.
    Step,
    /// Nothing before this time, unless something comes; `None` is never.
    Nothing(Option<Time>),
    /// The scheduler has panicked in a handler's hands, and nothing that it holds can be trusted.
    Broken,
}

pub(super) struct SharedScheduler {
    state: Mutex<State>,
    bell: Condvar,
    clock: Clock,
}

struct State {
    /// None from the loss of an engine until there is another one.
    scheduler: Option<Scheduler>,
    number: EngineNumber,
    broken: bool,
    /// Whether something has come since the thread looked last.
    rung: bool,
    closed: bool,
    draining: bool,
    /// When a step ended last, or since when there is work.
    progress_at: Time,
    /// When it was noticed that the requests had to be cancelled which now have been.
    called_off: Vec<Time>,
    /// What the engines before this one have counted.
    past: Past,
}

impl SharedScheduler {
    pub(super) fn new(scheduler: Scheduler, clock: Clock) -> Self {
        Self {
            state: Mutex::new(State {
                scheduler: Some(scheduler),
                number: EngineNumber::default(),
                broken: false,
                rung: false,
                closed: false,
                draining: false,
                progress_at: clock.now(),
                called_off: Vec::new(),
                past: Past::default(),
            }),
            bell: Condvar::new(),
            clock,
        }
    }

    // The side of the handlers.

    /// Puts a request in. `enter` is called before anything can happen to it, and nothing has when
    /// an error is returned.
    pub(super) fn submit(
        &self,
        request: Request,
        enter: impl FnOnce(EngineNumber),
    ) -> Result<(), Turned> {
        let mut state = self.lock();
        let now = self.clock.now();
        if state.closed {
            state.past.one_failed(request.class());
            return Err(Turned::Closed);
        }
        let Some(scheduler) = state.sound() else {
            return Err(Turned::Rebuilding);
        };
        let was_idle = scheduler.is_idle();
        enter(state.number);
        if was_idle {
            state.progress_at = now;
        }
        // If it panics, the request is lost with the engine, and ends with the others.
        let taken = state.with(|scheduler| scheduler.submit(now, request));
        drop(state);
        self.bell.notify_one();
        taken.unwrap_or(Ok(())).map_err(Turned::Refused)
    }

    /// Calls a request off; `noticed` is when it was clear that it has to be. One that is gone
    /// already has had its last event.
    pub(super) fn cancel(&self, id: RequestId, reason: CancelReason, noticed: Time) {
        let mut state = self.lock();
        let now = self.clock.now();
        if state.with(|scheduler| scheduler.cancel(now, id, reason)) == Some(true) {
            state.called_off.push(noticed);
        }
        drop(state);
        self.bell.notify_one();
    }

    /// Forgets how fast the engine has been.
    pub(super) fn forget_pace(&self) {
        self.lock().with(Scheduler::forget_pace);
    }

    /// Takes no more requests.
    pub(super) fn drain(&self) {
        let mut state = self.lock();
        let now = self.clock.now();
        state.draining = true;
        state.with(|scheduler| scheduler.drain(now));
        drop(state);
        self.bell.notify_one();
    }

    /// Calls every request off.
    pub(super) fn cancel_all(&self, reason: CancelReason) {
        let mut state = self.lock();
        let now = self.clock.now();
        state.with(|scheduler| scheduler.cancel_all(now, reason));
        drop(state);
        self.bell.notify_one();
    }

    /// Takes nothing more and ends the thread.
    pub(super) fn close(&self) {
        self.lock().closed = true;
        self.bell.notify_all();
    }

    /// The scheduler's figures, those of the engines before it included.
    pub(super) fn stats(&self) -> Stats {
        self.lock().stats()
    }

    /// How long the engine takes to end `requests`, if that is known.
    pub(super) fn time_to_drain(&self, requests: u32) -> Option<Span> {
        let mut state = self.lock();
        let rate = state.sound()?.pace().drain_rate()?;
        Some(Span::from_secs_f64(f64::from(requests) / rate))
    }

    /// How long there has been work and no step has ended; zero where there is none.
    pub(super) fn without_progress(&self) -> Span {
        let mut state = self.lock();
        let has_work = state.sound().is_some_and(|scheduler| !scheduler.is_idle());
        match has_work {
            true => self.clock.now().since(state.progress_at),
            false => Span::ZERO,
        }
    }

    // The side of the inference thread.

    /// Waits until something comes: not at all, for a while, or (`None`) until it does. Returns
    /// `false` when it is closed.
    pub(super) fn wait(&self, patience: Option<Duration>) -> bool {
        let quiet = |state: &mut State| !state.rung && !state.closed;
        let state = self.lock();
        let mut state = match patience {
            Some(Duration::ZERO) => state,
            Some(patience) => {
                let waited = self.bell.wait_timeout_while(state, patience, quiet);
                waited.unwrap_or_else(PoisonError::into_inner).0
            }
            None => {
                let waited = self.bell.wait_while(state, quiet);
                waited.unwrap_or_else(PoisonError::into_inner)
            }
        };
        state.rung = false;
        !state.closed
    }

    /// Plans a step.
    pub(super) fn plan(&self, now: Time, plan: &mut StepPlan) -> Planned {
        let mut state = self.lock();
        let Some(scheduler) = state.sound() else {
            return Planned::Broken;
        };
        match scheduler.plan_into(now, plan) {
            true => Planned::Step,
            false => Planned::Nothing(scheduler.next_timeout()),
        }
    }

    /// Books what came of a step that ended at `now`.
    pub(super) fn booked(&self, now: Time, plan: &StepPlan, ended: Ended<'_>) {
        let mut state = self.lock();
        state.progress_at = self.clock.now();
        // One that is broken is noticed at the next plan.
        let Some(scheduler) = state.sound() else {
            return;
        };
        scheduler.book(now, plan.step(), ended);
    }

    /// Moves what has happened to `batch`.
    pub(super) fn take_events(&self, batch: &mut Batch) {
        self.lock().take_events(batch);
    }

    /// Gives up an engine that has panicked: what it held has failed. What it had yet to say goes to
    /// `batch`.
    pub(super) fn lose(&self, batch: &mut Batch) -> EngineNumber {
        let mut state = self.lock();
        // What is broken may panic again.
        let _ = catch_unwind(AssertUnwindSafe(|| state.take_events(batch)));
        state.past = Past::ended_with(&state.stats());
        let lost = state.scheduler.take();
        let _ = catch_unwind(AssertUnwindSafe(|| drop(lost)));
        state.number
    }

    /// Goes on with another engine.
    pub(super) fn install(&self, mut scheduler: Scheduler) {
        let mut state = self.lock();
        let now = self.clock.now();
        if state.draining {
            scheduler.drain(now);
        }
        state.scheduler = Some(scheduler);
        state.number.0 += 1;
        state.broken = false;
        state.progress_at = now;
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // After a panic of the thread that held it, the thread's supervisor gives the scheduler up.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// How a step ended.
pub(super) type Ended<'a> = Result<&'a StepOutcome, &'a BackendError>;

impl State {
    /// The scheduler, if it can be trusted.
    fn sound(&mut self) -> Option<&mut Scheduler> {
        self.scheduler.as_mut().filter(|_| !self.broken)
    }

    /// Does something with the scheduler on a handler's thread, which a panic must not end, and has
    /// the inference thread look at what came of it. `None` when there is no scheduler, or none any
    /// more.
    fn with<R>(&mut self, act: impl FnOnce(&mut Scheduler) -> R) -> Option<R> {
        let scheduler = self.sound()?;
        let done = catch_unwind(AssertUnwindSafe(|| act(scheduler)));
        self.rung = true;
        self.broken = done.is_err();
        done.ok()
    }

    fn stats(&self) -> Stats {
        match &self.scheduler {
            Some(scheduler) => self.past.and(scheduler.stats()),
            None => self.past.alone(),
        }
    }

    fn take_events(&mut self, batch: &mut Batch) {
        batch.called_off.append(&mut self.called_off);
        let Some(scheduler) = &mut self.scheduler else {
            return;
        };
        while let Some(event) = scheduler.poll_event() {
            batch.updates.push((event.request, Update::Happened(event)));
        }
    }
}
