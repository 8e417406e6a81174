//! A bounded table by 64-bit keys that forgets what was used least recently. Looked up, never iterated, so its order cannot
//! leak into a decision.

use hashbrown::HashTable;
use serve_core::rng::mix;

const NONE: u32 = u32::MAX;

/// A table of `capacity` entries at most; every operation is O(1).
#[derive(Debug)]
pub(in crate::route) struct Lru<V> {
    capacity: u32,
    nodes: Vec<Node<V>>,
    table: HashTable<u32>,
    free: Vec<u32>,
    oldest: u32,
    newest: u32,
}

#[derive(Debug)]
struct Node<V> {
    key: u64,
    value: V,
    older: u32,
    newer: u32,
}

impl<V> Lru<V> {
    /// An empty table that takes no memory yet. One of no capacity keeps nothing.
    pub(in crate::route) fn new(capacity: u32) -> Self {
        Self {
            capacity: capacity.min(NONE - 1),
            nodes: Vec::new(),
            table: HashTable::new(),
            free: Vec::new(),
            oldest: NONE,
            newest: NONE,
        }
    }

    /// Entries that it has room for.
    pub(in crate::route) fn capacity(&self) -> u32 {
        self.capacity
    }

    /// The value of a key, which does not count as a use.
    pub(in crate::route) fn get(&self, key: u64) -> Option<&V> {
        let index = self.find(key)?;
        Some(&self.nodes[index as usize].value)
    }

    /// Keeps a value, as the one used last.
    pub(in crate::route) fn put(&mut self, key: u64, value: V) {
        if let Some(index) = self.find(key) {
            self.unlink(index);
            self.nodes[index as usize].value = value;
            self.link(index);
            return;
        }
        if self.capacity == 0 {
            return;
        }
        if self.table.len() as u32 >= self.capacity {
            self.remove(self.nodes[self.oldest as usize].key);
        }
        let node = Node {
            key,
            value,
            older: NONE,
            newer: NONE,
        };
        let index = match self.free.pop() {
            Some(index) => {
                self.nodes[index as usize] = node;
                index
            }
            None => {
                self.nodes.push(node);
                self.nodes.len() as u32 - 1
            }
        };
        self.link(index);
        let nodes = &self.nodes;
        let rehash = |&index: &u32| mix(nodes[index as usize].key);
        self.table.insert_unique(mix(key), index, rehash);
    }

    /// Forgets a key.
    pub(in crate::route) fn remove(&mut self, key: u64) {
        let nodes = &self.nodes;
        let found = self
            .table
            .find_entry(mix(key), |&index| nodes[index as usize].key == key);
        if let Ok(entry) = found {
            let index = entry.remove().0;
            self.unlink(index);
            self.free.push(index);
        }
    }

    /// Forgets everything.
    pub(in crate::route) fn clear(&mut self) {
        *self = Self::new(self.capacity);
    }

    fn find(&self, key: u64) -> Option<u32> {
        let same = |&index: &u32| self.nodes[index as usize].key == key;
        self.table.find(mix(key), same).copied()
    }

    fn unlink(&mut self, index: u32) {
        let (older, newer) = {
            let node = &self.nodes[index as usize];
            (node.older, node.newer)
        };
        match older {
            NONE => self.oldest = newer,
            older => self.nodes[older as usize].newer = newer,
        }
        match newer {
            NONE => self.newest = older,
            newer => self.nodes[newer as usize].older = older,
        }
    }

    fn link(&mut self, index: u32) {
        let before = self.newest;
        let node = &mut self.nodes[index as usize];
        (node.older, node.newer) = (before, NONE);
        match before {
            NONE => self.oldest = index,
            before => self.nodes[before as usize].newer = index,
        }
        self.newest = index;
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn no_capacity_keeps_nothing() {
        let mut none = Lru::new(0);
        none.put(1, ());
        assert!(none.get(1).is_none());
    }

    proptest! {
        /// Beside a list that is searched from end to end.
        #[test]
        fn it_keeps_what_was_put_last(
            capacity in 1_u32..6,
            calls in prop::collection::vec((0_u8..8, 0_u64..10), 1..200),
        ) {
            let (mut lru, mut list) = (Lru::new(capacity), Vec::<(u64, usize)>::new());
            for (n, &(call, key)) in calls.iter().enumerate() {
                list.retain(|&(other, _)| other != key);
                match call {
                    0 => lru.remove(key),
                    1 if key == 0 => {
                        lru.clear();
                        list.clear();
                    }
                    _ => {
                        lru.put(key, n);
                        list.push((key, n));
                        if list.len() > capacity as usize {
                            list.remove(0);
                        }
                    }
                }
                for key in 0..10 {
                    let expected = list.iter().find(|(other, _)| *other == key);
                    prop_assert_eq!(lru.get(key), expected.map(|(_, n)| n));
                }
            }
        }
    }
}
