//! What a gate shows of itself, and what it is to know of the engine behind it.

use serve_core::{Class, Request, RequestId, Time};

use super::Gate;
use crate::admit::Admit;
use crate::demand::Demand;
use crate::journal::{Journal, Sink};
use crate::lengths::Lengths;
use crate::order::{Order, Waiting};
use crate::pace::Pace;

impl Gate {
    /// When [`next_due`](Self::next_due) has something to do.
    pub fn next_timeout(&self) -> Option<Time> {
        self.queue.next_timeout()
    }

    /// Whether nothing is taken in any more.
    pub fn is_draining(&self) -> bool {
        self.draining
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

    /// The policies.
    pub(crate) fn policies(&self) -> (&[Box<dyn Admit>], &dyn Order) {
        (&self.admit, &*self.order)
    }

    /// Since when the longest-waiting request waits.
    pub fn oldest_since(&self) -> Option<Time> {
        self.queue.oldest_since()
    }

    /// What of the demand that waits goes before `request` if it comes now, under the order: all in
    /// its own lane and in those that go before it. Among tenants that compete, those others count with
    /// what they are given until its own tenant's turn has come.
    pub fn ahead(&mut self, now: Time, request: &Request) -> Demand {
        let place = self.place_of_newcomer(now, request);
        self.queue.ahead(&place.path, &mut *self.order)
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

    /// In blocks of how many positions the engine keeps its KV cache; to be set before the first request.
    pub fn set_block_size(&mut self, block_size: u32) {
        self.block_size = block_size;
    }

    /// Has the lengths of answers predicted by `lengths`.
    pub fn set_lengths(&mut self, lengths: Box<dyn Lengths>) {
        self.lengths = lengths;
    }

    /// How fast the engine has been, to be told of work done.
    pub fn pace_mut(&mut self) -> &mut Pace {
        &mut self.pace
    }

    /// Forgets what was measured: it was no sample of what is to come.
    pub(crate) fn forget_pace(&mut self) {
        self.pace = Pace::default();
        self.lengths.forget();
    }

    /// Sends the gate's decisions to `sink`, or nowhere.
    pub fn set_journal(&mut self, sink: Option<Box<dyn Sink>>) {
        self.journal.set(sink);
    }

    /// The order policy's name.
    pub fn order_name(&self) -> &str {
        self.order.name()
    }

    pub(crate) fn journal(&mut self) -> &mut Journal {
        &mut self.journal
    }

    /// Whether the head can change without an arrival, a start or a timeout.
    pub(crate) fn head_is_stable(&self) -> bool {
        self.queue.is_stable()
    }

    /// The next request in the order, whether or not its time to wait is over; if all are held, the one
    /// that has waited longest.
    pub(crate) fn next_id(&mut self, now: Time) -> Option<RequestId> {
        let slot = self.queue.head(&*self.order, now);
        let next = slot.map(|slot| self.queue.get(slot));
        let next = next.or_else(|| self.queue.oldest());
        next.map(|entry| entry.request.id())
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
}
