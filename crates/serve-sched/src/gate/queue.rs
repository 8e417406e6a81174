//! The waiting requests, sorted as the order policy says. Every operation is O(log n).
//!
//! Each lane is a heap by (key, arrival). Where lanes do not simply go by number, a small index over
//! the lanes says which one is next.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use serve_core::{Request, RequestId, Time};
use slab::Slab;

use super::Taken;
use super::line::{Line, Positions};
use crate::demand::Demand;
use crate::ids::IdTable;
use crate::order::{Lanes, Order, Place, Waiting};

/// A request that waits.
#[derive(Clone, Debug)]
pub(super) struct Entry {
    pub(super) request: Arc<Request>,
    pub(super) sequence: u64,
    pub(super) since: Time,
    pub(super) preemptions: u32,
    /// What it asks of the device, as expected when it began to wait.
    pub(super) demand: Demand,
    lane: u32,
    key: u64,
    /// When to ask for its place again; never is [`Time::MAX`].
    again: Time,
    /// Stands in no lane before then.
    held: bool,
}

/// Neighbours in the list by the time at which waiting began. Kept apart from the entries, in a
/// table that is small enough for the cache.
#[derive(Clone, Copy, Debug)]
struct Link {
    before: u32,
    after: u32,
}

/// Something that is due for a waiting request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Due {
    /// Its place may have changed.
    Place(usize),
    /// Its time to wait is over.
    Expired(usize),
}

#[derive(Debug)]
pub(super) struct Queue {
    entries: Slab<Entry>,
    demand: Demand,
    ids: IdTable,
    positions: Positions,
    links: Vec<Link>,
    compare: Lanes,
    lanes: BTreeMap<u32, Lane>,
    lanes_by_key: BTreeSet<(u64, u32)>,
    timers: BTreeMap<(Time, bool, u64), usize>,
    oldest: u32,
    newest: u32,
}

#[derive(Debug, Default)]
struct Lane {
    line: Line,
    key: u64,
}

const NONE: u32 = u32::MAX;

impl Entry {
    /// `taken`, which waits from `since` on.
    pub(super) fn new(taken: Taken, since: Time, demand: Demand) -> Self {
        Self {
            request: taken.request,
            sequence: taken.sequence,
            since,
            preemptions: taken.preemptions,
            demand,
            lane: 0,
            key: 0,
            again: Time::MAX,
            held: false,
        }
    }

    /// When it is of no use any more to wait.
    fn expires(&self) -> Option<Time> {
        let start_by = self.request.start_by();
        let start_by = start_by.filter(|_| self.preemptions == 0);
        [self.request.deadline(), start_by]
            .into_iter()
            .flatten()
            .min()
    }

    pub(super) fn view(&self) -> Waiting<'_> {
        Waiting {
            request: &self.request,
            sequence: self.sequence,
            since: self.since,
            preemptions: self.preemptions,
        }
    }
}

impl Queue {
    pub(super) fn new(compare: Lanes) -> Self {
        Self {
            entries: Slab::new(),
            demand: Demand::default(),
            ids: IdTable::default(),
            positions: Positions::new(),
            links: Vec::new(),
            compare,
            lanes: BTreeMap::new(),
            lanes_by_key: BTreeSet::new(),
            timers: BTreeMap::new(),
            oldest: NONE,
            newest: NONE,
        }
    }

    pub(super) fn len(&self) -> usize {
        self.entries.len()
    }

    /// What all that wait ask of the device.
    pub(super) fn demand(&self) -> Demand {
        self.demand
    }

    pub(super) fn find(&self, id: RequestId) -> Option<usize> {
        self.ids.get(id)
    }

    pub(super) fn get(&self, slot: usize) -> &Entry {
        &self.entries[slot]
    }

    /// The one that has waited longest.
    pub(super) fn oldest(&self) -> Option<&Entry> {
        self.entries.get(self.oldest as usize)
    }

    /// Since when the longest-waiting request waits.
    pub(super) fn oldest_since(&self) -> Option<Time> {
        self.oldest().map(|entry| entry.since)
    }

    pub(super) fn insert(&mut self, entry: Entry, order: &mut dyn Order, now: Time) {
        let slot = self.insert_apart(entry);
        let place = order.place(&self.entries[slot].view(), now);
        self.enter(slot, place, order, now);
    }

    /// Like [`insert`](Self::insert), but it is not next before `until`.
    pub(super) fn insert_held(&mut self, entry: Entry, until: Time) {
        let sequence = entry.sequence;
        let slot = self.insert_apart(entry);
        let entry = &mut self.entries[slot];
        (entry.held, entry.again) = (true, until);
        if until < Time::MAX {
            self.timers.insert((until, false, sequence), slot);
        }
    }

    /// Everything but a place in a lane.
    fn insert_apart(&mut self, entry: Entry) -> usize {
        let (id, expires, sequence) = (entry.request.id(), entry.expires(), entry.sequence);
        self.demand += entry.demand;
        let slot = self.entries.insert(entry);
        self.ids.insert(id, slot);
        if let Some(expires) = expires {
            self.timers.insert((expires, true, sequence), slot);
        }
        self.link_newest(slot);
        slot
    }

    pub(super) fn remove(&mut self, slot: usize) -> Entry {
        self.unlink(slot);
        self.leave(slot);
        let entry = self.entries.remove(slot);
        self.demand -= entry.demand;
        self.ids.remove(entry.request.id());
        if let Some(expires) = entry.expires() {
            self.timers.remove(&(expires, true, entry.sequence));
        }
        entry
    }

    /// Asks the policy again where a request stands. Returns the place if it is another one; one that
    /// was held has had none.
    pub(super) fn place_again(
        &mut self,
        slot: usize,
        order: &mut dyn Order,
        now: Time,
    ) -> Option<Place> {
        let before = (self.entries[slot].lane, self.entries[slot].key);
        let was_held = self.entries[slot].held;
        let mut place = order.place(&self.entries[slot].view(), now);
        // A policy that asks for a time that is not in the future would be asked for ever.
        place.again = place.again.filter(|&again| again > now);
        self.leave(slot);
        self.enter(slot, place, order, now);
        (!was_held && (place.lane, place.key) != before).then_some(place)
    }

    /// The request that is next.
    pub(super) fn head(&mut self, order: &dyn Order, now: Time) -> Option<usize> {
        match self.compare {
            Lanes::Numbered => self.lanes.first_key_value()?.1.line.first(),
            Lanes::Rising => self.head_of_rising(order, now),
            Lanes::Scanned => self.head_of_scanned(order, now),
        }
    }

    /// How many wait in lanes that go after `lane`, where lanes go by number. O(lanes).
    pub(super) fn len_after(&self, lane: u32) -> u32 {
        let after = self.lanes.iter().rev();
        let after = after.take_while(|&(&other, _)| other > lane);
        after.map(|(_, entry)| entry.line.len() as u32).sum()
    }

    /// What is due at `now`, one thing at a time; places before expiries.
    pub(super) fn due(&self, now: Time) -> Option<Due> {
        let (&(at, is_expiry, _), &slot) = self.timers.first_key_value()?;
        (at <= now).then_some(if is_expiry {
            Due::Expired(slot)
        } else {
            Due::Place(slot)
        })
    }

    pub(super) fn next_timeout(&self) -> Option<Time> {
        self.timers.first_key_value().map(|(&(at, ..), _)| at)
    }

    /// A lane that was the lowest when it was entered may have risen since; it is put where it
    /// belongs, and the next one is looked at.
    fn head_of_rising(&mut self, order: &dyn Order, now: Time) -> Option<usize> {
        loop {
            let &(key, lane) = self.lanes_by_key.first()?;
            let slot = self.lanes.get(&lane)?.line.first()?;
            let risen = order.lane_key(lane, &self.entries[slot].view(), now);
            if risen <= key {
                return Some(slot);
            }
            self.lanes_by_key.remove(&(key, lane));
            self.lanes_by_key.insert((risen, lane));
            if let Some(entry) = self.lanes.get_mut(&lane) {
                entry.key = risen;
            }
        }
    }

    fn head_of_scanned(&self, order: &dyn Order, now: Time) -> Option<usize> {
        let heads = self.lanes.iter().filter_map(|(&lane, entry)| {
            let slot = entry.line.first()?;
            let key = order.lane_key(lane, &self.entries[slot].view(), now);
            Some((key, lane, slot))
        });
        heads.min().map(|(_, _, slot)| slot)
    }

    fn enter(&mut self, slot: usize, place: Place, order: &dyn Order, now: Time) {
        let entry = &mut self.entries[slot];
        let sequence = entry.sequence;
        (entry.lane, entry.key, entry.held) = (place.lane, place.key, false);
        entry.again = place.again.unwrap_or(Time::MAX);
        if entry.again < Time::MAX {
            self.timers.insert((entry.again, false, sequence), slot);
        }
        let lane = self.lanes.entry(place.lane).or_default();
        if self.compare == Lanes::Rising && lane.line.is_empty() {
            lane.key = order.lane_key(place.lane, &self.entries[slot].view(), now);
            self.lanes_by_key.insert((lane.key, place.lane));
        }
        let positions = &mut self.positions;
        lane.line.insert(slot, place.key, sequence, positions);
    }

    fn leave(&mut self, slot: usize) {
        let entry = &self.entries[slot];
        if entry.again < Time::MAX {
            self.timers.remove(&(entry.again, false, entry.sequence));
        }
        if entry.held {
            return;
        }
        if let Some(lane) = self.lanes.get_mut(&entry.lane) {
            lane.line.remove(slot, &mut self.positions);
            if lane.line.is_empty() {
                self.lanes_by_key.remove(&(lane.key, entry.lane));
                self.lanes.remove(&entry.lane);
            }
        }
    }

    fn link_newest(&mut self, slot: usize) {
        let link = Link {
            before: self.newest,
            after: NONE,
        };
        match self.links.get_mut(slot) {
            Some(place) => *place = link,
            None => self.links.push(link),
        }
        match self.newest {
            NONE => self.oldest = slot as u32,
            newest => self.links[newest as usize].after = slot as u32,
        }
        self.newest = slot as u32;
    }

    fn unlink(&mut self, slot: usize) {
        let Link { before, after } = self.links[slot];
        match before {
            NONE => self.oldest = after,
            before => self.links[before as usize].after = after,
        }
        match after {
            NONE => self.newest = before,
            after => self.links[after as usize].before = before,
        }
    }
}
