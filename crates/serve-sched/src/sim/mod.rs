//! The scheduler and the dispatcher in virtual time: millions of requests in seconds, on the code that
//! serves.
//!
//! A [`Simulation`] owns the time. It gives the scheduler the inputs of a [`Workload`] at their
//! times, also in the middle of a step, has a backend run each plan, and lets the time go on by
//! what the backend says the step took. Steps that decide nothing are jumped over where the backend
//! can [price](serve_core::Backend::price) them and, if prefixes are reused,
//! [foresee](serve_core::Backend::foresee) their tokens; the result is the same as without jumping. A
//! [`DispatcherSimulation`] does the same for a dispatcher, in front of an [`EngineModel`], and a [`Fleet`] for
//! routers in front of several.

mod conversations;
mod dispatch;
mod fleet;
mod row;
mod slots;
mod stepped;
mod workload;

pub use conversations::{ConversationSettings, Conversations};
pub use dispatch::{DispatcherSimulation, EngineModel, Reply};
pub use fleet::{Fleet, Routed, RoutedRow};
pub use row::{Row, Terminal};
pub use slots::{Behaviour, SlotEngine, Slots};
pub use stepped::SteppedEngine;
pub use workload::{Arrivals, ClosedLoop, Input, Poisson, Script, Workload};

use std::fmt;
use std::sync::Arc;

use serve_core::{Backend, Event, EventKind, Request, Span, StepOutcome, StepPlan, Time};

use crate::scheduler::{Scheduler, Stats, TokenEvents};
use row::OpenRows;

/// A scheduler and a backend in virtual time.
///
/// ```
/// use serve_core::{Backend, Request, RequestId, Time, TokenId, mock::Mock};
/// use serve_sched::sim::{Arrivals, Simulation};
/// use serve_sched::{Policies, Scheduler};
///
/// let mock = Mock::default();
/// let scheduler = Scheduler::new(mock.limits(), Policies::default())?;
/// let requests = (0..100).map(|n| {
///     let prompt = vec![TokenId::new(1); 32];
///     Request::new(RequestId::new(n), Time::from_millis(n * 50), prompt, 20).expect("valid")
/// });
/// let report = Simulation::new(scheduler, mock).run(&mut Arrivals::new(requests));
/// assert_eq!(report.rows.len(), 100);
/// # Ok::<(), serve_sched::ConfigError>(())
/// ```
pub struct Simulation<B> {
    scheduler: Scheduler,
    backend: B,
    now: Time,
    busy: Span,
    jumping: bool,
    observer: Option<Observer>,
    plan: StepPlan,
    outcome: StepOutcome,
    open: OpenRows,
}

type Observer = Box<dyn FnMut(&Event)>;

/// What came of a simulation.
#[derive(Clone, Debug)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
pub struct Report {
    /// One row for each request, refused ones included, in the order in which they ended.
    pub rows: Vec<Row>,
    /// When the last step or input was over.
    pub end: Time,
    /// For how long of that time a step was running.
    pub busy: Span,
    /// The scheduler's counters.
    pub stats: Stats,
}

impl<B: Backend> Simulation<B> {
    /// A simulation that begins at time zero.
    pub fn new(mut scheduler: Scheduler, backend: B) -> Self {
        scheduler.set_token_events(TokenEvents::First);
        Self {
            scheduler,
            backend,
            now: Time::ZERO,
            busy: Span::ZERO,
            jumping: true,
            observer: None,
            plan: StepPlan::new(),
            outcome: StepOutcome::new(),
            open: OpenRows::default(),
        }
    }

    /// Runs every step, also those whose batch does not change. The result is the same; this is for
    /// showing that it is.
    #[must_use]
    pub fn without_jumping(mut self) -> Self {
        self.jumping = false;
        self
    }

    /// Has an event for each token. Nothing is jumped over then.
    #[must_use]
    pub fn with_every_token(mut self) -> Self {
        self.scheduler.set_token_events(TokenEvents::All);
        self
    }

    /// Shows every event, [each token's](Self::with_every_token) included, to `observer`.
    #[must_use]
    pub fn with_observer(self, observer: impl FnMut(&Event) + 'static) -> Self {
        let mut all = self.with_every_token();
        all.observer = Some(Box::new(observer));
        all
    }

    /// The scheduler, to set a journal or to read.
    pub fn scheduler_mut(&mut self) -> &mut Scheduler {
        &mut self.scheduler
    }

    /// Runs until the workload has no more inputs and every request has ended.
    pub fn run(mut self, workload: &mut impl Workload) -> Report {
        let mut rows = Vec::new();
        let mut report = self.run_with(workload, |row| rows.push(*row));
        report.rows = rows;
        report
    }

    /// Like [`run`](Self::run), giving each row to `each_row` when its request ends. The report has
    /// no rows. Another workload may follow, at [`Report::end`] or later; reports count from the start
    /// of the simulation.
    pub fn run_with(
        &mut self,
        workload: &mut impl Workload,
        mut each_row: impl FnMut(&Row),
    ) -> Report {
        loop {
            self.give_inputs(workload, self.now, &mut each_row);
            if self.jump(workload) {
                continue;
            }
            if self.scheduler.plan_into(self.now, &mut self.plan) {
                self.run_step(workload, &mut each_row);
                continue;
            }
            self.take_events(workload, &mut each_row);
            let timeout = self.scheduler.next_timeout();
            let next = [timeout, workload.next_at()].into_iter().flatten().min();
            match next {
                Some(at) => self.now = self.now.max(at),
                None => break,
            }
        }
        Report {
            rows: Vec::new(),
            end: self.now,
            busy: self.busy,
            stats: self.scheduler.stats(),
        }
    }

    /// Executes the plan, gives the inputs that come while it runs, and books its outcome.
    fn run_step(&mut self, workload: &mut impl Workload, each_row: &mut impl FnMut(&Row)) {
        let ran = self.backend.execute(&self.plan, &mut self.outcome);
        if ran.is_ok() {
            let end = self.now + self.outcome.elapsed;
            self.busy += self.outcome.elapsed;
            let in_flight = end - Span::from_nanos(1);
            if in_flight > self.now {
                self.give_inputs(workload, in_flight, each_row);
            }
            self.now = end;
        }
        let ended = ran.as_ref().map(|()| &self.outcome);
        self.scheduler.book(self.now, self.plan.step(), ended);
        self.take_events(workload, each_row);
    }

    /// Gives the inputs that come up to `until`, each at its time.
    fn give_inputs(
        &mut self,
        workload: &mut impl Workload,
        until: Time,
        each_row: &mut impl FnMut(&Row),
    ) {
        while workload.next_at().is_some_and(|at| at <= until) {
            let Some((at, input)) = workload.next_input() else {
                return;
            };
            let at = at.max(self.now);
            match input {
                Input::Submit(request) => self.submit(at, request, workload, each_row),
                Input::Cancel { request, reason } => {
                    self.scheduler.cancel(at, request, reason);
                }
                Input::Drain => self.scheduler.drain(at),
            }
            self.take_events(workload, each_row);
        }
    }

    fn submit(
        &mut self,
        at: Time,
        request: Request,
        workload: &mut impl Workload,
        each_row: &mut impl FnMut(&Row),
    ) {
        let request = Arc::new(request);
        match self.scheduler.submit(at, Arc::clone(&request)) {
            Ok(()) => self.open.begin(&request),
            Err(refusal) => {
                let row = Row::refused(&request, at, refusal);
                workload.ended(&row);
                each_row(&row);
            }
        }
    }

    fn take_events(&mut self, workload: &mut impl Workload, each_row: &mut impl FnMut(&Row)) {
        while let Some(event) = self.scheduler.poll_event() {
            if let Some(observer) = &mut self.observer {
                observer(&event);
            }
            workload.happened(&event);
            // Of tokens, only the first is of interest for a row.
            if matches!(event.kind, EventKind::Token { index, .. } if index > 0) {
                continue;
            }
            if let Some(row) = self.open.take(&event) {
                workload.ended(&row);
                each_row(&row);
            }
        }
    }

    /// Jumps over steps that decide nothing. False if there are none.
    fn jump(&mut self, workload: &mut impl Workload) -> bool {
        if !self.jumping {
            return false;
        }
        let Some(steady) = self.scheduler.steady(self.now) else {
            return false;
        };
        let foreseen = |request| self.backend.foresee(request, 0).is_some();
        if !steady.foreseen.is_none_or(foreseen) {
            return false;
        }
        let next_input = workload.next_at().unwrap_or(Time::MAX);
        let mut load = steady.load;
        let mut steps = 0;
        let from = self.now;
        while steps < steady.steps && self.now < steady.until {
            let step = serve_core::StepId::new(steady.step.get() + u64::from(steps));
            let Some(elapsed) = self.backend.price(step, &load) else {
                break;
            };
            if self.now + elapsed > next_input {
                break;
            }
            self.scheduler.skip_step(elapsed);
            self.now += elapsed;
            load.context_tokens += u64::from(load.segments);
            steps += 1;
        }
        if steps == 0 {
            return false;
        }
        self.busy += self.now.since(from);
        let backend = &self.backend;
        let token = |request, position| backend.foresee(request, position);
        self.scheduler.skip_steps(self.now, steps, token);
        true
    }
}

impl<B> fmt::Debug for Simulation<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut debug = f.debug_struct("Simulation");
        debug.field("scheduler", &self.scheduler);
        debug.field("now", &self.now);
        debug.finish_non_exhaustive()
    }
}
