//! The scheduler, as the engine's loop and those who ask share it.
//!
//! Requests are put in and cancelled under a lock that the loop holds while it plans a step and while it
//! books what came of it, but never while the device runs. So a request is taken or refused at once,
//! whatever step is running, and however long it takes.

use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, MutexGuard};

use serve_core::{
    BackendError, CancelReason, Event, Refusal, Request, RequestId, Span, StepOutcome, StepPlan,
    Time,
};
use thiserror::Error;

use super::clock::Clock;
use super::past::Past;
use crate::scheduler::{Scheduler, Stats};

/// Why a request was not taken.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
pub enum NotTaken {
    /// The scheduler has refused it.
    #[error(transparent)]
    Refused(#[from] Refusal),
    /// The engine was lost, and another one is being built.
    #[error("the engine is being rebuilt")]
    Rebuilding,
    /// There is no engine and there will be none.
    #[error("the engine has stopped")]
    Stopped,
}

/// A scheduler for any number of threads, one of which runs its engine's loop.
///
/// A panic of the scheduler or of a policy, on whatever thread, ends no thread: the engine is lost.
pub struct SharedScheduler {
    state: Mutex<State>,
    clock: Arc<dyn Clock>,
}

struct State {
    /// None from the loss of an engine until there is another one.
    scheduler: Option<Scheduler>,
    broken: bool,
    closed: bool,
    draining: bool,
    /// When whatever is left of a drain is cancelled.
    drain_until: Option<Time>,
    /// When a step ended last, or since when there is work.
    progress_at: Time,
    /// What the engines before this one have counted.
    past: Past,
}

/// What the loop is to do now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Planned {
    /// Run the plan.
    Step,
    /// Nothing before this time, unless something comes; `None` is never.
    Nothing(Option<Time>),
    /// The scheduler has panicked, and nothing that it holds can be trusted.
    Broken,
    /// End.
    Closed,
}

impl SharedScheduler {
    /// Shares a scheduler, whose loop waits on `clock`.
    pub fn new(scheduler: Scheduler, clock: Arc<dyn Clock>) -> Arc<Self> {
        let state = State {
            scheduler: Some(scheduler),
            broken: false,
            closed: false,
            draining: false,
            drain_until: None,
            progress_at: clock.now(),
            past: Past::default(),
        };
        Arc::new(Self {
            state: Mutex::new(state),
            clock,
        })
    }

    /// The time on the engine's clock.
    pub fn now(&self) -> Time {
        self.clock.now()
    }

    /// Puts a request in. One in whose hands the scheduler panics counts as taken, and is lost with the
    /// engine.
    ///
    /// # Errors
    ///
    /// [`NotTaken`], and then nothing happens to it.
    pub fn submit(&self, request: Request) -> Result<(), NotTaken> {
        let mut state = self.lock();
        let now = self.clock.now();
        if state.closed {
            state.past.one_failed(request.class());
            return Err(NotTaken::Stopped);
        }
        let scheduler = state.sound().ok_or(NotTaken::Rebuilding)?;
        if scheduler.is_idle() {
            state.progress_at = now;
        }
        let taken = state.with(|scheduler| scheduler.submit(now, request));
        drop(state);
        self.clock.wake();
        Ok(taken.unwrap_or(Ok(()))?)
    }

    /// Refuses a request before its length is known, as [`Scheduler::pre_admit`] does.
    ///
    /// # Errors
    ///
    /// [`NotTaken::Refused`].
    pub fn pre_admit(&self, least: &Request, tokens: u32) -> Result<(), NotTaken> {
        let asked = self.quietly(|scheduler, now| scheduler.pre_admit(now, least, tokens));
        Ok(asked.unwrap_or(Ok(()))?)
    }

    /// Gives back what was set aside for a request, as [`Scheduler::release`] does.
    pub fn release(&self, least: &Request, tokens: u32) {
        self.quietly(|scheduler, now| scheduler.release(now, least, tokens));
    }

    /// Cancels a request. False if no live request has this id.
    pub fn cancel(&self, id: RequestId, reason: CancelReason) -> bool {
        let cancelled = self.with(|scheduler, now| scheduler.cancel(now, id, reason));
        cancelled.unwrap_or(false)
    }

    /// Cancels every request.
    pub fn cancel_all(&self, reason: CancelReason) {
        self.with(|scheduler, now| scheduler.cancel_all(now, reason));
    }

    /// Takes no more requests, and at `until`, where it is given, cancels those that are left. That is
    /// seen to between two steps.
    pub fn drain(&self, until: Option<Time>) {
        let mut state = self.lock();
        let now = self.clock.now();
        state.draining = true;
        state.drain_until = until;
        state.with(|scheduler| scheduler.drain(now));
        drop(state);
        self.clock.wake();
    }

    /// Takes nothing more and ends the loop.
    pub fn close(&self) {
        self.lock().closed = true;
        self.clock.wake();
    }

    /// Does anything with the scheduler, at the present time and under the lock. `None` when there is none
    /// at present, or when it panics.
    pub fn with<R>(&self, act: impl FnOnce(&mut Scheduler, Time) -> R) -> Option<R> {
        let done = self.quietly(act);
        self.clock.wake();
        done
    }

    /// Looks at the scheduler under the lock, and lets the loop sleep. `None` as for [`with`](Self::with).
    pub fn look<R>(&self, look: impl FnOnce(&Scheduler) -> R) -> Option<R> {
        self.quietly(|scheduler, _| look(scheduler))
    }

    /// Does what leaves the loop nothing to do, which may go on sleeping unless the scheduler panics.
    fn quietly<R>(&self, act: impl FnOnce(&mut Scheduler, Time) -> R) -> Option<R> {
        let mut state = self.lock();
        let now = self.clock.now();
        let done = state.with(|scheduler| act(scheduler, now));
        drop(state);
        if done.is_none() {
            self.clock.wake();
        }
        done
    }

    /// Moves what has happened since the last time to the end of `events`.
    pub fn take_events(&self, events: &mut Vec<Event>) {
        let mut state = self.lock();
        // What one that is broken has yet to say is said when it is given up.
        if !state.broken {
            state.take_events(events);
        }
    }

    /// The scheduler's figures, and with them those of the engines that were lost before: what had not
    /// ended then has failed.
    pub fn stats(&self) -> Stats {
        self.lock().stats()
    }

    /// How long there has been work and no step has ended; zero where there is none.
    pub fn without_progress(&self) -> Span {
        let mut state = self.lock();
        let has_work = state.sound().is_some_and(|scheduler| !scheduler.is_idle());
        match has_work {
            true => self.clock.now().since(state.progress_at),
            false => Span::ZERO,
        }
    }

    // The side of the loop.

    /// Plans a step.
    pub(super) fn plan(&self, now: Time, plan: &mut StepPlan) -> Planned {
        let mut state = self.lock();
        if state.closed {
            return Planned::Closed;
        }
        let until = state.drain_until;
        let over = until.is_some_and(|until| until <= now);
        let Some(scheduler) = state.sound() else {
            return Planned::Broken;
        };
        if over {
            scheduler.cancel_all(now, CancelReason::Drain);
        }
        match scheduler.plan_into(now, plan) {
            true => Planned::Step,
            false => {
                let until = until.filter(|_| !over);
                let wakes = [scheduler.next_timeout(), until];
                Planned::Nothing(wakes.into_iter().flatten().min())
            }
        }
    }

    /// Books what came of a step that ended at `until`. Returns the present time.
    pub(super) fn book(
        &self,
        until: Time,
        plan: &StepPlan,
        ended: Result<&StepOutcome, &BackendError>,
    ) -> Time {
        let mut state = self.lock();
        let now = self.clock.now();
        state.progress_at = now;
        // One that is broken is noticed at the next plan.
        if let Some(scheduler) = state.sound() {
            scheduler.book(until, plan.step(), ended);
        }
        now
    }

    /// Gives up an engine that has panicked, and closes if there will be no other: what it held has
    /// failed. What it had yet to say is given back.
    pub(super) fn lose(&self, close: bool) -> Vec<Event> {
        let mut state = self.lock();
        state.closed |= close;
        let mut events = Vec::new();
        // What is broken may panic again.
        let _ = catch_unwind(AssertUnwindSafe(|| state.take_events(&mut events)));
        state.broken = true;
        state.past = Past::ended_with(&state.stats());
        let lost = state.scheduler.take();
        let _ = catch_unwind(AssertUnwindSafe(|| drop(lost)));
        events
    }

    /// Goes on with another engine.
    pub(super) fn install(&self, mut scheduler: Scheduler) {
        let mut state = self.lock();
        let now = self.clock.now();
        if state.draining {
            scheduler.drain(now);
        }
        state.scheduler = Some(scheduler);
        state.broken = false;
        state.progress_at = now;
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(|poisoned| {
            self.state.clear_poison();
            let mut state = poisoned.into_inner();
            state.broken = true;
            state
        })
    }
}

impl State {
    /// The scheduler, if it can be trusted.
    fn sound(&mut self) -> Option<&mut Scheduler> {
        self.scheduler.as_mut().filter(|_| !self.broken)
    }

    /// Does something with the scheduler, whose panic must not end the thread of who asks.
    fn with<R>(&mut self, act: impl FnOnce(&mut Scheduler) -> R) -> Option<R> {
        let scheduler = self.sound()?;
        let done = catch_unwind(AssertUnwindSafe(|| act(scheduler)));
        self.broken = done.is_err();
        done.ok()
    }

    fn stats(&self) -> Stats {
        let Some(scheduler) = &self.scheduler else {
            return self.past.alone();
        };
        if !self.broken {
            return self.past.and(scheduler.stats());
        }
        // All that it holds is lost already.
        let last = catch_unwind(AssertUnwindSafe(|| self.past.and(scheduler.stats())));
        last.map_or_else(
            |_| self.past.alone(),
            |last| Past::ended_with(&last).alone(),
        )
    }

    fn take_events(&mut self, events: &mut Vec<Event>) {
        if let Some(scheduler) = &mut self.scheduler {
            scheduler.take_events(events);
        }
    }
}

impl fmt::Debug for SharedScheduler {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SharedScheduler").finish_non_exhaustive()
    }
}
