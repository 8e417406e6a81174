//! Gate + concurrency slots, for engines that are driven one request at a time: another server
//! behind HTTP, a llama.cpp process, any async service.
//!
//! What happens inside the engine is its own business. The dispatcher decides who is sent to it and
//! when, and sees to it that every request is answered exactly once.

mod answers;
mod change;
mod hearing;
mod outcome;

pub use outcome::Outcome;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use serve_core::{CancelReason, Event, EventKind, Limit, Refusal, Request, RequestId, Time};

use crate::admit::Admit;
use crate::gate::{Gate, Taken};
use crate::journal::{Decision, Sink};
use crate::limit::Concurrency;
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
/// out the events. A request that it has sent and that is then cancelled gets its terminal event
/// at once; the driver aborts the engine's work on it and calls [`done`](Self::done) when the engine
/// has let go. Until then the slot is taken: a timeout does not take work out of an engine.
///
/// An engine that refuses a request (429, 503) can have it [put back](Outcome::PutBack): it waits
/// again, in its old place, for as long as the engine said. Nothing else is sent to that engine
/// either until then, unless a request leaves it and so makes room.
///
/// ```
/// use serve_core::{FinishReason, Request, RequestId, Time, TokenId, Usage};
/// use serve_sched::order::Fifo;
/// use serve_sched::limit::Fixed;
/// use serve_sched::{Dispatcher, Outcome};
///
/// let mut dispatcher = Dispatcher::new(Vec::new(), Box::new(Fifo), Box::new(Fixed::new(1)));
/// for id in 1..=2 {
///     let prompt = vec![TokenId::new(7); 4];
///     dispatcher.submit(Time::ZERO, Request::new(RequestId::new(id), Time::ZERO, prompt, 3)?)?;
/// }
/// let sent = dispatcher.next(Time::ZERO).expect("a slot is free");
/// assert!(dispatcher.next(Time::ZERO).is_none(), "the only slot is taken");
///
/// // .. the engine answers ..
/// let usage = Usage { prompt_tokens: 4, output_tokens: 3, ..Usage::default() };
/// let outcome = Outcome::Answered { reason: FinishReason::Length, usage };
/// dispatcher.done(Time::from_millis(80), sent.id(), outcome);
/// assert!(dispatcher.next(Time::from_millis(80)).is_some());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Dispatcher {
    gate: Gate,
    limit: Box<dyn Concurrency>,
    put_backs_max: u32,
    sent: BTreeMap<RequestId, Sent>,
    /// When those were first sent that wait again.
    put_back: BTreeMap<RequestId, Time>,
    deadlines: BTreeSet<(Time, RequestId)>,
    events: VecDeque<Event>,
    counters: Counters,
    aborting: u32,
    now: Time,
    /// Since when the engine has been busy, or the last request ended.
    busy_since: Time,
    /// Until when nothing is sent.
    paused_until: Option<Time>,
    /// Requests that have left the engine since the last one that was answered.
    unanswered: u32,
}

/// How often a request is put back, if nothing else is asked for.
const PUT_BACKS_MAX: u32 = 5;

/// A reading of a dispatcher. At every instant
/// `arrived = finished + refused + cancelled + failed + waiting + running`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct DispatcherStats {
    /// Requests in the queue, those put back included.
    pub waiting: u32,
    /// Requests sent and not answered.
    pub running: u32,
    /// Requests cancelled that the engine has not let go of.
    pub aborting: u32,
    /// Requests that may be with the engine at once.
    pub limit: u32,
    /// Requests counted since the start. There are no steps here, and so none are counted.
    pub counters: Counters,
}

/// A request that is with the engine.
#[derive(Debug)]
struct Sent {
    taken: Taken,
    at: Time,
    first_token: Option<Time>,
    output_tokens: u32,
    /// Why its client has been answered already.
    answered: Option<CancelReason>,
}

impl Dispatcher {
    /// A dispatcher that sends as many requests at once as `limit` says, in the order of `order`.
    pub fn new(
        admit: Vec<Box<dyn Admit>>,
        order: Box<dyn Order>,
        limit: Box<dyn Concurrency>,
    ) -> Self {
        Self {
            gate: Gate::new(admit, order, limit.limit().max(1)),
            limit,
            put_backs_max: PUT_BACKS_MAX,
            sent: BTreeMap::new(),
            put_back: BTreeMap::new(),
            deadlines: BTreeSet::new(),
            events: VecDeque::new(),
            counters: Counters::default(),
            aborting: 0,
            now: Time::ZERO,
            busy_since: Time::ZERO,
            paused_until: None,
            unanswered: 0,
        }
    }

    /// Lets a request be [put back](Outcome::PutBack) up to `times` times, instead of 5; the next time
    /// it fails.
    #[must_use]
    pub fn with_put_backs_max(mut self, times: u32) -> Self {
        self.put_backs_max = times;
        self
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
        if self.in_flight() >= self.limit() || self.is_paused(now) {
            return None;
        }
        let taken = self.gate.take(now)?;
        if self.sent.is_empty() {
            self.busy_since = now;
        }
        let (request, waited) = (Arc::clone(&taken.request), now.since(taken.since));
        let (id, first) = (request.id(), taken.preemptions == 0);
        if let Some(deadline) = request.deadline() {
            self.deadlines.insert((deadline, id));
        }
        let sent = Sent {
            taken,
            at: now,
            first_token: None,
            output_tokens: 0,
            answered: None,
        };
        self.sent.insert(id, sent);
        let (running, slots) = (self.in_flight(), self.limit());
        self.gate.journal().write(now, id, || Decision::Sent {
            waited,
            running,
            slots,
        });
        if first {
            self.emit(id, EventKind::Started);
        }
        Some(request)
    }

    /// Tokens have come back of a request that was sent. Needed only where an order, a terminal event
    /// or a limit is to know of them before the end; [`done`](Self::done) counts the rest.
    pub fn served(&mut self, now: Time, id: RequestId, output_tokens: u32) {
        let now = self.advance(now);
        if let Some(sent) = self.sent.get_mut(&id) {
            sent.output_tokens = sent.output_tokens.saturating_add(output_tokens);
            sent.first_token = sent.first_token.or(Some(now));
            let served = Served {
                prompt_tokens: 0,
                output_tokens,
            };
            self.gate.served(&sent.taken.request, served);
        }
    }

    /// The engine is done with a request: its slot is free. The request ends, unless it was cancelled
    /// before or is put back. False if no such request is with the engine.
    pub fn done(&mut self, now: Time, id: RequestId, outcome: Outcome) -> bool {
        let now = self.advance(now);
        let Some(sent) = self.sent.get(&id) else {
            return false;
        };
        let late = sent.taken.request.deadline();
        if late.is_some_and(|at| at <= now) && outcome.cause().is_some() {
            self.cancel_sent(id, CancelReason::Deadline);
        }
        let Some(sent) = self.left(id, &outcome) else {
            return false;
        };
        match &outcome {
            Outcome::PutBack { cause, .. } if self.may_be_put_back(&sent) => {
                self.wait_again(sent, &outcome, cause);
            }
            _ => self.end_sent(id, &sent, outcome),
        }
        true
    }

    /// Cancels a request, wherever it is, and answers it at once. If it is with the engine, the
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
        self.paused_until = self.paused_until.filter(|&until| now < until);
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

    /// Cancels every request, as at the end of a drain's grace period.
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
    /// deadline, a promotion in the queue, or the end of a time for which an engine wanted nothing.
    pub fn next_timeout(&self) -> Option<Time> {
        let deadline = self.deadlines.first().map(|&(deadline, _)| deadline);
        let paused = self.paused_until.filter(|_| !self.gate.is_empty());
        [self.gate.next_timeout(), deadline, paused]
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
            limit: self.limit(),
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

    /// Requests that may be with the engine.
    fn limit(&self) -> u32 {
        self.limit.limit().max(1)
    }

    /// Slots that are taken.
    fn in_flight(&self) -> u32 {
        self.sent.len() as u32
    }

    fn running(&self) -> u32 {
        self.in_flight() - self.aborting
    }

    fn cancel_sent(&mut self, id: RequestId, reason: CancelReason) -> bool {
        let Some(mut sent) = self.sent.remove(&id) else {
            return false;
        };
        let live = sent.answered.is_none();
        if live {
            sent.answered = Some(reason);
            self.aborting += 1;
            let request = Arc::clone(&sent.taken.request);
            self.forget_deadline(&request);
            self.answer_cancelled(&request, sent.output_tokens, reason);
        }
        self.sent.insert(id, sent);
        if live && is_deadline(reason) {
            self.hear_deadline(id);
        }
        live
    }

    /// Takes a request from the engine and tells the limit.
    fn left(&mut self, id: RequestId, outcome: &Outcome) -> Option<Sent> {
        let sent = self.sent.get(&id)?;
        let before = sent.taken.preemptions;
        let (signal, answered) = (outcome.signal(sent.answered), sent.answered);
        let output_tokens = match outcome {
            Outcome::Answered { usage, .. } => usage.output_tokens,
            _ => sent.output_tokens,
        };
        // Of a deadline the limit has heard when it passed.
        if !answered.is_some_and(is_deadline) {
            self.hear(id, output_tokens, signal);
        }
        self.pause(outcome.pause(before));
        let sent = self.sent.remove(&id)?;
        self.forget_deadline(&sent.taken.request);
        Some(sent)
    }

    fn may_be_put_back(&self, sent: &Sent) -> bool {
        let begun = sent.output_tokens > 0;
        sent.answered.is_none() && !begun && sent.taken.preemptions < self.put_backs_max
    }

    fn wait_again(&mut self, sent: Sent, outcome: &Outcome, cause: &Arc<str>) {
        let (now, id) = (self.now, sent.taken.request.id());
        let before = sent.taken.preemptions;
        let until = now + outcome.pause(before).unwrap_or_default();
        self.counters.preempted += 1;
        self.put_back.entry(id).or_insert(sent.at);
        self.engine_worked(false);
        self.gate.journal().write(now, id, || Decision::PutBack {
            cause: Arc::clone(cause),
            times: before + 1,
            until,
        });
        self.gate.put_back_until(now, sent.taken, until);
    }

    /// The engine has worked since a request last left it, and perhaps finished one.
    fn engine_worked(&mut self, finished: bool) {
        let busy = self.now.since(self.busy_since);
        self.gate.pace_mut().finished(u32::from(finished), busy);
        self.busy_since = self.now;
    }

    fn forget_deadline(&mut self, request: &Request) {
        if let Some(deadline) = request.deadline() {
            self.deadlines.remove(&(deadline, request.id()));
        }
    }
}

/// Whether it was the time that ran out.
fn is_deadline(reason: CancelReason) -> bool {
    matches!(
        reason,
        CancelReason::Deadline | CancelReason::DeadlineUnreachable
    )
}
