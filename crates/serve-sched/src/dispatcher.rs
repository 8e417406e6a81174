//! Gate + concurrency slots, for engines that are driven one request at a time: another server
//! behind HTTP, a llama.cpp process, any async service.
//!
//! What happens inside the engine is its own business. The dispatcher decides who is sent to it and
//! when, and sees to it that every request is answered exactly once.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use serve_core::{
    CancelReason, Event, EventKind, FinishReason, Limit, Refusal, Request, RequestId, Span, Time,
    Usage,
};

use crate::admit::Admit;
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
    answered: bool,
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
        let (request, id) = (taken.request, self.gate_id(&taken_id(&taken.since), now));
        let _ = id;
        Some(request)
    }
}
