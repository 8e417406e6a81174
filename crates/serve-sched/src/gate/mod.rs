//! Admission and the waiting queue: enough to stand in front of any engine, whether it is driven one
//! step or one request at a time.
//!
//! Inputs: [`Gate::submit`], [`Gate::take`], [`Gate::put_back`], [`Gate::ended`],
//! [`Gate::cancel`], [`Gate::next_due`]. Readings: [`Gate::head`], [`Gate::len`],
//! [`Gate::next_timeout`], [`Gate::load`]. The gate sends no events; who takes a request answers
//! for it.

mod line;
mod queue;
mod started;

use std::sync::Arc;

use serve_core::{CancelReason, Class, Limit, Refusal, Request, RequestId, Span, Time};

use crate::admit::{Admit, Cause, Ended, Load};
use crate::demand::Demand;
use crate::journal::{Decision, Journal, Sink};
use crate::order::{Lanes, Order, Served, Waiting};
use crate::pace::Pace;
use queue::{Due, Entry, Queue};
use started::Started;

/// Admission policies, an order and the requests that wait.
///
/// ```
/// use std::sync::Arc;
///
/// use serve_core::{Request, RequestId, Span, Time, TokenId, Usage};
/// use serve_sched::admit::{Cause, Ended, QueueCap};
/// use serve_sched::{Gate, order::Fifo};
///
/// let mut gate = Gate::new(vec![Box::new(QueueCap::new(10))], Box::new(Fifo), 1);
/// let prompt = vec![TokenId::new(7); 4];
/// let request = Request::new(RequestId::new(1), Time::ZERO, prompt, 3)?;
/// gate.submit(Time::ZERO, Arc::new(request))?;
/// // .. when the engine has room ..
/// let taken = gate.take(Time::from_millis(5)).expect("one waits");
/// assert_eq!((gate.len(), gate.running()), (0, 1));
/// // .. and when it has answered ..
/// let ended = Ended {
///     request: &taken.request,
///     cause: Cause::Finished,
///     usage: Usage { prompt_tokens: 4, output_tokens: 3, ..Usage::default() },
///     ran: Some(Span::from_millis(75)),
/// };
/// gate.ended(Time::from_millis(80), &ended);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Gate {
    admit: Vec<Box<dyn Admit>>,
    order: Box<dyn Order>,
    queue: Queue,
    by_class: Vec<u32>,
    block_size: u32,
    started: Started,
    slots: u32,
    joinable: bool,
    sequence: u64,
    draining: bool,
    pace: Pace,
    journal: Journal,
}

/// A request that has left the queue to be served.
#[derive(Clone, Debug)]
pub struct Taken {
    /// The request.
    pub request: Arc<Request>,
    /// Its place in the order of arrival at the gate.
    pub sequence: u64,
    /// Since when it waited.
    pub since: Time,
    /// How often it has been preempted.
    pub preemptions: u32,
}

impl Gate {
    /// An empty gate in front of an engine that serves up to `slots` requests side by side.
    pub fn new(admit: Vec<Box<dyn Admit>>, order: Box<dyn Order>, slots: u32) -> Self {
        let queue = Queue::new(order.lanes());
        Self {
            admit,
            order,
            queue,
            by_class: Vec::new(),
            block_size: 1,
            started: Started::default(),
            slots,
            joinable: true,
            sequence: 0,
            draining: false,
            pace: Pace::default(),
            journal: Journal::default(),
        }
    }

    /// Takes a request into the queue. O(log n) in the requests that wait.
    ///
    /// # Errors
    ///
    /// A [`Refusal`] when the gate is draining, the id is waiting already, the deadline has passed,
    /// or an admission policy refuses. Nothing of the request is kept.
    pub fn submit(&mut self, now: Time, request: Arc<Request>) -> Result<(), Refusal> {
        self.check(now, &request)?;
        let behind = self.behind(now, &request);
        for index in 0..self.admit.len() {
            let (policies, load) = self.policies_and_load(now);
            let load = Load { behind, ..load };
            let policy = &mut policies[index];
            if let Err(refusal) = policy.admit(&request, &load) {
                let by = policy.name();
                return Err(self.refuse(now, request.id(), by, refusal));
            }
        }
        let (policies, load) = self.policies_and_load(now);
        let load = Load { behind, ..load };
        for policy in policies {
            policy.admitted(&request, &load);
        }
        let (id, class, tenant) = (request.id(), request.class(), request.tenant());
        let sequence = self.sequence;
        self.sequence += 1;
        let arrived = Taken {
            request,
            sequence,
            since: now,
            preemptions: 0,
        };
        self.enter(now, arrived);
        let waiting = self.len();
        self.journal.write(now, id, || Decision::Admitted {
            class,
            tenant,
            waiting,
        });
        Ok(())
    }

    /// The request that is next.
    pub fn head(&mut self, now: Time) -> Option<Waiting<'_>> {
        let slot = self.queue.head(&*self.order, now)?;
        Some(self.queue.get(slot).view())
    }

    /// Takes the request that is next out of the queue; it is running from now on.
    pub fn take(&mut self, now: Time) -> Option<Taken> {
        let slot = self.queue.head(&*self.order, now)?;
        let entry = self.remove(now, slot, true);
        self.started.push(now, entry.request.id());
        Some(Taken {
            request: entry.request,
            sequence: entry.sequence,
            since: entry.since,
            preemptions: entry.preemptions,
        })
    }

    /// Lets a running request wait again, in the place that it had, ahead of all that arrived after
    /// it and rank the same. It has been admitted, so no admission policy is asked.
    pub fn put_back(&mut self, now: Time, taken: Taken) {
        self.started.remove(taken.request.id(), None);
        self.enter(now, taken);
    }

    /// An admitted request has ended, however it did. To be said once of each, whether it ran, was
    /// [cancelled](Self::cancel) or [expired](Self::next_due) while it waited.
    pub fn ended(&mut self, now: Time, ended: &Ended<'_>) {
        if let Some(ran) = ended.ran {
            self.started.remove(ended.request.id(), Some(now - ran));
            self.order.ended(ended.request);
        }
        if let (Cause::Finished, Some(ran)) = (ended.cause, ended.ran) {
            self.pace.served(ran);
        }
        let (policies, load) = self.policies_and_load(now);
        for policy in policies {
            policy.ended(ended, &load);
        }
    }

    /// A running request has been stopped, to be put back when the caller is ready.
    pub(crate) fn stopped(&mut self, id: RequestId) {
        self.started.remove(id, None);
    }

    /// Takes a request out of the queue because it was cancelled. `None` if it does not wait here.
    /// Whoever takes it out says that it has [ended](Self::ended).
    pub fn cancel(&mut self, now: Time, id: RequestId) -> Option<Arc<Request>> {
        let slot = self.queue.find(id)?;
        Some(self.remove(now, slot, false).request)
    }

    /// Moves requests whose place has changed by `now`, and gives out one whose deadline has passed,
    /// or that was to have started by now, with which of the two it is. Call it until it returns
    /// `None`.
    pub fn next_due(&mut self, now: Time) -> Option<(Arc<Request>, CancelReason)> {
        loop {
            match self.queue.due(now)? {
                Due::Expired(slot) => {
                    let request = self.remove(now, slot, false).request;
                    let late = request.deadline().is_some_and(|deadline| deadline <= now);
                    let reason = match late {
                        true => CancelReason::Deadline,
                        false => CancelReason::QueueTimeout,
                    };
                    return Some((request, reason));
                }
                Due::Place(slot) => self.place_again(now, slot),
            }
        }
    }

    /// When [`next_due`](Self::next_due) has something to do.
    pub fn next_timeout(&self) -> Option<Time> {
        self.queue.next_timeout()
    }

    /// Takes nothing in from now on.
    pub fn drain(&mut self) {
        self.draining = true;
    }

    /// Whether nothing is taken in any more.
    pub fn is_draining(&self) -> bool {
        self.draining
    }

    /// Tells the order policy what a running request was given.
    pub fn served(&mut self, request: &Request, served: Served) {
        self.order.served(request, served);
    }

    /// Whether `id` waits here.
    pub fn contains(&self, id: RequestId) -> bool {
        self.queue.find(id).is_some()
    }

    /// Requests waiting.
    pub fn len(&self) -> u32 {
        self.queue.len() as u32
    }

    /// Whether nothing waits.
    pub fn is_empty(&self) -> bool {
        self.queue.len() == 0
    }

    /// Requests of `class` waiting.
    pub fn len_of(&self, class: Class) -> u32 {
        let rank = usize::from(class.rank());
        self.by_class.get(rank).copied().unwrap_or(0)
    }

    /// Requests taken and not ended.
    pub fn running(&self) -> u32 {
        self.started.len() as u32
    }

    /// Since when the longest-waiting request waits.
    pub fn oldest_since(&self) -> Option<Time> {
        self.queue.oldest_since()
    }

    /// What admission policies are shown, as if by a request that goes after all that wait.
    pub fn load(&self, now: Time) -> Load<'_> {
        Load {
            now,
            waiting: self.len(),
            waiting_prompt_tokens: self.queue.demand().prompt_tokens,
            running: self.running(),
            slots: self.slots,
            joinable: self.joinable,
            pace: &self.pace,
            started: self.started.as_slice(),
            waiting_by_class: &self.by_class,
            behind: 0,
        }
    }

    /// How many requests the engine serves side by side; a limit that adapts changes it.
    pub fn set_slots(&mut self, slots: u32) {
        self.slots = slots;
    }

    /// Whether a waiting request may join what runs; it may, unless the engine runs batches that
    /// nobody joins. Predictions of the wait depend on it.
    pub fn set_joinable(&mut self, joinable: bool) {
        self.joinable = joinable;
    }

    /// In blocks of how many positions the engine keeps its KV cache.
    pub fn set_block_size(&mut self, block_size: u32) {
        self.block_size = block_size;
    }

    /// How fast the engine has been, to be told of work done.
    pub fn pace_mut(&mut self) -> &mut Pace {
        &mut self.pace
    }

    /// Sends the gate's decisions to `sink`, or nowhere.
    pub fn set_journal(&mut self, sink: Option<Box<dyn Sink>>) {
        self.journal.set(sink);
    }

    /// The order policy's name.
    pub fn order_name(&self) -> &'static str {
        self.order.name()
    }

    pub(crate) fn journal(&mut self) -> &mut Journal {
        &mut self.journal
    }

    /// Whether the head can change without an arrival, a start or a timeout.
    pub(crate) fn head_is_stable(&self) -> bool {
        self.order.lanes() == Lanes::Numbered
    }

    /// From when on nobody passes a request; never is [`Time::MAX`].
    pub(crate) fn ages_at(&self, request: &Request) -> Time {
        self.order.ages_at(request).unwrap_or(Time::MAX)
    }

    /// The request that is next, and from when on nobody passes it.
    pub(crate) fn head_and_age(&mut self, now: Time) -> Option<(Waiting<'_>, Time)> {
        let slot = self.queue.head(&*self.order, now)?;
        let head = self.queue.get(slot).view();
        Some((head, self.ages_at(head.request)))
    }

    /// The place in the order of arrival that the next arrival will have.
    pub(crate) fn next_sequence(&self) -> u64 {
        self.sequence
    }

    /// Records a refusal and hands it back.
    pub(crate) fn refuse(
        &mut self,
        now: Time,
        id: RequestId,
        by: &'static str,
        refusal: Refusal,
    ) -> Refusal {
        self.journal
            .write(now, id, || Decision::Refused { by, refusal });
        refusal
    }

    fn check(&mut self, now: Time, request: &Request) -> Result<(), Refusal> {
        let refusal = if self.draining {
            Refusal::Later {
                limit: Limit::Draining,
                retry_after: None,
            }
        } else if self.contains(request.id()) {
            Refusal::Never {
                limit: Limit::DuplicateId,
            }
        } else if request.deadline().is_some_and(|deadline| deadline <= now) {
            Refusal::Never {
                limit: Limit::Deadline {
                    predicted: Span::ZERO,
                    left: Span::ZERO,
                },
            }
        } else {
            return Ok(());
        };
        Err(self.refuse(now, request.id(), "gate", refusal))
    }

    /// What a request is expected to ask of the device.
    fn demand_of(&self, request: &Request) -> Demand {
        let (prompt, output) = (request.prompt_tokens(), request.output_tokens_max());
        Demand::of(prompt, output, self.block_size)
    }

    fn policies_and_load(&mut self, now: Time) -> (&mut [Box<dyn Admit>], Load<'_>) {
        let load = Load {
            now,
            waiting: self.queue.len() as u32,
            waiting_prompt_tokens: self.queue.demand().prompt_tokens,
            running: self.running(),
            slots: self.slots,
            joinable: self.joinable,
            pace: &self.pace,
            started: self.started.as_slice(),
            waiting_by_class: &self.by_class,
            behind: 0,
        };
        (&mut self.admit, load)
    }

    /// How many of those that wait would go after a request that comes now.
    fn behind(&self, now: Time, request: &Request) -> u32 {
        let lane = self.order.lane_on_arrival(request, now);
        lane.filter(|_| self.order.lanes() == Lanes::Numbered)
            .map_or(0, |lane| self.queue.len_after(lane))
    }

    fn enter(&mut self, now: Time, taken: Taken) {
        let demand = self.demand_of(&taken.request);
        let entry = Entry::new(taken, now, demand);
        self.order.arrived(&entry.view(), now);
        let rank = usize::from(entry.request.class().rank());
        if self.by_class.len() <= rank {
            self.by_class.resize(rank + 1, 0);
        }
        self.by_class[rank] += 1;
        self.queue.insert(entry, &mut *self.order, now);
    }

    fn remove(&mut self, now: Time, slot: usize, started: bool) -> Entry {
        let request = &self.queue.get(slot).request;
        self.by_class[usize::from(request.class().rank())] -= 1;
        let entry = self.queue.remove(slot);
        self.order.left(&entry.view(), started, now);
        entry
    }

    fn place_again(&mut self, now: Time, slot: usize) {
        let Some(place) = self.queue.place_again(slot, &mut *self.order, now) else {
            return;
        };
        let entry = self.queue.get(slot);
        let (id, waited) = (entry.request.id(), now.since(entry.since));
        self.journal.write(now, id, || Decision::Promoted {
            waited,
            lane: place.lane,
            key: place.key,
        });
    }
}
