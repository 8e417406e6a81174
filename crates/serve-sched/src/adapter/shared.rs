//! What all handles of one dispatcher share: the dispatcher under a lock, who waits for it, and its clock.
//!
//! After every input the dispatcher is asked whom to send and what has happened, and the tasks that it
//! concerns are woken: after the lock is given back, as waking a task may run its destructor, which may
//! hold a permit.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

use serve_core::{CancelReason, Event, EventKind, RequestId, Time};

use super::ask::Ask;
use super::clock::Clock;
use super::rejection::Rejection;
use crate::dispatcher::{Dispatcher, Outcome};

/// The dispatcher of some handles.
pub(super) struct Shared {
    clock: Arc<dyn Clock>,
    state: Mutex<State>,
}

pub(super) struct State {
    pub(super) dispatcher: Dispatcher,
    next_id: u64,
    live: BTreeMap<RequestId, Live>,
    /// Those who wait for the end of a drain.
    draining: Vec<Waker>,
    driver: Option<Waker>,
    /// For when the driver has set its alarm.
    alarm: Option<Time>,
    /// To be woken when the lock has been given back.
    wakes: VecDeque<Waker>,
    dropped: Arc<str>,
}

/// A request that somebody holds: a future that waits for its permit, or a permit.
struct Live {
    stage: Stage,
    waker: Option<Waker>,
}

#[derive(Clone, Copy, Debug)]
enum Stage {
    Waiting,
    /// It has its slot, and its future has not seen that yet.
    Granted,
    /// A permit holds the slot.
    Held,
    /// The dispatcher has ended it.
    Ended(Rejection),
}

impl Shared {
    pub(super) fn new(dispatcher: Dispatcher, clock: Arc<dyn Clock>) -> Self {
        let state = State {
            dispatcher,
            next_id: 0,
            live: BTreeMap::new(),
            draining: Vec::new(),
            driver: None,
            alarm: None,
            wakes: VecDeque::new(),
            dropped: Arc::from("dropped"),
        };
        Self {
            clock,
            state: Mutex::new(state),
        }
    }

    pub(super) fn clock(&self) -> &Arc<dyn Clock> {
        &self.clock
    }

    /// Gives the dispatcher an input, and does all that it says then.
    pub(super) fn input<R>(&self, input: impl FnOnce(&mut State, Time) -> R) -> R {
        let now = self.clock.now();
        let mut state = self.lock();
        let result = input(&mut state, now);
        state.go_on(now);
        while let Some(waker) = state.wakes.pop_front() {
            drop(state);
            waker.wake();
            state = self.lock();
        }
        result
    }

    /// A reading changes nothing, and so needs nothing afterwards.
    pub(super) fn read<R>(&self, read: impl FnOnce(&mut State) -> R) -> R {
        read(&mut self.lock())
    }

    /// A policy that has panicked under the lock must not take everybody else with it.
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        let state = self.state.get_mut().unwrap_or_else(PoisonError::into_inner);
        debug_assert!(state.live.is_empty(), "who holds a request holds this");
        if let Some(driver) = state.driver.take() {
            driver.wake();
        }
    }
}

impl State {
    pub(super) fn submit(&mut self, now: Time, ask: &Ask) -> Result<RequestId, Rejection> {
        let id = RequestId::new(self.next_id);
        let request = ask.request(id, now)?;
        self.next_id += 1;
        self.dispatcher.submit(now, request)?;
        let live = Live {
            stage: Stage::Waiting,
            waker: None,
        };
        self.live.insert(id, live);
        Ok(id)
    }

    /// Whether a request that waits has its slot, which from then on a permit holds. The waker that it
    /// had before comes back, to be dropped without the lock.
    pub(super) fn poll_granted(
        &mut self,
        id: RequestId,
        context: &Context<'_>,
    ) -> (Poll<Result<(), Rejection>>, Option<Waker>) {
        let Some(live) = self.live.get_mut(&id) else {
            return (Poll::Ready(Err(GONE)), None);
        };
        match live.stage {
            Stage::Waiting => (Poll::Pending, live.wait(context)),
            Stage::Granted | Stage::Held => {
                live.stage = Stage::Held;
                (Poll::Ready(Ok(())), live.waker.take())
            }
            Stage::Ended(rejection) => {
                let live = self.live.remove(&id);
                let waker = live.and_then(|live| live.waker);
                (Poll::Ready(Err(rejection)), waker)
            }
        }
    }

    /// Whether the dispatcher has ended a request that a permit holds.
    pub(super) fn poll_ended(
        &mut self,
        id: RequestId,
        context: &Context<'_>,
    ) -> (Poll<Rejection>, Option<Waker>) {
        match self.live.get_mut(&id) {
            Some(live) => match live.stage {
                Stage::Ended(rejection) => (Poll::Ready(rejection), None),
                _ => (Poll::Pending, live.wait(context)),
            },
            None => (Poll::Ready(GONE), None),
        }
    }

    /// Lets go of a request, which ends as `outcome`, or as cancelled by its client. Its holder
    /// does so once; its waker comes back, to be dropped without the lock.
    pub(super) fn let_go(
        &mut self,
        now: Time,
        id: RequestId,
        outcome: Option<Outcome>,
    ) -> Option<Waker> {
        let live = self.live.remove(&id)?;
        let outcome = outcome.unwrap_or_else(|| {
            self.dispatcher.cancel(now, id, CancelReason::Client);
            self.aborted()
        });
        self.dispatcher.done(now, id, outcome);
        live.waker
    }

    /// Sets the alarm to what the dispatcher wants, which is given back.
    pub(super) fn set_alarm(&mut self, driver: &Waker) -> (Option<Time>, Option<Waker>) {
        let before = self.driver.replace(driver.clone());
        self.alarm = self.dispatcher.next_timeout();
        (self.alarm, before)
    }

    pub(super) fn poll_drained(&mut self, context: &Context<'_>) -> Poll<()> {
        if self.dispatcher.is_drained() {
            return Poll::Ready(());
        }
        let waker = context.waker();
        if !self.draining.iter().any(|other| other.will_wake(waker)) {
            self.draining.push(waker.clone());
        }
        Poll::Pending
    }

    fn go_on(&mut self, now: Time) {
        loop {
            while let Some(request) = self.dispatcher.next(now) {
                self.set(request.id(), Stage::Granted);
            }
            let mut freed = false;
            while let Some(Event { request, kind, .. }) = self.dispatcher.poll_event() {
                let end = match kind {
                    EventKind::Cancelled { reason, .. } => Rejection::Cancelled(reason),
                    EventKind::Displaced { refusal } => Rejection::Refused(refusal),
                    _ => continue,
                };
                // Nobody works at a request whose future has not seen its slot.
                if let Some(Stage::Granted) = self.set(request, Stage::Ended(end)) {
                    let aborted = self.aborted();
                    freed |= self.dispatcher.done(now, request, aborted);
                }
            }
            if !freed {
                break;
            }
        }
        if self.dispatcher.is_drained() {
            self.wakes.extend(self.draining.drain(..));
        }
        let due = self.dispatcher.next_timeout();
        let sooner = due.is_some_and(|due| self.alarm.is_none_or(|alarm| due < alarm));
        if sooner && let Some(driver) = self.driver.take() {
            self.wakes.push_back(driver);
        }
    }

    /// Moves a request to another stage, wakes who holds it, and gives back the stage before.
    fn set(&mut self, id: RequestId, stage: Stage) -> Option<Stage> {
        let live = self.live.get_mut(&id)?;
        self.wakes.extend(live.waker.take());
        Some(std::mem::replace(&mut live.stage, stage))
    }

    fn aborted(&self) -> Outcome {
        Outcome::Ignored {
            cause: Arc::clone(&self.dropped),
        }
    }
}

impl Live {
    fn wait(&mut self, context: &Context<'_>) -> Option<Waker> {
        match &self.waker {
            Some(waker) if waker.will_wake(context.waker()) => None,
            _ => self.waker.replace(context.waker().clone()),
        }
    }
}

/// What a request is told that nobody knows of, which would be a fault of this module.
const GONE: Rejection = Rejection::Cancelled(CancelReason::Client);
