//! The scheduler: gate + batcher + KV block pool + preemption, for engines driven one step at a
//! time.
//!
//! `plan.rs` decides what the next step runs, `fit.rs` finds blocks for who joins, `preempt.rs` makes
//! room, `prompts.rs` shares a step's tokens among prompts, `complete.rs` books what came of the step,
//! `ending.rs` answers requests, `events.rs` keeps what is to be told, `change.rs` goes on with other settings, `prefixes.rs` names full blocks,
//! `steady.rs` looks ahead over steps whose batch does not change.

mod change;
mod complete;
mod ending;
mod events;
mod fit;
mod live;
mod plan;
mod preempt;
mod prefixes;
mod prompts;
mod stats;
mod steady;

pub use stats::{ClassStats, Counters, Stats};

use std::collections::BTreeSet;
use std::sync::Arc;

use serve_core::{
    CancelReason, Event, EventKind, Limit, Limits, Refusal, Request, RequestId, StepId, Time,
};
use slab::Slab;

use crate::admit::Room;
use crate::batch::Batch;
use crate::budget::{Budget, StepCost};
use crate::config_error::ConfigError;
use crate::gate::Gate;
use crate::ids::IdTable;
use crate::journal::{Decision, Deferral, Sink};
use crate::kv::{BlockPool, KvSettings};
use crate::order::LEVELS_MAX;
use crate::pace::{Lacking, Pace};
use crate::policies::Policies;
use crate::victim::{Preemption, Victim};
use ending::End;
use events::Events;
use live::{Blocks, Live, Stage};
use prefixes::{Prefixes, Tails};
use prompts::Prompts;

/// Decides, step by step, what a device runs. Does no I/O, reads no clock: every input carries
/// `now`, which never goes back (an earlier `now` counts as the latest one).
///
/// - **Inputs**: [`submit`](Self::submit), [`cancel`](Self::cancel), [`book`](Self::book) (or what it
///   is made of: [`complete`](Self::complete), [`fail`](Self::fail), [`fail_all`](Self::fail_all)),
///   [`handle_timeout`](Self::handle_timeout), [`drain`](Self::drain), [`change`](Self::change).
/// - **Outputs**: [`plan_into`](Self::plan_into), [`poll_event`](Self::poll_event) or
///   [`take_events`](Self::take_events), [`next_timeout`](Self::next_timeout).
/// - **Readings**: [`stats`](Self::stats), [`pace`](Self::pace), the journal.
///
/// A driver repeats: give the inputs that have come, ask for a plan, have the backend execute it,
/// tell what came of it, and hand out events. One step is in flight at most; every other input may
/// come while it is. With no plan to be had it waits for an input or for the next timeout.
///
/// ```
/// use serve_core::{Backend, Request, RequestId, StepOutcome, Time, TokenId, mock::Mock};
/// use serve_sched::{Policies, Scheduler};
///
/// let mut device = Mock::default();
/// let mut scheduler = Scheduler::new(device.limits(), Policies::default())?;
/// let mut now = Time::ZERO;
/// let prompt = vec![TokenId::new(7); 40];
/// scheduler.submit(now, Request::new(RequestId::new(1), now, prompt, 3)?)?;
/// let mut outcome = StepOutcome::new();
/// while let Some(plan) = scheduler.plan(now) {
///     device.execute(&plan, &mut outcome)?;
///     now += outcome.elapsed;
///     scheduler.complete(now, &outcome);
/// }
/// let events: Vec<_> = std::iter::from_fn(|| scheduler.poll_event()).collect();
/// assert_eq!(events.len(), 5, "started, three tokens, finished");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Scheduler {
    limits: Limits,
    gate: Gate,
    batch: Box<dyn Batch>,
    budget: Box<dyn Budget>,
    victim: Box<dyn Victim>,
    preemption: Preemption,
    kv: KvSettings,
    pool: BlockPool,
    watermark: u32,
    step_tokens_max: u32,
    sequences_max: u32,
    now: Time,
    next_step: StepId,
    /// What steps with decodes in them have lately cost.
    step_cost: StepCost,
    live: Slab<Live>,
    ids: IdTable,
    /// Slots in the order of joining. Those no longer running are swept out lazily.
    running: Vec<usize>,
    unswept: bool,
    prompts: Prompts,
    deadlines: BTreeSet<(Time, usize)>,
    flight: Flight,
    /// Ids for the backend to forget, to go with the next plan.
    releases: Vec<RequestId>,
    /// Ids that the backend has not yet been seen to forget. They do not come back before.
    parting: IdTable,
    /// The head of the queue, hashed once however often it is looked at.
    probe: Probe,
    deferred: Option<(RequestId, Deferral)>,
    hold_until: Option<Time>,
    /// What the next in line was lacking in the last plan.
    lacking: Option<Lacking>,
    /// Prompt positions found in the prefix cache since the last step was booked.
    found_tokens: u64,
    /// Buffers of those that have ended.
    #[expect(
        clippy::vec_box,
        reason = "they move into a request and out again as they are"
    )]
    spare: Vec<Box<Blocks>>,
    tails: Tails,
    events: Events,
    token_events: TokenEvents,
    counters: Counters,
    by_class: Vec<ClassCounts>,
}

/// Which token events are sent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum TokenEvents {
    /// One for each token.
    #[default]
    All,
    /// One for the first token of each request: enough to measure its time.
    First,
}

/// The step that the device is running.
#[derive(Debug, Default)]
struct Flight {
    step: Option<StepId>,
    segments: Vec<FlightSegment>,
    releases: Vec<RequestId>,
}

#[derive(Clone, Copy, Debug)]
struct FlightSegment {
    slot: usize,
    start: u32,
    end: u32,
    sample: bool,
}

#[derive(Debug, Default)]
struct Probe {
    request: Option<RequestId>,
    prefixes: Prefixes,
}

#[derive(Clone, Copy, Debug, Default)]
struct ClassCounts {
    running: u32,
    counters: Counters,
}

impl Scheduler {
    /// A scheduler for a device with these limits.
    ///
    /// # Errors
    ///
    /// [`ConfigError`] when nothing could run under the limits or the policies.
    pub fn new(limits: Limits, policies: Policies) -> Result<Self, ConfigError> {
        limits.validate()?;
        policies.batch.validate()?;
        policies.budget.validate()?;
        let most = |limit: u32, policy: Option<u32>| policy.unwrap_or(limit).min(limit);
        let step_tokens_max = most(limits.step_tokens_max, policies.batch.step_tokens_max());
        let sequences_max = most(limits.sequences_max, policies.batch.sequences_max());
        ConfigError::check_step_tokens(step_tokens_max, sequences_max)?;
        let levels = policies.order.levels().len();
        if levels > LEVELS_MAX {
            return Err(ConfigError::OrderLevels { levels });
        }
        let watermark = policies.kv.watermark_blocks;
        ConfigError::check_watermark(watermark, limits.usable_blocks())?;
        let mut gate = Gate::new(policies.admit, policies.order, sequences_max);
        gate.set_joinable(policies.batch.joins_running());
        gate.set_block_size(limits.block_size);
        gate.set_lengths(policies.lengths);
        let mut scheduler = Self {
            limits,
            gate,
            batch: policies.batch,
            budget: policies.budget,
            victim: policies.victim,
            preemption: policies.preemption,
            kv: policies.kv,
            pool: BlockPool::new(limits.blocks),
            watermark: watermark.unwrap_or(limits.usable_blocks() / 100),
            step_tokens_max,
            sequences_max,
            now: Time::ZERO,
            next_step: StepId::default(),
            step_cost: StepCost::default(),
            live: Slab::new(),
            ids: IdTable::default(),
            running: Vec::new(),
            unswept: false,
            prompts: Prompts::default(),
            deadlines: BTreeSet::new(),
            flight: Flight::default(),
            releases: Vec::new(),
            parting: IdTable::default(),
            probe: Probe::default(),
            deferred: None,
            hold_until: None,
            lacking: None,
            found_tokens: 0,
            spare: Vec::new(),
            tails: Tails::new(limits.block_size),
            events: Events::default(),
            token_events: TokenEvents::All,
            counters: Counters::default(),
            by_class: Vec::new(),
        };
        scheduler.show_room();
        Ok(scheduler)
    }

    /// Takes a request into the queue. O(log n) in the requests that wait.
    ///
    /// # Errors
    ///
    /// A [`Refusal`]: *never* when it [has no tokens](Request::has_tokens), when it cannot fit into
    /// the context or the KV pool, when its id is live (which it is until the step that has the backend forget it is booked) or its deadline has
    /// passed; *later* while draining; or what an admission policy says.
    pub fn submit(&mut self, now: Time, request: impl Into<Arc<Request>>) -> Result<(), Refusal> {
        let now = self.advance(now);
        let request = request.into();
        let class = request.class();
        self.count(class, |counters| counters.arrived += 1);
        self.show_room();
        let taken = self.check_limits(now, &request);
        let taken = taken.and_then(|()| self.gate.submit(now, request));
        while let Some((request, refusal)) = self.gate.next_displaced() {
            self.end_waiting(now, &request, End::Displaced(refusal));
        }
        match taken {
            Ok(()) => self.batch.arrived(now),
            Err(_) => self.count(class, |counters| counters.refused += 1),
        }
        taken
    }

    /// Refuses a request before its length is known, where a rate or a limit on what is in flight would refuse it
    /// whatever that is: no work need be done for it. `least` is the shortest request of the same id, tenant and
    /// class. Refused, it counts and is written down as one that was submitted. Taken, it counts with rates as one
    /// of `tokens` tokens, which should be as many as the work may come to, until it is whole and taken when it is
    /// [submitted](Self::submit), or until it is [released](Self::release).
    ///
    /// # Errors
    ///
    /// The [`Refusal`] that its client is told.
    pub fn pre_admit(&mut self, now: Time, least: &Request, tokens: u32) -> Result<(), Refusal> {
        let now = self.advance(now);
        self.show_room();
        let asked = self.gate.pre_admit(now, least, tokens);
        if asked.is_err() {
            self.count(least.class(), |counters| {
                counters.arrived += 1;
                counters.refused += 1;
            });
        }
        asked
    }

    /// Work for a request that was [taken before it was whole](Self::pre_admit) is over, and it was not taken when
    /// it came, or does not come. It has cost `tokens`; 0 where that is not its client's doing. Without effect on
    /// one that was taken.
    pub fn release(&mut self, now: Time, least: &Request, tokens: u32) {
        let now = self.advance(now);
        self.gate.release(now, least, tokens);
    }

    /// Cancels a request, wherever it is, and answers it at once. Its KV blocks are given up at
    /// the latest when the step in flight is complete. False if no live request has this id.
    pub fn cancel(&mut self, now: Time, id: RequestId, reason: CancelReason) -> bool {
        let now = self.advance(now);
        if let Some(request) = self.gate.cancel(now, id) {
            self.end_waiting(now, &request, End::Cancelled(reason));
            return true;
        }
        match self.ids.get(id) {
            Some(slot) if self.live[slot].stage == Stage::Running => {
                self.end(now, slot, End::Cancelled(reason));
                true
            }
            _ => false,
        }
    }

    /// Cancels every request.
    pub fn cancel_all(&mut self, now: Time, reason: CancelReason) {
        let now = self.advance(now);
        while let Some(id) = self.gate.next_id(now) {
            self.cancel(now, id, reason);
        }
        for index in 0..self.running.len() {
            let slot = self.running[index];
            if self.live[slot].stage == Stage::Running {
                self.end(now, slot, End::Cancelled(reason));
            }
        }
    }

    /// Answers every request whose deadline has passed, or that was to have started, and moves those
    /// whose place in the queue has changed; of those that wait, up to 1,024, and the others the next
    /// time. [`plan_into`](Self::plan_into) does it too.
    pub fn handle_timeout(&mut self, now: Time) {
        let now = self.advance(now);
        while let Some((request, reason)) = self.gate.next_due(now) {
            self.end_waiting(now, &request, End::Cancelled(reason));
        }
        while let Some(&(deadline, slot)) = self.deadlines.first() {
            if deadline > now {
                break;
            }
            self.end(now, slot, End::Cancelled(CancelReason::Deadline));
        }
    }

    /// Takes nothing in from now on; what was taken in is served to its end.
    pub fn drain(&mut self, now: Time) {
        let now = self.advance(now);
        if self.gate.is_draining() {
            return;
        }
        self.gate.drain();
        let (waiting, running) = (self.gate.len(), self.gate.running());
        self.gate
            .journal()
            .write(now, None, || Decision::Draining { waiting, running });
    }

    /// Whether the scheduler drains and nothing is live any more.
    pub fn is_drained(&self) -> bool {
        self.gate.is_draining() && self.is_idle()
    }

    /// Whether nothing waits and nothing runs.
    pub fn is_idle(&self) -> bool {
        self.gate.is_empty() && self.gate.running() == 0
    }

    /// The next event, in the order in which they happened.
    #[inline]
    pub fn poll_event(&mut self) -> Option<Event> {
        self.events.pop()
    }

    /// Appends all events that there are, in the order in which they happened.
    pub fn take_events(&mut self, events: &mut Vec<Event>) {
        self.events.take_all(events);
    }

    /// When the scheduler wants [`handle_timeout`](Self::handle_timeout) or a plan without any
    /// other input: a deadline, a promotion in the queue, the end of a static batch's window.
    pub fn next_timeout(&self) -> Option<Time> {
        let deadline = self.deadlines.first().map(|&(deadline, _)| deadline);
        let timeouts = [self.gate.next_timeout(), deadline, self.hold_until];
        timeouts.into_iter().flatten().min()
    }

    /// Sends the journal to `sink`, or nowhere.
    pub fn set_journal(&mut self, sink: Option<Box<dyn Sink>>) {
        self.gate.set_journal(sink);
    }

    /// Chooses which [`EventKind::Token`] events are sent; by default all are.
    pub fn set_token_events(&mut self, which: TokenEvents) {
        self.token_events = which;
    }

    /// The device's limits.
    pub fn limits(&self) -> &Limits {
        &self.limits
    }

    /// How fast the engine has been.
    pub fn pace(&self) -> &Pace {
        self.gate.load(self.now).pace
    }

    /// Forgets how fast the engine has been: what has run so far was no sample of what is to come.
    pub fn forget_pace(&mut self) {
        self.gate.forget_pace();
        self.step_cost = StepCost::default();
    }

    /// The gate: what waits, and what admission policies are shown.
    pub fn gate(&self) -> &Gate {
        &self.gate
    }

    /// Tells the gate what there is for those who wait.
    fn show_room(&mut self) {
        self.gate.set_room(Room {
            blocks: self.limits.usable_blocks() - self.watermark.min(self.limits.usable_blocks()),
            available: self.pool.available().saturating_sub(self.watermark),
            step_tokens: self.step_tokens_max,
            prompt_tokens: self.prompts.tokens_behind(),
            lacking: self.lacking,
        });
    }

    fn advance(&mut self, now: Time) -> Time {
        self.now = self.now.max(now);
        self.now
    }

    fn check_limits(&mut self, now: Time, request: &Request) -> Result<(), Refusal> {
        let positions = request.positions_max();
        let blocks = self.limits.blocks_for(positions);
        let limit = if !request.has_tokens() {
            Limit::NoTokens
        } else if positions > self.limits.context_max {
            Limit::Context {
                needed: u64::from(positions),
                max: u64::from(self.limits.context_max),
            }
        } else if blocks > self.limits.usable_blocks() {
            Limit::KvBlocks {
                needed: blocks,
                max: self.limits.usable_blocks(),
            }
        } else if self.ids.get(request.id()).is_some() || self.parting.get(request.id()).is_some() {
            Limit::DuplicateId
        } else {
            return Ok(());
        };
        let refusal = Refusal::Never { limit };
        Err(self.gate.refuse(now, request.id(), "limits", refusal))
    }

    fn emit(&mut self, at: Time, request: RequestId, kind: EventKind) {
        self.events.push(Event { request, at, kind });
    }

    fn class(&mut self, class: serve_core::Class) -> &mut ClassCounts {
        let rank = usize::from(class.rank());
        if self.by_class.len() <= rank {
            self.by_class.resize(rank + 1, ClassCounts::default());
        }
        &mut self.by_class[rank]
    }

    fn count(&mut self, class: serve_core::Class, add: impl Fn(&mut Counters)) {
        add(&mut self.counters);
        add(&mut self.class(class).counters);
    }
}
