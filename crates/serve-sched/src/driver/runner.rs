//! The loop of an engine, one turn at a time: plan a step, have the device run it, book what came of it,
//! hand on what happened. It waits for nothing itself, so it runs on a thread, or as a task.

use std::any::Any;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use serve_core::{Backend, BackendError, Event, Span, StepOutcome, StepPlan, Time};
use thiserror::Error;

use super::clock::ThreadClock;
use super::shared::{Planned, SharedScheduler};
use crate::scheduler::Scheduler;

/// The engine of a request is gone, and the request with it.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
#[error("the engine has stopped: {cause}")]
pub struct Stopped {
    /// What has happened to it: of a panic, its message.
    pub cause: Arc<str>,
}

/// Where events go.
pub trait Outlet: Send {
    /// Hands on what there is, which [`SharedScheduler::take_events`] has: after a step is planned and
    /// after it is booked. Where a `step` follows, what can wait for its end may. False ends the loop.
    fn hand_on(&mut self, shared: &SharedScheduler, step: bool) -> bool;

    /// The engine is lost, and with it all that are in it but those whose last event is among `events`.
    /// No request comes before this returns. False ends the loop.
    fn lost(&mut self, shared: &SharedScheduler, events: Vec<Event>, why: &Stopped) -> bool;
}

/// What the owner of an engine adds to its loop; by default, nothing. Called on the loop's thread.
pub trait Hooks<B>: Send {
    /// A step has been booked that took so long, from its plan on.
    fn stepped(&mut self, plan: &StepPlan, ended: Result<&StepOutcome, &BackendError>, took: Span) {
        let _ = (plan, ended, took);
    }

    /// The backend, the scheduler or a policy has panicked, and nobody has heard of it yet. Whether
    /// another engine will be built; otherwise no request is taken any more.
    fn lost(&mut self, why: &Stopped) -> bool {
        let _ = why;
        false
    }

    /// Another engine, for a device with the same limits; `None` ends the loop. It may take its time.
    fn rebuild(&mut self) -> Option<(Scheduler, B)> {
        None
    }

    /// Requests are taken again, by the engine that was rebuilt.
    fn rebuilt(&mut self) {}
}

impl<B> Hooks<B> for () {}

/// What is to be waited for before the next turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Turn {
    /// The end of a step, whatever comes: a device has used the time up by itself, a mock has only
    /// computed it.
    Sleep(Time),
    /// Something to do: [`Clock::wake`](super::Clock::wake), or this time.
    Wait(Option<Time>),
    /// Nothing: the loop is over.
    Over,
}

/// The loop of an engine. Dropping it ends whatever is in the engine.
pub struct Runner<B, O: Outlet, H> {
    shared: Arc<SharedScheduler>,
    /// None once there is none any more.
    backend: Option<B>,
    outlet: O,
    hooks: H,
    plan: StepPlan,
    outcome: StepOutcome,
    flight: Option<Flight>,
}

/// A step that has run and is not yet booked.
struct Flight {
    begun: Time,
    until: Time,
    ran: Result<(), BackendError>,
}

impl<B: Backend, O: Outlet, H: Hooks<B>> Runner<B, O, H> {
    /// The loop of a scheduler and the device whose limits it was made for.
    pub fn new(shared: Arc<SharedScheduler>, backend: B, outlet: O, hooks: H) -> Self {
        Self {
            shared,
            backend: Some(backend),
            outlet,
            hooks,
            plan: StepPlan::new(),
            outcome: StepOutcome::new(),
            flight: None,
        }
    }

    /// Takes turns until the loop is over.
    pub fn run(mut self, clock: &dyn ThreadClock) {
        loop {
            match self.turn() {
                Turn::Sleep(until) => clock.sleep_until(until),
                Turn::Wait(until) => clock.wait_until(until),
                Turn::Over => return,
            }
        }
    }

    /// Books the step that has run, if one has, then plans and runs the next. Blocks as long as the
    /// device does.
    pub fn turn(&mut self) -> Turn {
        let went = catch_unwind(AssertUnwindSafe(|| self.go_on()));
        let cause = match went {
            Ok(Some(turn)) => return turn,
            Ok(None) => "the scheduler panicked".to_owned(),
            Err(panic) => format!("it panicked: {}", message(&*panic)),
        };
        match self.replace(&Stopped::new(&cause)) {
            true => Turn::Wait(Some(self.shared.now())),
            false => Turn::Over,
        }
    }

    /// `None` when the scheduler is broken.
    fn go_on(&mut self) -> Option<Turn> {
        let Some(backend) = &mut self.backend else {
            return Some(Turn::Over);
        };
        if let Some(Flight { begun, until, ran }) = self.flight.take() {
            let ended = ran.as_ref().map(|()| &self.outcome);
            let now = self.shared.book(until, &self.plan, ended);
            self.hooks.stepped(&self.plan, ended, now.since(begun));
            if !self.outlet.hand_on(&self.shared, false) {
                return Some(Turn::Over);
            }
        }
        let begun = self.shared.now();
        let planned = self.shared.plan(begun, &mut self.plan);
        let step = match planned {
            Planned::Step => true,
            Planned::Nothing(_) => false,
            Planned::Broken => return None,
            Planned::Closed => return Some(Turn::Over),
        };
        if !self.outlet.hand_on(&self.shared, step) {
            return Some(Turn::Over);
        }
        if let Planned::Nothing(wake) = planned {
            return Some(Turn::Wait(wake));
        }
        let ran = backend.execute(&self.plan, &mut self.outcome);
        let until = match &ran {
            Ok(()) => begun + self.outcome.elapsed,
            Err(_) => self.shared.now(),
        };
        self.flight = Some(Flight { begun, until, ran });
        Some(Turn::Sleep(until))
    }

    /// Gives the engine up, tells everybody who was in it, and goes on with another. Whether there
    /// is one.
    fn replace(&mut self, why: &Stopped) -> bool {
        let rebuilds = self.hooks.lost(why);
        let events = self.shared.lose(!rebuilds);
        self.flight = None;
        let backend = self.backend.take();
        // What is broken may panic again.
        let _ = catch_unwind(AssertUnwindSafe(|| drop(backend)));
        if !self.outlet.lost(&self.shared, events, why) || !rebuilds {
            return false;
        }
        let Some((scheduler, backend)) = self.hooks.rebuild() else {
            return false;
        };
        self.shared.install(scheduler);
        self.backend = Some(backend);
        self.hooks.rebuilt();
        true
    }
}

impl<B, O: Outlet, H> Drop for Runner<B, O, H> {
    fn drop(&mut self) {
        let events = self.shared.lose(true);
        let why = Stopped::new("it was closed");
        self.outlet.lost(&self.shared, events, &why);
    }
}

impl Stopped {
    fn new(cause: &str) -> Self {
        let cause = Arc::from(cause);
        Self { cause }
    }
}

fn message(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    let text = text.or_else(|| panic.downcast_ref::<&str>().copied());
    text.unwrap_or("no message")
}

impl<B, O: Outlet, H> fmt::Debug for Runner<B, O, H> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Runner").finish_non_exhaustive()
    }
}
