//! From a request's id to its slot. Looked up, never iterated, so its order cannot leak into a
//! decision.

use hashbrown::HashTable;
use hashbrown::hash_table::Entry;
use serve_core::RequestId;
use serve_core::rng::mix;

/// A table of live requests.
#[derive(Debug, Default)]
pub(crate) struct IdTable {
    table: HashTable<(RequestId, u32)>,
}

impl IdTable {
    pub(crate) fn get(&self, id: RequestId) -> Option<usize> {
        let found = self.table.find(hash(id), |&(other, _)| other == id);
        found.map(|&(_, slot)| slot as usize)
    }

    /// Adds an id that is not in the table.
    pub(crate) fn insert(&mut self, id: RequestId, slot: usize) {
        let rehash = |&(other, _): &(RequestId, u32)| hash(other);
        self.table
            .insert_unique(hash(id), (id, slot as u32), rehash);
    }

    pub(crate) fn remove(&mut self, id: RequestId) -> Option<usize> {
        let entry = self.table.entry(
            hash(id),
            |&(other, _)| other == id,
            |&(other, _)| hash(other),
        );
        match entry {
            Entry::Occupied(entry) => Some(entry.remove().0.1 as usize),
            Entry::Vacant(_) => None,
        }
    }
}

fn hash(id: RequestId) -> u64 {
    mix(id.get())
}
