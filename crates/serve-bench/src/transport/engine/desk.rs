//! The scheduler, as the engine's thread and those who ask share it: the thread holds the lock while it
//! plans a step and while it books what came of it, but not while the backend runs, so a request is
//! taken or refused at once.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use serve_core::{
    BackendError, CancelReason, Event, InvalidRequest, Refusal, Request, RequestId, Span,
    StepOutcome, StepPlan, Time,
};
use serve_sched::Scheduler;
use tokio::sync::Notify;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::time::{Instant, sleep_until};

use crate::store::timeline::Sample;

pub(super) struct Desk {
    state: Mutex<State>,
    bell: Notify,
    origin: Instant,
}

struct State {
    scheduler: Scheduler,
    /// Where the events of each live request go.
    asking: HashMap<RequestId, UnboundedSender<Event>>,
    next_id: u64,
    closed: bool,
    /// For how long steps have run, and sequences in them.
    stepped: (Span, u64),
}

/// Why a request was not put in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Turned {
    /// It cannot be a request.
    Invalid(InvalidRequest),
    /// The scheduler has refused it.
    Refused(Refusal),
    /// The engine has stopped.
    Closed,
}

/// What the engine's thread is to do now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Planned {
    /// Run the plan.
    Step,
    /// Nothing before this time, unless something comes; `None` is never.
    Nothing(Option<Time>),
    /// End.
    Closed,
}

impl Desk {
    pub(super) fn new(scheduler: Scheduler) -> Self {
        Self {
            state: Mutex::new(State {
                scheduler,
                asking: HashMap::new(),
                next_id: 0,
                closed: false,
                stepped: (Span::ZERO, 0),
            }),
            bell: Notify::new(),
            origin: Instant::now(),
        }
    }

    /// The present time of the engine's clock.
    pub(super) fn now(&self) -> Time {
        Time::ZERO + Span::from(self.origin.elapsed())
    }

    /// When it is that time.
    pub(super) fn at(&self, time: Time) -> Instant {
        self.origin + time.since(Time::ZERO).into()
    }

    /// Puts in the request that `make` makes of an id of its own and the present time.
    pub(super) fn submit(
        self: &Arc<Self>,
        make: impl FnOnce(RequestId, Time) -> Result<Request, InvalidRequest>,
    ) -> Result<Ticket, Turned> {
        let mut state = self.lock();
        if state.closed {
            return Err(Turned::Closed);
        }
        let (id, now) = (RequestId::new(state.next_id), self.now());
        state.next_id += 1;
        let request = make(id, now).map_err(Turned::Invalid)?;
        let (sender, events) = unbounded_channel();
        let taken = state.scheduler.submit(now, request);
        if taken.is_ok() {
            state.asking.insert(id, sender);
        }
        state.hand_on();
        drop(state);
        self.bell.notify_one();
        taken.map_err(Turned::Refused)?;
        let desk = Arc::clone(self);
        Ok(Ticket {
            id,
            arrival: now,
            events,
            desk,
        })
    }

    fn cancel(&self, id: RequestId) {
        let mut state = self.lock();
        let now = self.now();
        if state.asking.remove(&id).is_some() {
            state.scheduler.cancel(now, id, CancelReason::Client);
            state.hand_on();
            drop(state);
            self.bell.notify_one();
        }
    }

    /// Takes nothing more, and has the thread end.
    pub(super) fn close(&self) {
        self.lock().closed = true;
        self.bell.notify_one();
    }

    /// Takes nothing more, and tells those that still wait that nothing comes.
    pub(super) fn give_up(&self) {
        let mut state = self.lock();
        state.closed = true;
        state.asking.clear();
    }

    /// The engine's figures.
    pub(super) fn sample(&self, at_ns: u64) -> Sample {
        let state = self.lock();
        let stats = state.scheduler.stats();
        let (counters, blocks) = (stats.counters, stats.blocks);
        let number = |number: u32| Some(f64::from(number));
        let total = |total: u64| Some(total as f64);
        Sample {
            at_ns,
            waiting: number(stats.waiting),
            running: number(stats.running),
            in_flight: number(stats.waiting + stats.running),
            kv_free: number(blocks.free),
            kv_held: number(blocks.held),
            kv_cached: number(blocks.cached),
            preemptions: total(counters.preempted),
            refused: total(counters.refused),
            steps: total(counters.steps),
            step_seconds: Some(state.stepped.0.as_secs_f64()),
            step_sequences: total(state.stepped.1),
            prompt_tokens: total(counters.prefill_tokens),
            output_tokens: total(counters.output_tokens),
        }
    }

    // The side of the engine's thread.

    /// Plans a step.
    pub(super) fn plan(&self, now: Time, plan: &mut StepPlan) -> Planned {
        let mut state = self.lock();
        if state.closed {
            return Planned::Closed;
        }
        let planned = state.scheduler.plan_into(now, plan);
        state.hand_on();
        match planned {
            true => Planned::Step,
            false => Planned::Nothing(state.scheduler.next_timeout()),
        }
    }

    /// Books how the step of a plan ended.
    pub(super) fn book(
        &self,
        now: Time,
        plan: &StepPlan,
        ended: Result<&StepOutcome, &BackendError>,
    ) {
        let mut state = self.lock();
        if let Ok(outcome) = ended {
            state.stepped.0 += outcome.elapsed;
            state.stepped.1 += plan.segments().len() as u64;
        }
        state.scheduler.book(now, plan.step(), ended);
        state.hand_on();
    }

    /// Waits until something comes, or until `wake`.
    pub(super) async fn wait(&self, wake: Option<Time>) {
        let Some(wake) = wake else {
            return self.bell.notified().await;
        };
        tokio::select! {
            biased;
            () = self.bell.notified() => {}
            () = sleep_until(self.at(wake)) => {}
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // After a panic the thread's end tells everybody that nothing comes any more.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    /// Gives each event to whoever asked.
    fn hand_on(&mut self) {
        while let Some(event) = self.scheduler.poll_event() {
            let (id, is_last) = (event.request, event.kind.is_terminal());
            if let Some(sender) = self.asking.get(&id) {
                // Nobody listens only while a ticket is being dropped, which calls the request off.
                let _ = sender.send(event);
            }
            if is_last {
                self.asking.remove(&id);
            }
        }
    }
}

/// One request in the engine. Dropping it before its end cancels it.
pub(super) struct Ticket {
    id: RequestId,
    /// When it was put in.
    pub(super) arrival: Time,
    events: UnboundedReceiver<Event>,
    desk: Arc<Desk>,
}

impl Ticket {
    /// The next event; `None` when the engine has stopped.
    pub(super) async fn next(&mut self) -> Option<Event> {
        self.events.recv().await
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        self.desk.cancel(self.id);
    }
}
