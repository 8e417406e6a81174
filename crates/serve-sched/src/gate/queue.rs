//! The waiting requests, sorted as the order policy says. Every operation is O(log n).
//!
//! It holds the requests, finds them by id, knows when something is due, and lists them by the time at
//! which they began to wait. Which one is next, the [`Tree`] of lanes says.

use std::collections::BTreeMap;

use serve_core::{RequestId, Time};
use slab::Slab;

use super::entry::Entry;
use super::lanes::{Item, Tree};
use crate::demand::Demand;
use crate::ids::IdTable;
use crate::order::{Order, Path, Place, Waiting};

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
    ids: IdTable,
    links: Vec<Link>,
    tree: Tree,
    timers: BTreeMap<(Time, bool, u64), usize>,
    oldest: u32,
    newest: u32,
}

const NONE: u32 = u32::MAX;

impl Queue {
    pub(super) fn new(order: &dyn Order) -> Self {
        Self {
            entries: Slab::new(),
            ids: IdTable::default(),
            links: Vec::new(),
            tree: Tree::new(order.levels()),
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
        self.tree.demand()
    }

    /// What of it goes before a newcomer at `path`. O(levels), but O(lanes) where lanes go by number.
    pub(super) fn ahead(&self, path: &Path, order: &mut dyn Order) -> Demand {
        self.tree.ahead(path, order)
    }

    /// Whether turns are kept between tenants or groups of them.
    pub(super) fn is_fair(&self) -> bool {
        self.tree.is_fair()
    }

    /// The lane of `path` at the outermost level that is fair; 0 if none is.
    pub(super) fn group(&self, path: &Path) -> u32 {
        self.tree.group(path)
    }

    /// Who goes last of those who may be displaced, unless a newcomer at `path` goes after them.
    pub(super) fn last(&self, path: &Path, order: &dyn Order) -> Option<usize> {
        self.tree.last(path, order)
    }

    /// Whether no place depends on what the engine does.
    pub(super) fn is_stable(&self) -> bool {
        self.tree.is_numbered()
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

    /// All of them, the one that has waited longest first.
    pub(super) fn oldest_first(&self) -> impl Iterator<Item = Waiting<'_>> {
        let there = |slot: u32| (slot != NONE).then_some(slot);
        let next = move |&slot: &u32| there(self.links[slot as usize].after);
        let slots = std::iter::successors(there(self.oldest), next);
        slots.map(|slot| self.entries[slot as usize].view())
    }

    /// Since when the longest-waiting request waits.
    pub(super) fn oldest_since(&self) -> Option<Time> {
        self.oldest().map(|entry| entry.since)
    }

    pub(super) fn insert(&mut self, entry: Entry, order: &mut dyn Order, now: Time) {
        let slot = self.insert_apart(entry);
        let place = order.place(&self.entries[slot].view(), now);
        self.enter(slot, place, order);
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
        let held = self.entries[slot].held;
        let before = (!held).then(|| self.stands(slot));
        let mut place = order.place(&self.entries[slot].view(), now);
        // A policy that asks for a time that is not in the future would be asked for ever.
        place.again = place.again.filter(|&again| again > now);
        self.leave(slot);
        self.enter(slot, place, order);
        before
            .is_some_and(|before| self.stands(slot) != before)
            .then_some(place)
    }

    /// Asks the policy again where each request stands, and has its lanes count anew: their shares may be
    /// others. O(n log n).
    pub(super) fn place_all_again(&mut self, order: &mut dyn Order, now: Time) {
        let slots: Vec<usize> = self.entries.iter().map(|(slot, _)| slot).collect();
        let standing = slots.into_iter().filter(|&slot| !self.entries[slot].held);
        let mut standing: Vec<usize> = standing.collect();
        standing.sort_by_key(|&slot| self.entries[slot].sequence);
        for &slot in &standing {
            self.leave(slot);
        }
        for slot in standing {
            let mut place = order.place(&self.entries[slot].view(), now);
            place.again = place.again.filter(|&again| again > now);
            self.enter(slot, place, order);
        }
    }

    /// The request that is next.
    pub(super) fn head(&mut self, order: &dyn Order, now: Time) -> Option<usize> {
        self.tree.first(&self.entries, order, now)
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

    /// Where a request stands: its lanes, and its key in the innermost one.
    fn stands(&self, slot: usize) -> (Path, u64) {
        let entry = &self.entries[slot];
        (self.tree.path(entry.leaf), entry.key)
    }

    fn enter(&mut self, slot: usize, place: Place, order: &dyn Order) {
        let entry = &mut self.entries[slot];
        (entry.key, entry.held) = (place.key, false);
        entry.again = place.again.unwrap_or(Time::MAX);
        if entry.again < Time::MAX {
            let timer = (entry.again, false, entry.sequence);
            self.timers.insert(timer, slot);
        }
        let item = Item {
            slot,
            key: place.key,
            sequence: entry.sequence,
            demand: entry.demand,
            displaceable: entry.is_displaceable(),
        };
        entry.leaf = self.tree.insert(&item, &place.path, order);
    }

    fn leave(&mut self, slot: usize) {
        let entry = &self.entries[slot];
        if entry.again < Time::MAX {
            self.timers.remove(&(entry.again, false, entry.sequence));
        }
        if entry.held {
            return;
        }
        let displaceable = entry.is_displaceable();
        self.tree
            .remove(slot, entry.leaf, entry.demand, displaceable);
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
