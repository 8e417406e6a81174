//! One lane's requests in order: a heap from which any request can be taken, not only the first.
//!
//! Four children to a node: half as many levels as a binary heap, and the children of a node lie in
//! two cache lines. Where each request is in its heap is kept in a table of its own, which stays
//! small enough for the cache with a million requests waiting.

/// Where each slot is in its heap; shared by all lanes.
pub(super) type Positions = Vec<u32>;

const CHILDREN: usize = 4;

/// The requests of one lane, the one that is next on top.
#[derive(Debug, Default)]
pub(super) struct Line {
    items: Vec<Item>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Item {
    key: u64,
    sequence: u64,
    slot: u32,
}

impl Line {
    /// The slot that is next.
    pub(super) fn first(&self) -> Option<usize> {
        self.items.first().map(|item| item.slot as usize)
    }

    /// Adds a slot. O(log n), O(1) for one that goes last.
    pub(super) fn insert(
        &mut self,
        slot: usize,
        key: u64,
        sequence: u64,
        positions: &mut Positions,
    ) {
        if positions.len() <= slot {
            positions.resize(slot + 1, 0);
        }
        let item = Item {
            key,
            sequence,
            slot: slot as u32,
        };
        self.items.push(item);
        self.rise(self.items.len() - 1, item, positions);
    }

    /// Takes out a slot that is in this line. O(log n), O(1) on average for one that is not near
    /// the top.
    pub(super) fn remove(&mut self, slot: usize, positions: &mut Positions) {
        let at = positions[slot] as usize;
        let Some(last) = self.items.pop() else { return };
        if at == self.items.len() {
            return;
        }
        // What left was no less than its parent and no greater than its children, so a lesser item
        // in its place can only rise and a greater one only sink.
        if last < self.items[at] {
            self.rise(at, last, positions);
        } else {
            self.sink(at, last, positions);
        }
    }

    fn rise(&mut self, mut at: usize, item: Item, positions: &mut Positions) {
        while at > 0 {
            let parent = (at - 1) / CHILDREN;
            if self.items[parent] < item {
                break;
            }
            self.put(at, self.items[parent], positions);
            at = parent;
        }
        self.put(at, item, positions);
    }

    fn sink(&mut self, mut at: usize, item: Item, positions: &mut Positions) {
        loop {
            let first = at * CHILDREN + 1;
            let children = first..(first + CHILDREN).min(self.items.len());
            let Some(least) = children.min_by_key(|&child| self.items[child]) else {
                break;
            };
            if item < self.items[least] {
                break;
            }
            self.put(at, self.items[least], positions);
            at = least;
        }
        self.put(at, item, positions);
    }

    fn put(&mut self, at: usize, item: Item, positions: &mut Positions) {
        self.items[at] = item;
        positions[item.slot as usize] = at as u32;
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn it_gives_what_a_sorted_set_gives(
            moves in proptest::collection::vec((any::<bool>(), 0_usize..40, 0_u64..8), 1..200),
        ) {
            let (mut line, mut positions) = (Line::default(), Positions::new());
            let mut model = BTreeSet::new();
            let mut inside = [None; 40];
            for (sequence, (insert, slot, key)) in moves.into_iter().enumerate() {
                match inside[slot].take() {
                    None if insert => {
                        line.insert(slot, key, sequence as u64, &mut positions);
                        model.insert((key, sequence, slot));
                        inside[slot] = Some((key, sequence));
                    }
                    None => {}
                    Some((key, sequence)) => {
                        line.remove(slot, &mut positions);
                        model.remove(&(key, sequence, slot));
                    }
                }
                prop_assert_eq!(line.first(), model.first().map(|&(.., slot)| slot));
            }
        }
    }
}
