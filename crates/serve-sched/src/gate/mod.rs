//! Admission and the waiting queue: enough to stand in front of any engine, whether it is driven one
//! step or one request at a time.
//!
//! Inputs: [`Gate::submit`], [`Gate::take`], [`Gate::put_back`], [`Gate::put_back_until`],
//! [`Gate::ended`], [`Gate::cancel`], [`Gate::next_due`], [`Gate::next_displaced`]. Readings: [`Gate::head`], [`Gate::len`],
//! [`Gate::next_timeout`], [`Gate::load`]. The gate sends no events; who takes a request answers
//! for it.

/// What policies are shown, of a gate whose policies may be borrowed beside it.
macro_rules! load {
    ($gate:expr, $now:expr, $asked:expr) => {
        Load {
            now: $now,
            waiting: $gate.queue.len() as u32,
            running: $gate.started.len() as u32,
            slots: $gate.slots,
            joinable: $gate.joinable,
            pace: &$gate.pace,
            ahead: $asked.ahead,
            own: $asked.own,
            queued: $asked.queued,
            lengths: &*$gate.lengths,
            room: $gate.room,
            started: $gate.started.as_slice(),
            underway: *$gate.started.underway(),
            waiting_by_class: &$gate.by_class,
            refused: 0,
            block_size: $gate.block_size,
        }
    };
}

mod ask;
mod change;
mod entry;
mod figures;
mod lanes;
mod line;
mod queue;
mod started;
mod watch;

use std::collections::VecDeque;
use std::sync::Arc;

use serve_core::{CancelReason, Limit, Refusal, Request, RequestId, Span, Time};

use crate::admit::{Admit, Cause, Ended, Load, Room, Watch};
use crate::demand::Demand;
use crate::journal::{Decision, Journal};
use crate::lengths::{Expected, Lengths, SeenLengths, Unseen};
use crate::order::{Order, Place, Served, Waiting};
use crate::pace::{Capacity, Pace, Queued};
use entry::Entry;
use queue::{Due, Queue};
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
    /// How often each policy has said *later* since a request last ended.
    refused: Vec<u32>,
    block_size: u32,
    room: Room,
    lengths: Box<dyn Lengths>,
    /// Which admitted requests some policy may still give up.
    watch: Watch,
    started: Started,
    slots: u32,
    joinable: bool,
    sequence: u64,
    draining: bool,
    pace: Pace,
    journal: Journal,
    displaced: VecDeque<(Arc<Request>, Refusal)>,
    /// What may still be done of what is due, until somebody is told that nothing is.
    due_left: u32,
}

/// What is asked about a request that comes.
#[derive(Clone, Copy, Debug)]
struct Asked {
    ahead: Demand,
    own: Demand,
    queued: Queued,
}

/// A crowd that ages or expires at once is moved or answered in parts of so many, one part for each
/// plan: about a millisecond's work.
const DUE_MAX: u32 = 1_024;

/// A request that has left the queue to be served.
#[derive(Clone, Debug)]
pub struct Taken {
    /// The request.
    pub request: Arc<Request>,
    /// Its place in the order of arrival at the gate.
    pub sequence: u64,
    /// Since when it waited.
    pub since: Time,
    /// How often it has been preempted, or [put back](Gate::put_back) for another reason.
    pub preemptions: u32,
}

impl Gate {
    /// An empty gate in front of an engine that serves up to `slots` requests side by side.
    pub fn new(admit: Vec<Box<dyn Admit>>, order: Box<dyn Order>, slots: u32) -> Self {
        let queue = Queue::new(&*order);
        let watch = admit.iter().map(|policy| policy.watches()).max();
        let refused = vec![0; admit.len()];
        Self {
            admit,
            order,
            queue,
            by_class: Vec::new(),
            refused,
            block_size: 1,
            room: Room::default(),
            lengths: Box::new(SeenLengths::new()),
            watch: watch.unwrap_or_default(),
            started: Started::default(),
            slots,
            joinable: true,
            sequence: 0,
            draining: false,
            pace: Pace::default(),
            journal: Journal::default(),
            displaced: VecDeque::new(),
            due_left: DUE_MAX,
        }
    }

    /// Takes a request into the queue. O(log n) in the requests that wait.
    ///
    /// Where it is refused because the whole queue is full, and somebody waits who goes after it, has
    /// never started and is not [committed](Request::is_committed), it is taken and that one is
    /// [displaced](Self::next_displaced). Who goes last, the order says; of a fair one, it is the
    /// newest of the tenant that has most waiting for its share.
    ///
    /// # Errors
    ///
    /// A [`Refusal`] when the gate is draining, the id is waiting already, the deadline has passed,
    /// or an admission policy refuses. Nothing of the request is kept.
    pub fn submit(&mut self, now: Time, request: Arc<Request>) -> Result<(), Refusal> {
        self.check(now, &request)?;
        let (place, asked) = self.newcomer(now, &request);
        let mut full = None;
        for index in 0..self.admit.len() {
            if let Err((by, refusal)) = self.ask(index, now, &request, &asked) {
                let last = self.last_if_full(&place, refusal);
                let Some(last) = last else {
                    return Err(self.refuse(now, request.id(), by, refusal));
                };
                full = full.or(Some((last, refusal)));
            }
        }
        if let Some((last, refusal)) = full {
            self.displace(now, last, request.id(), refusal);
        }
        let (policies, load) = self.policies_and_load(now, &asked);
        let predicted = load.plain_wait();
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
        let predicted = (asked.queued, predicted.unwrap_or_default());
        let entry = self.begin_waiting(now, arrived, predicted);
        self.queue.insert(entry, &mut *self.order, now);
        let waiting = self.len();
        self.journal.write(now, id, || Decision::Admitted {
            class,
            tenant,
            waiting,
        });
        Ok(())
    }

    /// A request that was displaced by one that has been [submitted](Self::submit), and what its client
    /// is to be told. Call it after each submission until it returns `None`, and say of each that it has
    /// [ended](Self::ended).
    pub fn next_displaced(&mut self) -> Option<(Arc<Request>, Refusal)> {
        self.displaced.pop_front()
    }

    /// The request that is next; `None` while that is one whose time to wait is over, which is for
    /// [`next_due`](Self::next_due) to give out.
    pub fn head(&mut self, now: Time) -> Option<Waiting<'_>> {
        let slot = self.head_in_time(now)?;
        Some(self.queue.get(slot).view())
    }

    /// Takes the [`head`](Self::head) out of the queue; it is running from now on.
    pub fn take(&mut self, now: Time) -> Option<Taken> {
        let slot = self.head_in_time(now)?;
        let entry = self.remove(now, slot, true);
        self.waited(now, &entry);
        let (id, steps) = (entry.request.id(), self.pace.steps());
        self.started.push(now, id, steps, entry.demand);
        Some(Taken {
            request: entry.request,
            sequence: entry.sequence,
            since: entry.since,
            preemptions: entry.preemptions,
        })
    }

    /// Lets a running request wait again, in the place that it had, ahead of all that arrived after
    /// it and rank the same. It has been admitted, so no admission policy is asked. It counts as a
    /// preemption: what `taken` says of those is how often it had been before.
    pub fn put_back(&mut self, now: Time, taken: Taken) {
        let entry = self.wait_again(now, taken);
        self.queue.insert(entry, &mut *self.order, now);
    }

    /// Like [`put_back`](Self::put_back), but it is not next before `until`. It waits all the while:
    /// its deadline holds, it can be cancelled, and admission counts it.
    pub fn put_back_until(&mut self, now: Time, taken: Taken, until: Time) {
        let entry = self.wait_again(now, taken);
        match until > now {
            true => self.queue.insert_held(entry, until),
            false => self.queue.insert(entry, &mut *self.order, now),
        }
    }

    /// An admitted request has ended, however it did. To be said once of each, whether it ran, was
    /// [cancelled](Self::cancel) or [expired](Self::next_due) while it waited.
    pub fn ended(&mut self, now: Time, ended: &Ended<'_>) {
        if let Some(ran) = ended.ran {
            self.started.remove(ended.request.id(), Some(now - ran));
            self.order.ended(ended.request);
        }
        let request = ended.request;
        let by_itself = ended.cause == Cause::Finished;
        if ended.ran.is_some() {
            let tokens = ended.usage.output_tokens;
            self.lengths.ended(request, tokens, by_itself);
        }
        // Under a fair order a preempted request has waited again for its tenant's turn, which says nothing of others.
        let tells = by_itself && (ended.usage.preemptions == 0 || !self.queue.is_fair());
        if let Some(ran) = ended.ran.filter(|_| tells) {
            let (prompt, output) = (request.prompt_tokens(), ended.usage.output_tokens);
            let capacity = Capacity {
                slots: self.slots,
                blocks: self.room.blocks,
                step_tokens: self.room.step_tokens,
            };
            self.pace
                .served(ran, prompt.into(), output.into(), &capacity);
        }
        // A place that is given up is given on.
        if ended.cause != Cause::Displaced {
            self.refused.fill(0);
        }
        let asked = Asked {
            ahead: self.queue.demand(),
            own: Demand::default(),
            queued: Queued::default(),
        };
        let (policies, load) = self.policies_and_load(now, &asked);
        for policy in policies {
            policy.ended(ended, &load);
        }
    }

    /// Takes a request out of the queue because it was cancelled. `None` if it does not wait here.
    /// The caller that takes it out says that it has [ended](Self::ended).
    pub fn cancel(&mut self, now: Time, id: RequestId) -> Option<Arc<Request>> {
        let slot = self.queue.find(id)?;
        Some(self.remove(now, slot, false).request)
    }

    /// Moves requests whose place has changed by `now`, and gives out one whose deadline has passed,
    /// or that was to have started by now, with which of the two it is. Call it until it returns
    /// `None`.
    ///
    /// It does so after 1,024 requests at the latest, so that a crowd that ages or expires at once is
    /// bounded work for the caller. The others are due until the next calls;
    /// [`next_timeout`](Self::next_timeout) says so. Nobody whose time is over [starts](Self::take)
    /// meanwhile; a request that has aged and is not moved yet stands where it stood.
    pub fn next_due(&mut self, now: Time) -> Option<(Arc<Request>, CancelReason)> {
        while let Some(due) = self.queue.due(now).filter(|_| self.due_left > 0) {
            self.due_left -= 1;
            match due {
                Due::Expired(slot) => {
                    let entry = self.remove(now, slot, false);
                    // It would have waited at least so long.
                    self.waited(now, &entry);
                    let request = entry.request;
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
        self.due_left = DUE_MAX;
        None
    }

    /// Takes nothing in from now on.
    pub fn drain(&mut self) {
        self.draining = true;
    }

    /// Tells the order policy what a running request was given.
    pub fn served(&mut self, request: &Request, served: Served) {
        self.order.served(request, served);
    }

    /// What admission policies are shown, as if by a request that goes after all that wait.
    pub fn load(&self, now: Time) -> Load<'_> {
        let nobody = Asked {
            ahead: self.queue.demand(),
            own: Demand::default(),
            queued: Queued::default(),
        };
        load!(self, now, nobody)
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

    /// What a request is expected to occupy.
    fn demand_of(&self, request: &Request, unseen: Unseen) -> Demand {
        let expected = self.lengths.expected(request, unseen);
        let output = Expected {
            tokens: expected.tokens.clamp(1, request.output_tokens_max()),
            ..expected
        };
        Demand::of(request.prompt_tokens(), output, self.block_size)
    }

    /// A request has started, or expired, after it was predicted to wait for some time.
    fn waited(&mut self, now: Time, entry: &Entry) {
        let (queued, predicted) = entry.predicted;
        if !predicted.is_zero() {
            self.pace.waited(queued, predicted, now.since(entry.since));
        }
    }

    fn policies_and_load(&mut self, now: Time, asked: &Asked) -> (&mut [Box<dyn Admit>], Load<'_>) {
        let load = load!(self, now, asked);
        (&mut self.admit, load)
    }

    /// Who gives its place up to a newcomer that is refused because the whole queue is full.
    fn last_if_full(&self, place: &Place, refusal: Refusal) -> Option<usize> {
        let full = matches!(refusal.limit(), Limit::QueueDepth { .. });
        full.then(|| self.queue.last(&place.path, &*self.order))
            .flatten()
    }

    fn displace(&mut self, now: Time, slot: usize, by: RequestId, refusal: Refusal) {
        let request = self.remove(now, slot, false).request;
        self.journal
            .write(now, request.id(), || Decision::Displaced { by, refusal });
        self.displaced.push_back((request, refusal));
    }

    fn head_in_time(&mut self, now: Time) -> Option<usize> {
        let slot = self.queue.head(&*self.order, now)?;
        (!self.queue.get(slot).is_overdue(now)).then_some(slot)
    }

    fn wait_again(&mut self, now: Time, mut taken: Taken) -> Entry {
        taken.preemptions = taken.preemptions.saturating_add(1);
        self.started.remove(taken.request.id(), None);
        self.begin_waiting(now, taken, (Queued::default(), Span::ZERO))
    }

    /// Counts a request among those that wait. It is for the caller to put it into the queue.
    fn begin_waiting(&mut self, now: Time, taken: Taken, predicted: (Queued, Span)) -> Entry {
        let demand = self.demand_of(&taken.request, Unseen::Long);
        let entry = Entry::new(taken, now, demand, predicted);
        self.order.arrived(&entry.view(), now);
        let rank = usize::from(entry.request.class().rank());
        if self.by_class.len() <= rank {
            self.by_class.resize(rank + 1, 0);
        }
        self.by_class[rank] += 1;
        entry
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
            lane: place.path.lanes().first().copied().unwrap_or(0),
            key: place.key,
        });
    }
}
