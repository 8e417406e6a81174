//! Names of tenants as ids, in bounded memory: what a service needs that knows its tenants by a string.

use std::collections::{BTreeMap, BTreeSet};
use std::num::NonZeroU32;
use std::sync::Arc;

use serve_core::TenantId;
use thiserror::Error;

/// Gives an id to each name that comes, and remembers a bounded number of them.
///
/// A name keeps its id while requests of it are in flight, and after that until the place is needed for
/// another: who was used least recently is forgotten first. A name that comes back then is somebody new. An
/// id that was forgotten is given to nobody else until all other ids have been, so that what a policy still
/// knows of the one is not taken for the other's. The same calls give the same ids. O(log capacity).
///
/// ```
/// use std::num::NonZeroU32;
///
/// use serve_sched::TenantIds;
/// use serve_sched::serve_core::TenantId;
///
/// let mut tenants = TenantIds::new(TenantId::new(1), NonZeroU32::new(1_000).unwrap());
/// let acme = tenants.begin("acme")?;
/// assert_eq!(tenants.begin("acme")?, acme, "two requests of one tenant");
/// assert_ne!(tenants.begin("globex")?, acme);
/// tenants.end(acme); // once for each request
/// # Ok::<(), serve_sched::TenantsFull>(())
/// ```
#[derive(Clone, Debug)]
pub struct TenantIds {
    first: u32,
    next: u32,
    capacity: u32,
    /// Counts calls.
    clock: u64,
    ids: BTreeMap<Arc<str>, u32>,
    known: BTreeMap<u32, Known>,
    /// Those with nothing in flight, by when they were last used.
    idle: BTreeSet<(u64, u32)>,
}

#[derive(Clone, Debug)]
struct Known {
    name: Arc<str>,
    in_flight: u32,
    used: u64,
}

/// Every tenant that is remembered has a request in flight, and there is no place for another.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
#[error("{capacity} tenants have requests in flight, and no more are told apart; try again later")]
pub struct TenantsFull {
    /// How many are remembered at most.
    pub capacity: u32,
}

impl TenantIds {
    /// Remembers `capacity` names at most, with ids from `first` up: below it are those that the service
    /// gives itself, such as the ones that its settings name.
    pub const fn new(first: TenantId, capacity: NonZeroU32) -> Self {
        Self {
            first: first.get(),
            next: first.get(),
            capacity: capacity.get(),
            clock: 0,
            ids: BTreeMap::new(),
            known: BTreeMap::new(),
            idle: BTreeSet::new(),
        }
    }

    /// A request of this tenant begins: its id, which is no one else's until the request has
    /// [ended](Self::end).
    ///
    /// # Errors
    ///
    /// [`TenantsFull`] for a name that is not remembered, where nobody can be forgotten.
    pub fn begin(&mut self, name: &str) -> Result<TenantId, TenantsFull> {
        let id = match self.ids.get(name) {
            Some(&id) => id,
            None => self.remember(name)?,
        };
        self.clock += 1;
        if let Some(known) = self.known.get_mut(&id) {
            self.idle.remove(&(known.used, id));
            known.in_flight = known.in_flight.saturating_add(1);
            known.used = self.clock;
        }
        Ok(TenantId::new(id))
    }

    /// A request of this tenant has ended, was refused or cancelled: said once for each that
    /// [began](Self::begin).
    pub fn end(&mut self, id: TenantId) {
        self.clock += 1;
        if let Some(known) = self.known.get_mut(&id.get()) {
            self.idle.remove(&(known.used, id.get()));
            known.in_flight = known.in_flight.saturating_sub(1);
            known.used = self.clock;
            if known.in_flight == 0 {
                self.idle.insert((known.used, id.get()));
            }
        }
    }

    /// The name behind an id, while it is remembered.
    pub fn name(&self, id: TenantId) -> Option<&str> {
        self.known.get(&id.get()).map(|known| &*known.name)
    }

    /// How many names are remembered.
    pub fn len(&self) -> usize {
        self.known.len()
    }

    /// Whether none is.
    pub fn is_empty(&self) -> bool {
        self.known.is_empty()
    }

    fn remember(&mut self, name: &str) -> Result<u32, TenantsFull> {
        let capacity = self.capacity;
        if self.known.len() as u64 >= u64::from(capacity) {
            let (_, least) = self.idle.pop_first().ok_or(TenantsFull { capacity })?;
            if let Some(known) = self.known.remove(&least) {
                self.ids.remove(&known.name);
            }
        }
        let id = self.free().ok_or(TenantsFull { capacity })?;
        let name: Arc<str> = Arc::from(name);
        self.ids.insert(Arc::clone(&name), id);
        let known = Known {
            name,
            in_flight: 0,
            used: self.clock,
        };
        self.known.insert(id, known);
        Ok(id)
    }

    /// The next id that nobody has; `None` if all are taken.
    fn free(&mut self) -> Option<u32> {
        let ids = u64::from(u32::MAX - self.first) + 1;
        if self.known.len() as u64 >= ids {
            return None;
        }
        loop {
            let id = self.next;
            self.next = id.checked_add(1).unwrap_or(self.first);
            if !self.known.contains_key(&id) {
                return Some(id);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn of(first: u32, capacity: u32) -> TenantIds {
        TenantIds::new(TenantId::new(first), NonZeroU32::new(capacity).unwrap())
    }

    #[test]
    fn who_was_used_least_recently_is_forgotten_and_nobody_with_a_request() {
        let mut tenants = of(1, 2);
        let (a, b) = (tenants.begin("a").unwrap(), tenants.begin("b").unwrap());
        assert_eq!(tenants.begin("c"), Err(TenantsFull { capacity: 2 }));
        tenants.end(b);
        tenants.end(a);
        let c = tenants.begin("c").unwrap();
        assert_eq!((tenants.name(b), tenants.name(a)), (None, Some("a")));
        assert!(![a, b].contains(&c), "an id of somebody who was forgotten");
        assert_eq!(tenants.begin("a"), Ok(a));
    }

    #[test]
    fn ids_go_round_and_pass_those_that_are_taken() {
        let mut tenants = of(u32::MAX - 2, 5);
        let last = u32::MAX;
        let ids: Vec<u32> = ["a", "b", "c"]
            .iter()
            .map(|name| tenants.begin(name).unwrap().get())
            .collect();
        assert_eq!(ids, [last - 2, last - 1, last]);
        assert!(
            tenants.begin("d").is_err(),
            "no id is left, whatever the capacity"
        );
        let mut tenants = of(u32::MAX - 2, 2);
        for turn in 0..20 {
            let held = tenants.begin("held").unwrap();
            let other = tenants.begin(&format!("other {turn}")).unwrap();
            assert_eq!(held.get(), last - 2);
            assert_ne!(other, held);
            tenants.end(other);
        }
    }

    proptest! {
        /// Beside a table of what is in flight: one id is one name, a name in flight has one id, and no more
        /// are remembered than may be.
        #[test]
        fn an_id_is_one_name_while_somebody_has_it(
            capacity in 1..6_u32,
            calls in prop::collection::vec((any::<bool>(), 0..9_usize), 0..200),
        ) {
            let (mut tenants, mut again) = (of(1, capacity), of(1, capacity));
            let mut in_flight: Vec<(String, TenantId)> = Vec::new();
            for (begins, which) in calls {
                if begins {
                    let name = format!("tenant {which}");
                    let begun = tenants.begin(&name);
                    prop_assert_eq!(begun, again.begin(&name));
                    let names: BTreeSet<&str> = in_flight.iter().map(|(name, _)| &**name).collect();
                    let full = names.len() as u32 == capacity && !names.contains(&*name);
                    prop_assert_eq!(begun.is_err(), full);
                    in_flight.extend(begun.ok().map(|id| (name, id)));
                } else if !in_flight.is_empty() {
                    let (_, id) = in_flight.remove(which % in_flight.len());
                    tenants.end(id);
                    again.end(id);
                }
                for (name, id) in &in_flight {
                    prop_assert_eq!(tenants.name(*id), Some(&**name));
                    let same = |other: &&(String, TenantId)| (other.0 == *name) == (other.1 == *id);
                    prop_assert!(in_flight.iter().all(|other| same(&other)));
                }
                prop_assert!(tenants.len() as u32 <= capacity);
            }
        }
    }
}
