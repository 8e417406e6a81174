//! A dispatcher in virtual time, in front of an engine that is modelled: the workloads, rows and
//! reports are those of a [`Simulation`](super::Simulation), so that the same scenario runs in front of
//! both.

use std::collections::BTreeSet;
use std::sync::Arc;

use serve_core::{Event, EventKind, Request, RequestId, Span, Time, TokenId};

use super::row::OpenRows;
use super::{Input, Report, Row, Workload};
use crate::dispatcher::{Dispatcher, Outcome};
use crate::scheduler::Stats;

/// An engine that is driven one request at a time, in virtual time. It is told the time, which never
/// goes back, and says what it does at which.
pub trait EngineModel {
    /// A request is sent to it.
    fn send(&mut self, now: Time, request: &Arc<Request>);

    /// A request that was sent is not wanted any more. The engine lets go of it, at once or later, and
    /// says so with [`Reply::Done`].
    fn abort(&mut self, now: Time, id: RequestId);

    /// What it says at `now`, one thing at a time; called after every other input until it is `None`.
    fn reply(&mut self, now: Time) -> Option<(RequestId, Reply)>;

    /// When it has something to say without any other input; later than the last `now`.
    fn next_at(&self) -> Option<Time>;
}

/// What an engine says of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reply {
    /// So many tokens of its answer have come since the last time.
    Tokens(u32),
    /// It has let go of it.
    Done(Outcome),
}

/// A dispatcher and an engine in virtual time.
///
/// ```
/// use serve_core::{Request, RequestId, Time, TokenId};
/// use serve_sched::limit::Fixed;
/// use serve_sched::order::Fifo;
/// use serve_sched::sim::{Arrivals, DispatcherSimulation, SlotEngine, Slots};
/// use serve_sched::Dispatcher;
///
/// let dispatcher = Dispatcher::new(Vec::new(), Box::new(Fifo), Box::new(Fixed::new(4)));
/// let requests = (0..100).map(|n| {
///     let prompt = vec![TokenId::new(1); 32];
///     Request::new(RequestId::new(n), Time::from_millis(n * 50), prompt, 20).expect("valid")
/// });
/// let engine = SlotEngine::new(Slots::default());
/// let report = DispatcherSimulation::new(dispatcher, engine).run(&mut Arrivals::new(requests));
/// assert_eq!(report.rows.len(), 100);
/// ```
#[derive(Debug)]
pub struct DispatcherSimulation<E> {
    dispatcher: Dispatcher,
    engine: E,
    now: Time,
    busy: Span,
    open: OpenRows,
    /// Requests that the engine has not let go of.
    inside: BTreeSet<RequestId>,
    /// Of those, the ones whose first token has come.
    begun: BTreeSet<RequestId>,
    /// The limit, summed over the nanoseconds.
    limit_nanos: u128,
}

impl<E: EngineModel> DispatcherSimulation<E> {
    /// A simulation that begins at time zero.
    pub fn new(dispatcher: Dispatcher, engine: E) -> Self {
        Self {
            dispatcher,
            engine,
            now: Time::ZERO,
            busy: Span::ZERO,
            open: OpenRows::default(),
            inside: BTreeSet::new(),
            begun: BTreeSet::new(),
            limit_nanos: 0,
        }
    }

    /// The dispatcher, to set a journal or to read.
    pub fn dispatcher_mut(&mut self) -> &mut Dispatcher {
        &mut self.dispatcher
    }

    /// The mean limit over the time until now.
    pub fn limit_mean(&self) -> f64 {
        match self.now.as_nanos() {
            0 => f64::from(self.dispatcher.stats().limit),
            nanos => self.limit_nanos as f64 / nanos as f64,
        }
    }

    /// Runs until the workload has no more inputs and every request has ended. Requests without a
    /// deadline in an engine that hangs for ever do not end; then it runs until nothing happens any
    /// more.
    pub fn run(mut self, workload: &mut impl Workload) -> Report {
        let mut rows = Vec::new();
        let mut report = self.run_with(workload, |row| rows.push(*row));
        report.rows = rows;
        report
    }

    /// Like [`run`](Self::run), giving each row to `each_row` when its request ends. The report has no
    /// rows. Its statistics are those of the dispatcher, which knows of no steps and no blocks.
    pub fn run_with(
        &mut self,
        workload: &mut impl Workload,
        mut each_row: impl FnMut(&Row),
    ) -> Report {
        loop {
            self.settle(workload, &mut each_row);
            if workload.next_at().is_some_and(|at| at <= self.now) {
                self.give_input(workload, &mut each_row);
                continue;
            }
            let times = [
                workload.next_at(),
                self.engine.next_at(),
                self.dispatcher.next_timeout(),
            ];
            let Some(next) = times.into_iter().flatten().min() else {
                break;
            };
            self.advance(next);
        }
        let stats = self.dispatcher.stats();
        Report {
            rows: Vec::new(),
            end: self.now,
            busy: self.busy,
            stats: Stats {
                waiting: stats.waiting,
                running: stats.running,
                counters: stats.counters,
                ..Stats::default()
            },
        }
    }

    fn advance(&mut self, next: Time) {
        let next = next.max(self.now);
        let passed = next.since(self.now);
        let limit = self.dispatcher.stats().limit;
        self.limit_nanos += u128::from(limit) * u128::from(passed.as_nanos());
        if !self.inside.is_empty() {
            self.busy += passed;
        }
        self.now = next;
    }

    /// Lets everything happen that happens now.
    fn settle(&mut self, workload: &mut impl Workload, each_row: &mut impl FnMut(&Row)) {
        loop {
            self.dispatcher.handle_timeout(self.now);
            self.take_events(workload, each_row);
            if let Some((id, reply)) = self.engine.reply(self.now) {
                self.take_reply(id, reply, workload);
            } else if let Some(request) = self.dispatcher.next(self.now) {
                self.inside.insert(request.id());
                self.engine.send(self.now, &request);
            } else {
                break;
            }
        }
        self.take_events(workload, each_row);
    }

    fn give_input(&mut self, workload: &mut impl Workload, each_row: &mut impl FnMut(&Row)) {
        let Some((_, input)) = workload.next_input() else {
            return;
        };
        match input {
            Input::Submit(request) => {
                let request = Arc::new(request);
                match self.dispatcher.submit(self.now, Arc::clone(&request)) {
                    Ok(()) => self.open.begin(&request),
                    Err(refusal) => {
                        let row = Row::refused(&request, self.now, refusal);
                        workload.ended(&row);
                        each_row(&row);
                    }
                }
            }
            Input::Cancel { request, reason } => {
                self.dispatcher.cancel(self.now, request, reason);
            }
            Input::Drain => self.dispatcher.drain(self.now),
        }
    }

    fn take_reply(&mut self, id: RequestId, reply: Reply, workload: &mut impl Workload) {
        match reply {
            Reply::Tokens(tokens) => {
                self.dispatcher.served(self.now, id, tokens);
                if self.begun.insert(id) {
                    self.first_token(id, workload);
                }
            }
            Reply::Done(outcome) => {
                self.inside.remove(&id);
                self.begun.remove(&id);
                self.dispatcher.done(self.now, id, outcome);
            }
        }
    }

    /// A dispatcher has no events for tokens: who drives it streams them by itself.
    fn first_token(&mut self, request: RequestId, workload: &mut impl Workload) {
        let kind = EventKind::Token {
            token: TokenId::new(0),
            index: 0,
            logprobs: None,
        };
        let event = Event {
            request,
            at: self.now,
            kind,
        };
        workload.happened(&event);
        self.open.take(&event);
    }

    fn take_events(&mut self, workload: &mut impl Workload, each_row: &mut impl FnMut(&Row)) {
        while let Some(event) = self.dispatcher.poll_event() {
            let (id, ended) = (event.request, event.kind.is_terminal());
            if ended && self.inside.contains(&id) {
                self.engine.abort(self.now, id);
            }
            workload.happened(&event);
            if let Some(row) = self.open.take(&event) {
                workload.ended(&row);
                each_row(&row);
            }
        }
    }
}
