//! Gate + concurrency slots, for engines that are driven one request at a time: another server
//! behind HTTP, a llama.cpp process, any async service.
//!
//! What happens inside the engine is its own business. The dispatcher decides who is sent to it and
//! when, and sees to it that every request is answered exactly once.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use serve_core::{
    CancelReason, Event, EventKind, FinishReason, Limit, Refusal, Request, RequestId, Time, Usage,
};

use crate::admit::{Admit, Cause, Ended};
use crate::concurrency::Concurrency;
use crate::gate::Gate;
use crate::journal::{Decision, Sink};
use crate::order::{Order, Served};
use crate::pace::Pace;
use crate::scheduler::Counters;

/// Decides which waiting request is sent to an engine next, and when. Does no I/O, reads no clock:
/// every input carries `now`, which never goes back (an earlier `now` counts as the latest one).
///
/// - **Inputs**: [`submit`](Self::submit), [`cancel`](Self::cancel), [`served`](Self::served),
///   [`done`](Self::done), [`handle_timeout`](Self::handle_timeout), [`drain`](Self::drain).
/// - **Outputs**: [`next`](Self::next), [`poll_event`](Self::poll_event),
///   [`next_timeout`](Self::next_timeout).
/// - **Readings**: [`stats`](Self::stats), [`gate`](Self::gate), the journal.
///
/// After any input, a driver sends what [`next`](Self::next) gives until it gives nothing, and hands
/// out the events. A request that it has sent and that is then called off gets its terminal event
/// at once; the driver aborts the engine's work on it and calls [`done`](Self::done) when the engine
/// has let go. Until then the slot is taken: a timeout does not take work out of an engine.
///
/// ```
/// use serve_core::{FinishReason, Request, RequestId, Time, TokenId, Usage};
/// use serve_sched::order::Fifo;
/// use serve_sched::{Concurrency, Dispatcher, Outcome};
///
/// let mut dispatcher = Dispatcher::new(Vec::new(), Box::new(Fifo), Concurrency::Fixed(1));
/// for id in 1..=2 {
///     let prompt = vec![TokenId::new(7); 4];
///     dispatcher.submit(Time::ZERO, Request::new(RequestId::new(id), Time::ZERO, prompt, 3)?)?;
/// }
/// let sent = dispatcher.next(Time::ZERO).expect("a slot is free");
/// assert!(dispatcher.next(Time::ZERO).is_none(), "the only slot is taken");
///
/// // .. the engine answers ..
/// let usage = Usage { prompt_tokens: 4, output_tokens: 3, ..Usage::default() };
/// let outcome = Outcome::Finished { reason: FinishReason::Length, usage };
/// dispatcher.done(Time::from_millis(80), sent.id(), outcome);
/// assert!(dispatcher.next(Time::from_millis(80)).is_some());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Dispatcher {
    gate: Gate,
    concurrency: Concurrency,
    sent: BTreeMap<RequestId, Sent>,
    deadlines: BTreeSet<(Time, RequestId)>,
    events: VecDeque<Event>,
    counters: Counters,
    aborting: u32,
    now: Time,
    /// Since when the engine has been busy, or the last request ended.
    busy_since: Time,
}

/// What came of a request that was sent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The engine answered it to the end.
    Finished {
        /// Why the generation ended.
        reason: FinishReason,
        /// What it used.
        usage: Usage,
    },
    /// The engine did not.
    Failed {
        /// Its own words.
        cause: Arc<str>,
    },
}

/// A reading of a dispatcher. At every instant
/// `arrived = finished + refused + cancelled + failed + waiting + running`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DispatcherStats {
    /// Requests in the queue.
    pub waiting: u32,
    /// Requests sent and not answered.
    pub running: u32,
    /// Requests called off that the engine has not let go of.
    pub aborting: u32,
    /// Requests that may be with the engine at once.
    pub limit: u32,
    /// Requests counted since the start. There are no steps here, and so none are counted.
    pub counters: Counters,
}

/// A request that is with the engine.
#[derive(Debug)]
struct Sent {
    request: Arc<Request>,
    at: Time,
    output_tokens: u32,
    /// Why its client has been answered already.
    answered: Option<CancelReason>,
}

impl Dispatcher {
    /// A dispatcher that sends up to `concurrency` requests at once, in the order of `order`.
    pub fn new(
        admit: Vec<Box<dyn Admit>>,
        order: Box<dyn Order>,
        concurrency: Concurrency,
    ) -> Self {
        Self {
            gate: Gate::new(admit, order, concurrency.limit()),
            concurrency,
            sent: BTreeMap::new(),
            deadlines: BTreeSet::new(),
            events: VecDeque::new(),
            counters: Counters::default(),
            aborting: 0,
            now: Time::ZERO,
            busy_since: Time::ZERO,
        }
    }

    /// Takes a request into the queue. O(log n) in the requests that wait.
    ///
    /// # Errors
    ///
    /// A [`Refusal`]: *never* when its id is live or its deadline has passed; *later* while
    /// draining; or what an admission policy says.
    pub fn submit(&mut self, now: Time, request: impl Into<Arc<Request>>) -> Result<(), Refusal> {
        let now = self.advance(now);
        let request = request.into();
        self.counters.arrived += 1;
        let taken = if self.sent.contains_key(&request.id()) {
            let limit = Limit::DuplicateId;
            let refusal = Refusal::Never { limit };
            Err(self.gate.refuse(now, request.id(), "gate", refusal))
        } else {
            self.gate.submit(now, request)
        };
        self.end_displaced();
        self.counters.refused += u64::from(taken.is_err());
        taken
    }

    /// The next request to send to the engine, if a slot is free. It counts as sent.
    pub fn next(&mut self, now: Time) -> Option<Arc<Request>> {
        self.handle_timeout(now);
        let now = self.now;
        if self.in_flight() >= self.concurrency.limit() {
            return None;
        }
        let taken = self.gate.take(now)?;
        if self.sent.is_empty() {
            self.busy_since = now;
        }
        let request = taken.request;
        if let Some(deadline) = request.deadline() {
            self.deadlines.insert((deadline, request.id()));
        }
        let sent = Sent {
            request: Arc::clone(&request),
            at: now,
            output_tokens: 0,
            answered: None,
        };
        self.sent.insert(request.id(), sent);
        let (running, slots) = (self.in_flight(), self.concurrency.limit());
        self.gate
            .journal()
            .write(now, request.id(), || Decision::Sent {
                waited: now.since(taken.since),
                running,
                slots,
            });
        self.emit(request.id(), EventKind::Started);
        Some(request)
    }

    /// Tokens have come back of a request that was sent. Needed only where an order or a terminal
    /// event is to know of them before the end; [`done`](Self::done) counts the rest.
    pub fn served(&mut self, id: RequestId, output_tokens: u32) {
        if let Some(sent) = self.sent.get_mut(&id) {
            sent.output_tokens = sent.output_tokens.saturating_add(output_tokens);
            let served = Served {
                prompt_tokens: 0,
                output_tokens,
            };
            self.gate.served(&sent.request, served);
        }
    }

    /// The engine is done with a request: its slot is free. Sends the terminal event unless the
    /// request was called off before. False if no such request is with the engine.
    pub fn done(&mut self, now: Time, id: RequestId, outcome: Outcome) -> bool {
        let now = self.advance(now);
        let in_flight = self.in_flight();
        let Some(sent) = self.sent.remove(&id) else {
            return false;
        };
        let took = now.since(sent.at);
        let finished = matches!(outcome, Outcome::Finished { .. }) && sent.answered.is_none();
        let used = match &outcome {
            Outcome::Finished { usage, .. } => *usage,
            Outcome::Failed { .. } => usage(&sent.request, sent.output_tokens),
        };
        let cause = match (sent.answered, &outcome) {
            (Some(reason), _) => Cause::Cancelled(reason),
            (None, Outcome::Finished { .. }) => Cause::Finished,
            (None, Outcome::Failed { .. }) => Cause::Failed,
        };
        match &outcome {
            Outcome::Finished { usage, .. } => {
                let rest = usage.output_tokens.saturating_sub(sent.output_tokens);
                let served = Served {
                    prompt_tokens: usage.prompt_tokens.saturating_sub(usage.cached_tokens),
                    output_tokens: rest,
                };
                self.gate.served(&sent.request, served);
                if finished {
                    self.concurrency.ended(took, usage.output_tokens, in_flight);
                }
            }
            Outcome::Failed { .. } if sent.answered.is_none() => self.concurrency.failed(),
            Outcome::Failed { .. } => {}
        }
        self.gate.set_slots(self.concurrency.limit());
        let busy = now.since(self.busy_since);
        self.gate.pace_mut().finished(u32::from(finished), busy);
        self.busy_since = now;
        let ended = Ended {
            request: &sent.request,
            cause,
            usage: used,
            ran: Some(took),
        };
        self.gate.ended(now, &ended);
        if sent.answered.is_some() {
            self.aborting -= 1;
        } else {
            self.forget_deadline(&sent.request);
            self.answer_outcome(id, &sent, outcome);
        }
        true
    }

    /// Calls a request off, wherever it is, and answers it at once. If it is with the engine, the
    /// slot stays taken until [`done`](Self::done). False if no such request is live.
    pub fn cancel(&mut self, now: Time, id: RequestId, reason: CancelReason) -> bool {
        let now = self.advance(now);
        if let Some(request) = self.gate.cancel(now, id) {
            self.end_waiting(&request, reason);
            return true;
        }
        self.cancel_sent(id, reason)
    }

    /// Answers every request whose deadline has passed and moves those whose place in the queue has
    /// changed. [`next`](Self::next) does it too.
    pub fn handle_timeout(&mut self, now: Time) {
        let now = self.advance(now);
        while let Some((request, reason)) = self.gate.next_due(now) {
            self.end_waiting(&request, reason);
        }
        while let Some(&(deadline, id)) = self.deadlines.first()
            && deadline <= now
        {
            self.deadlines.pop_first();
            self.cancel_sent(id, CancelReason::Deadline);
        }
    }

    /// Takes nothing in from now on; what was taken in is served to its end.
    pub fn drain(&mut self, now: Time) {
        let now = self.advance(now);
        if self.gate.is_draining() {
            return;
        }
        self.gate.drain();
        let (waiting, running) = (self.gate.len(), self.running());
        self.gate
            .journal()
            .write(now, None, || Decision::Draining { waiting, running });
    }

    /// Calls every request off, as at the end of a drain's grace period.
    pub fn cancel_all(&mut self, now: Time, reason: CancelReason) {
        let now = self.advance(now);
        while let Some(id) = self.gate.next_id(now) {
            self.cancel(now, id, reason);
        }
        let sent: Vec<RequestId> = self.sent.keys().copied().collect();
        for id in sent {
            self.cancel_sent(id, reason);
        }
    }

    /// Whether the dispatcher drains, nothing waits, and the engine has let go of everything.
    pub fn is_drained(&self) -> bool {
        self.gate.is_draining() && self.gate.is_empty() && self.sent.is_empty()
    }

    /// The next event, in the order in which they happened.
    pub fn poll_event(&mut self) -> Option<Event> {
        self.events.pop_front()
    }

    /// When the dispatcher wants [`handle_timeout`](Self::handle_timeout) without any other input: a
    /// deadline, or a promotion in the queue.
    pub fn next_timeout(&self) -> Option<Time> {
        let deadline = self.deadlines.first().map(|&(deadline, _)| deadline);
        [self.gate.next_timeout(), deadline]
            .into_iter()
            .flatten()
            .min()
    }

    /// A reading of the dispatcher.
    pub fn stats(&self) -> DispatcherStats {
        DispatcherStats {
            waiting: self.gate.len(),
            running: self.running(),
            aborting: self.aborting,
            limit: self.concurrency.limit(),
            counters: self.counters,
        }
    }

    /// How fast the engine has been. It knows of requests and not of steps.
    pub fn pace(&self) -> &Pace {
        self.gate.load(self.now).pace
    }

    /// The gate: what waits, and what admission policies are shown.
    pub fn gate(&self) -> &Gate {
        &self.gate
    }

    /// Sends the journal to `sink`, or nowhere.
    pub fn set_journal(&mut self, sink: Option<Box<dyn Sink>>) {
        self.gate.set_journal(sink);
    }

    fn advance(&mut self, now: Time) -> Time {
        self.now = self.now.max(now);
        self.now
    }

    /// Slots that are taken.
    fn in_flight(&self) -> u32 {
        self.sent.len() as u32
    }

    fn running(&self) -> u32 {
        self.in_flight() - self.aborting
    }

    fn cancel_sent(&mut self, id: RequestId, reason: CancelReason) -> bool {
        let Some(sent) = self
            .sent
            .get_mut(&id)
            .filter(|sent| sent.answered.is_none())
        else {
            return false;
        };
        sent.answered = Some(reason);
        let (request, output_tokens) = (Arc::clone(&sent.request), sent.output_tokens);
        self.aborting += 1;
        self.forget_deadline(&request);
        self.answer_cancelled(&request, output_tokens, reason);
        true
    }

    fn forget_deadline(&mut self, request: &Request) {
        if let Some(deadline) = request.deadline() {
            self.deadlines.remove(&(deadline, request.id()));
        }
    }

    fn answer_outcome(&mut self, id: RequestId, sent: &Sent, outcome: Outcome) {
        let (decision, kind) = match outcome {
            Outcome::Finished { reason, usage } => {
                self.counters.finished += 1;
                self.counters.output_tokens += u64::from(usage.output_tokens);
                let output_tokens = usage.output_tokens;
                let decision = Decision::Finished {
                    reason,
                    output_tokens,
                };
                (decision, EventKind::Finished { reason, usage })
            }
            Outcome::Failed { cause } => {
                self.counters.failed += 1;
                let usage = usage(&sent.request, sent.output_tokens);
                let decision = Decision::Failed {
                    cause: Arc::clone(&cause),
                    output_tokens: sent.output_tokens,
                };
                (decision, EventKind::Failed { cause, usage })
            }
        };
        self.gate.journal().write(self.now, id, || decision);
        self.emit(id, kind);
    }

    /// Ends a request that has left the queue without being sent.
    fn end_waiting(&mut self, request: &Request, reason: CancelReason) {
        let ended = Ended {
            request,
            cause: Cause::Cancelled(reason),
            usage: usage(request, 0),
            ran: None,
        };
        self.gate.ended(self.now, &ended);
        self.answer_cancelled(request, 0, reason);
    }

    /// Ends those who have given their places in a full queue up.
    fn end_displaced(&mut self) {
        while let Some((request, refusal)) = self.gate.next_displaced() {
            let ended = Ended {
                request: &request,
                cause: Cause::Displaced,
                usage: usage(&request, 0),
                ran: None,
            };
            self.gate.ended(self.now, &ended);
            self.counters.refused += 1;
            self.emit(request.id(), EventKind::Displaced { refusal });
        }
    }

    fn answer_cancelled(&mut self, request: &Request, output_tokens: u32, reason: CancelReason) {
        self.counters.cancelled += 1;
        let usage = usage(request, output_tokens);
        self.gate
            .journal()
            .write(self.now, request.id(), || Decision::Cancelled {
                reason,
                output_tokens,
            });
        self.emit(request.id(), EventKind::Cancelled { reason, usage });
    }

    fn emit(&mut self, request: RequestId, kind: EventKind) {
        let at = self.now;
        self.events.push_back(Event { request, at, kind });
    }
}

fn usage(request: &Request, output_tokens: u32) -> Usage {
    Usage {
        prompt_tokens: request.prompt_tokens(),
        output_tokens,
        ..Usage::default()
    }
}
