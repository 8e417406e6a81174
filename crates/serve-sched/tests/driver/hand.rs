//! A clock that goes on by hand, a device that goes wrong on demand, and an owner that counts.

use std::panic::resume_unwind;
use std::sync::{Arc, Condvar, Mutex};

use serve_core::mock::Mock;
use serve_core::{
    Backend, BackendError, Limits, Refusal, Request, Span, StepOutcome, StepPlan, Time,
};
use serve_sched::admit::{Admit, Load, QueueCap};
use serve_sched::driver::{Clock, Hooks, Stopped, ThreadClock};
use serve_sched::order::StrictTiers;
use serve_sched::{Policies, Scheduler};

use crate::mock;

/// A clock that stands still until it is advanced.
#[derive(Debug, Default)]
pub(crate) struct HandClock {
    state: Mutex<State>,
    moved: Condvar,
    /// Whether it jumps to the end of a sleep.
    jumps: bool,
}

#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct State {
    now: Time,
    woken: bool,
    /// How often it was waited for, and woken.
    pub(crate) waits: u32,
    pub(crate) wakes: u32,
    /// Whether a thread waits for an input now.
    pub(crate) parked: bool,
}

impl HandClock {
    pub(crate) fn that_jumps() -> Self {
        Self {
            jumps: true,
            ..Self::default()
        }
    }

    pub(crate) fn advance(&self, span: Span) {
        self.state.lock().unwrap().now += span;
        self.moved.notify_all();
    }

    /// Whether it has been woken since it was asked last.
    pub(crate) fn take_woken(&self) -> bool {
        std::mem::take(&mut self.state.lock().unwrap().woken)
    }

    /// Waits until a thread has nothing to do.
    pub(crate) fn until_parked(&self) -> State {
        let busy = |state: &mut State| !state.parked || state.woken;
        let state = self.state.lock().unwrap();
        *self.moved.wait_while(state, busy).unwrap()
    }
}

impl Clock for HandClock {
    fn now(&self) -> Time {
        self.state.lock().unwrap().now
    }

    fn wake(&self) {
        let mut state = self.state.lock().unwrap();
        state.woken = true;
        state.wakes += 1;
        self.moved.notify_all();
    }
}

impl ThreadClock for HandClock {
    fn sleep_until(&self, at: Time) {
        let mut state = self.state.lock().unwrap();
        if self.jumps {
            state.now = state.now.max(at);
        }
        drop(self.moved.wait_while(state, |state| state.now < at));
    }

    fn wait_until(&self, at: Option<Time>) {
        let mut state = self.state.lock().unwrap();
        state.waits += 1;
        state.parked = true;
        self.moved.notify_all();
        let quiet = |state: &mut State| !state.woken && at.is_none_or(|at| state.now < at);
        let mut state = self.moved.wait_while(state, quiet).unwrap();
        state.woken = false;
        state.parked = false;
    }
}

/// How a step goes wrong.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Fault {
    Step,
    Lost,
    Panic,
}

/// What the next step with something to run does instead.
pub(crate) type NextFault = Arc<Mutex<Option<Fault>>>;

pub(crate) struct Device {
    mock: Mock,
    fault: NextFault,
}

impl Device {
    pub(crate) fn new(fault: &NextFault) -> Self {
        let fault = Arc::clone(fault);
        Self {
            mock: mock(),
            fault,
        }
    }
}

/// A panic that prints nothing.
pub(crate) fn panic_silently(message: &str) -> ! {
    resume_unwind(Box::new(message.to_owned()))
}

impl Backend for Device {
    fn limits(&self) -> Limits {
        self.mock.limits()
    }

    fn execute(&mut self, plan: &StepPlan, outcome: &mut StepOutcome) -> Result<(), BackendError> {
        let fault = match plan.segments().is_empty() {
            true => None,
            false => self.fault.lock().unwrap().take(),
        };
        let cause = "as asked".to_owned();
        match fault {
            None => self.mock.execute(plan, outcome),
            Some(Fault::Step) => Err(BackendError::Step { cause }),
            Some(Fault::Lost) => Err(BackendError::Lost { cause }),
            Some(Fault::Panic) => panic_silently("the device has caught fire"),
        }
    }
}

/// Panics when it meets a prompt of this many tokens.
pub(crate) const POISON: u32 = 13;

struct Faulty;

impl Admit for Faulty {
    fn name(&self) -> &'static str {
        "faulty"
    }

    fn admit(&mut self, request: &Request, _load: &Load<'_>) -> Result<(), Refusal> {
        match request.prompt_tokens() {
            POISON => panic_silently("the policy has a fault"),
            _ => Ok(()),
        }
    }
}

/// A scheduler whose queue of four displaces, and whose policy may panic.
pub(crate) fn scheduler() -> Scheduler {
    let policies = Policies {
        admit: vec![Box::new(QueueCap::new(4)), Box::new(Faulty)],
        order: Box::new(StrictTiers),
        ..Policies::default()
    };
    Scheduler::new(mock().limits(), policies).unwrap()
}

/// What an owner has seen.
#[derive(Clone, Debug, Default)]
pub(crate) struct Seen {
    pub(crate) losses: Vec<Stopped>,
    pub(crate) steps: u64,
    pub(crate) steps_failed: u64,
}

/// An owner that builds the engine anew a few times.
#[derive(Clone, Default)]
pub(crate) struct Owner {
    pub(crate) seen: Arc<Mutex<Seen>>,
    pub(crate) rebuilds_left: Arc<Mutex<u32>>,
    pub(crate) fault: NextFault,
}

impl Hooks<Device> for Owner {
    fn stepped(&mut self, plan: &StepPlan, ended: Result<&StepOutcome, &BackendError>, _: Span) {
        let mut seen = self.seen.lock().unwrap();
        match ended {
            // One that runs nothing only lets the device forget requests.
            Ok(_) => seen.steps += u64::from(!plan.segments().is_empty()),
            Err(_) => seen.steps_failed += 1,
        }
    }

    fn lost(&mut self, why: &Stopped) -> bool {
        self.seen.lock().unwrap().losses.push(why.clone());
        *self.rebuilds_left.lock().unwrap() > 0
    }

    fn rebuild(&mut self) -> Option<(Scheduler, Device)> {
        let mut left = self.rebuilds_left.lock().unwrap();
        *left -= 1;
        // The last attempt fails.
        (*left > 0).then(|| (scheduler(), Device::new(&self.fault)))
    }
}
