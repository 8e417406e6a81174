//! Lanes inside of lanes: at each level of the order, which lane is next and which one goes last, and
//! how much waits in each.
//!
//! An innermost lane is a heap by (key, arrival). A level whose lanes do not simply go by number has a
//! small index that says which of them is next, and every level has one that says which of those in
//! which somebody may be displaced goes last. Operations are O(levels x log n).

use std::collections::{BTreeMap, BTreeSet};
use std::num::NonZeroU32;

use serve_core::Time;
use slab::Slab;

use super::entry::Entry;
use super::line::{Line, Positions};
use crate::demand::Demand;
use crate::order::{LEVELS_MAX, Lanes, Order, Path};

/// The lanes of every level.
#[derive(Debug)]
pub(super) struct Tree {
    levels: Vec<Lanes>,
    nodes: Slab<Node>,
    positions: Positions,
    links: Vec<Link>,
}

/// A lane, or all of them.
#[derive(Debug)]
struct Node {
    parent: u32,
    lane: u32,
    /// The outermost lanes are of level 1, the root of 0.
    level: u8,
    share: NonZeroU32,
    /// By which counter it is in its parent's `next`.
    counter: u128,
    demand: Demand,
    /// How many in it may be displaced.
    displaceable: u32,
    inside: Inside,
}

#[derive(Debug)]
enum Inside {
    Split(Box<Split>),
    Leaf { line: Line, newest: u32 },
}

/// The lanes inside of a lane.
#[derive(Debug, Default)]
struct Split {
    lanes: BTreeMap<u32, u32>,
    /// Rising lanes by a counter that may have risen since.
    next: BTreeSet<(u128, u32)>,
    /// Lanes in which somebody may be displaced, the one that goes last at the end.
    last: BTreeSet<(u64, u32)>,
}

/// Neighbours in the order in which those who may be displaced entered their innermost lane.
#[derive(Clone, Copy, Debug)]
struct Link {
    before: u32,
    after: u32,
}

/// A request that enters.
#[derive(Clone, Copy, Debug)]
pub(super) struct Item {
    pub(super) slot: usize,
    pub(super) key: u64,
    pub(super) sequence: u64,
    pub(super) demand: Demand,
    pub(super) displaceable: bool,
}

const ROOT: u32 = 0;
const NONE: u32 = u32::MAX;

impl Tree {
    pub(super) fn new(mut levels: Vec<Lanes>) -> Self {
        levels.truncate(LEVELS_MAX);
        let mut tree = Self {
            nodes: Slab::new(),
            positions: Positions::new(),
            links: Vec::new(),
            levels,
        };
        tree.add(NONE, 0, 0, NonZeroU32::MIN, 0);
        tree
    }

    /// What all that wait ask of the device.
    pub(super) fn demand(&self) -> Demand {
        self.node(ROOT).demand
    }

    /// The lanes that an innermost lane lies in, and itself.
    pub(super) fn path(&self, leaf: u32) -> Path {
        let (mut path, mut node) = (Path::default(), self.node(leaf));
        while node.parent != NONE {
            path = path.under(node.lane);
            node = self.node(node.parent);
        }
        path
    }

    pub(super) fn is_numbered(&self) -> bool {
        self.levels.iter().all(|&lanes| lanes == Lanes::Numbered)
    }

    pub(super) fn is_fair(&self) -> bool {
        self.levels.contains(&Lanes::Rising)
    }

    /// The lane of `path` at the outermost level whose lanes rise; 0 if none does.
    pub(super) fn group(&self, path: &Path) -> u32 {
        let level = self.levels.iter().position(|&lanes| lanes == Lanes::Rising);
        level.map_or(0, |level| path.to(level + 1)[level])
    }

    /// Adds a request at the end of `path` and returns its innermost lane.
    pub(super) fn insert(&mut self, item: &Item, path: &Path, order: &dyn Order) -> u32 {
        let mut node = ROOT;
        for level in 0..self.levels.len() {
            let path = path.to(level + 1);
            node = match self.lane(node, path[level]) {
                Some(lane) => lane,
                None => self.open(node, path, order),
            };
        }
        if let Inside::Leaf { line, newest } = &mut self.nodes[node as usize].inside {
            line.insert(item.slot, item.key, item.sequence, &mut self.positions);
            if item.displaceable {
                let before = std::mem::replace(newest, item.slot as u32);
                self.link(item.slot, before);
            }
        }
        self.change(node, item.displaceable, |demand| *demand += item.demand);
        node
    }

    /// Takes a request out of its innermost lane.
    pub(super) fn remove(&mut self, slot: usize, leaf: u32, demand: Demand, displaceable: bool) {
        if let Inside::Leaf { line, newest } = &mut self.nodes[leaf as usize].inside {
            line.remove(slot, &mut self.positions);
            if displaceable {
                let Link { before, after } = self.links[slot];
                if after == NONE {
                    *newest = before;
                }
                self.unlink(slot);
            }
        }
        self.change(leaf, displaceable, |sum| *sum -= demand);
    }

    /// The request that is next.
    pub(super) fn first(
        &mut self,
        entries: &Slab<Entry>,
        order: &dyn Order,
        now: Time,
    ) -> Option<usize> {
        self.first_in(ROOT, Path::default(), &(entries, order, now))
    }

    /// What goes before a newcomer at the end of `path`: all in lanes that go before its own, as its
    /// level says, and all in its innermost lane.
    pub(super) fn ahead(&self, path: &Path, order: &mut dyn Order) -> Demand {
        let mut nodes = [None; LEVELS_MAX + 1];
        nodes[0] = Some(ROOT);
        for level in 0..self.levels.len() {
            let lane = path.to(level + 1)[level];
            nodes[level + 1] = nodes[level].and_then(|node| self.lane(node, lane));
        }
        let demand = |node: Option<u32>| node.map_or(Demand::default(), |n| self.node(n).demand);
        let mut ahead = demand(nodes[self.levels.len()]);
        for (level, lanes) in self.levels.iter().enumerate().rev() {
            let Some(node) = nodes[level] else { continue };
            let mut others = self.node(node).demand;
            others -= demand(nodes[level + 1]);
            let path = path.to(level + 1);
            match lanes {
                Lanes::Numbered => {
                    others -= self.after(node, path[level]);
                    ahead += others;
                }
                Lanes::Rising => ahead += order.others_ahead(path, &ahead, &others),
                Lanes::Scanned => ahead = self.node(node).demand,
            }
        }
        ahead
    }

    /// Who goes last of those who may be displaced, unless a newcomer at the end of `path` goes after
    /// them.
    ///
    /// Where lanes go by number, that is somebody in the highest one. Where they rise, it is somebody in
    /// the lane that has most waiting for its share, the newcomer counted: while that is another lane,
    /// it has more of the places in the queue than is its part, and the newcomer's has not. In the
    /// innermost lane it is the one that came last, and so the newcomer itself.
    pub(super) fn last(&self, path: &Path, order: &dyn Order) -> Option<usize> {
        let mut node = ROOT;
        for (level, lanes) in self.levels.iter().enumerate() {
            let path = path.to(level + 1);
            let own = self.lane(node, path[level]);
            let &(key, lane) = self.split(node)?.last.last()?;
            let passes = match lanes {
                Lanes::Numbered => lane > path[level],
                Lanes::Rising => key > self.places_with_newcomer(own, path, order),
                // The ratio of a newcomer is the lowest.
                Lanes::Scanned => false,
            };
            if passes {
                return self.last_in(self.lane(node, lane)?);
            }
            node = own?;
        }
        None
    }

    fn node(&self, node: u32) -> &Node {
        &self.nodes[node as usize]
    }

    fn split(&self, node: u32) -> Option<&Split> {
        match &self.node(node).inside {
            Inside::Split(split) => Some(split),
            Inside::Leaf { .. } => None,
        }
    }

    fn split_mut(&mut self, node: u32) -> Option<&mut Split> {
        match &mut self.nodes[node as usize].inside {
            Inside::Split(split) => Some(split),
            Inside::Leaf { .. } => None,
        }
    }

    fn lane(&self, node: u32, lane: u32) -> Option<u32> {
        self.split(node)?.lanes.get(&lane).copied()
    }

    /// Opens the lane at the end of `path`, in which somebody is about to wait.
    fn open(&mut self, parent: u32, path: &[u32], order: &dyn Order) -> u32 {
        let level = path.len();
        let lane = path[level - 1];
        let (mut counter, mut share) = (0, NonZeroU32::MIN);
        let rising = self.levels[level - 1] == Lanes::Rising;
        if rising {
            (counter, share) = (order.lane_counter(path), order.lane_share(path));
        }
        let node = self.add(parent, lane, level as u8, share, counter);
        if let Some(split) = self.split_mut(parent) {
            split.lanes.insert(lane, node);
            if rising {
                split.next.insert((counter, lane));
            }
        }
        node
    }

    fn add(&mut self, parent: u32, lane: u32, level: u8, share: NonZeroU32, counter: u128) -> u32 {
        let inside = match usize::from(level) == self.levels.len() {
            true => Inside::Leaf {
                line: Line::default(),
                newest: NONE,
            },
            false => Inside::Split(Box::default()),
        };
        let node = self.nodes.insert(Node {
            parent,
            lane,
            level,
            share,
            counter,
            demand: Demand::default(),
            displaceable: 0,
            inside,
        });
        node as u32
    }

    /// Books what has entered or left an innermost lane at every level, and closes lanes that are
    /// empty.
    fn change(&mut self, leaf: u32, displaceable: bool, change: impl Fn(&mut Demand)) {
        let mut at = leaf;
        while at != NONE {
            let before = self.last_key(at);
            let node = &mut self.nodes[at as usize];
            let requests = node.demand.requests;
            change(&mut node.demand);
            match node.demand.requests > requests {
                true => node.displaceable += u32::from(displaceable),
                false => node.displaceable -= u32::from(displaceable),
            }
            let (parent, lane, counter) = (node.parent, node.lane, node.counter);
            let empty = node.demand.requests == 0;
            let after = self.last_key(at);
            if let Some(split) = (parent != NONE).then(|| self.split_mut(parent)).flatten() {
                if before != after {
                    before.map(|key| split.last.remove(&(key, lane)));
                    after.map(|key| split.last.insert((key, lane)));
                }
                if empty {
                    split.lanes.remove(&lane);
                    split.next.remove(&(counter, lane));
                    self.nodes.remove(at as usize);
                }
            }
            at = parent;
        }
    }

    /// Where a lane stands among those from which somebody may be displaced; `None` if nobody may.
    fn last_key(&self, node: u32) -> Option<u64> {
        let node = self.node(node);
        let level = usize::from(node.level).checked_sub(1)?;
        let key = match self.levels[level] {
            Lanes::Rising => places(node.demand.requests, node.share),
            Lanes::Numbered | Lanes::Scanned => 0,
        };
        (node.displaceable > 0).then_some(key)
    }

    /// Where the lane at the end of `path` would stand with one request more.
    fn places_with_newcomer(&self, own: Option<u32>, path: &[u32], order: &dyn Order) -> u64 {
        match own.map(|own| self.node(own)) {
            Some(own) => places(own.demand.requests + 1, own.share),
            None => places(1, order.lane_share(path)),
        }
    }

    fn last_in(&self, mut node: u32) -> Option<usize> {
        loop {
            match &self.node(node).inside {
                Inside::Leaf { newest, .. } => {
                    return (*newest != NONE).then_some(*newest as usize);
                }
                Inside::Split(split) => {
                    let (_, lane) = split.last.last()?;
                    node = *split.lanes.get(lane)?;
                }
            }
        }
    }

    /// What waits in the lanes of a higher number.
    fn after(&self, node: u32, lane: u32) -> Demand {
        let mut after = Demand::default();
        let lanes = self.split(node).map(|split| &split.lanes);
        let lanes = lanes.into_iter().flatten().rev();
        for (_, &node) in lanes.take_while(|&(&other, _)| other > lane) {
            after += self.node(node).demand;
        }
        after
    }

    fn first_in(
        &mut self,
        mut node: u32,
        mut path: Path,
        of: &(&Slab<Entry>, &dyn Order, Time),
    ) -> Option<usize> {
        loop {
            let level = usize::from(self.node(node).level);
            let split = match &self.node(node).inside {
                Inside::Leaf { line, .. } => return line.first(),
                Inside::Split(split) => split,
            };
            let lane = match self.levels[level] {
                Lanes::Numbered => *split.lanes.first_key_value()?.0,
                Lanes::Rising => self.next_rising(node, path, of.1)?,
                Lanes::Scanned => return self.first_of_scanned(node, path, of),
            };
            path.set(level, lane);
            node = self.lane(node, lane)?;
        }
    }

    /// A lane that was the lowest when it was entered may have risen since; it is put where it
    /// belongs, and the next one is looked at.
    fn next_rising(&mut self, node: u32, mut path: Path, order: &dyn Order) -> Option<u32> {
        let level = usize::from(self.node(node).level);
        loop {
            let &(counter, lane) = self.split(node)?.next.first()?;
            path.set(level, lane);
            let risen = order.lane_counter(path.lanes());
            if risen <= counter {
                return Some(lane);
            }
            let split = self.split_mut(node)?;
            split.next.remove(&(counter, lane));
            split.next.insert((risen, lane));
            let at = *split.lanes.get(&lane)?;
            self.nodes[at as usize].counter = risen;
        }
    }

    fn first_of_scanned(
        &mut self,
        node: u32,
        mut path: Path,
        of: &(&Slab<Entry>, &dyn Order, Time),
    ) -> Option<usize> {
        let &(entries, order, now) = of;
        let level = usize::from(self.node(node).level);
        let (mut best, mut from) = (None, Some(0));
        while let Some(least) = from {
            let mut lanes = self.split(node)?.lanes.range(least..);
            let Some((&lane, &inner)) = lanes.next() else {
                break;
            };
            path.set(level, lane);
            if let Some(slot) = self.first_in(inner, path, of) {
                let key = order.lane_key(path.to(level + 1), &entries[slot].view(), now);
                if best.is_none_or(|(least, _)| key < least) {
                    best = Some((key, slot));
                }
            }
            from = lane.checked_add(1);
        }
        best.map(|(_, slot)| slot)
    }

    fn link(&mut self, slot: usize, before: u32) {
        let link = Link {
            before,
            after: NONE,
        };
        if self.links.len() <= slot {
            let unlinked = Link {
                before: NONE,
                after: NONE,
            };
            self.links.resize(slot + 1, unlinked);
        }
        self.links[slot] = link;
        if before != NONE {
            self.links[before as usize].after = slot as u32;
        }
    }

    fn unlink(&mut self, slot: usize) {
        let Link { before, after } = self.links[slot];
        if before != NONE {
            self.links[before as usize].after = after;
        }
        if after != NONE {
            self.links[after as usize].before = before;
        }
    }
}

/// Places for each share, to compare.
fn places(requests: u64, share: NonZeroU32) -> u64 {
    (requests << 32) / u64::from(share.get())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::order::Fifo;

    #[test]
    fn lanes_that_are_empty_take_no_memory() {
        let mut tree = Tree::new(vec![Lanes::Rising, Lanes::Numbered, Lanes::Scanned]);
        let demand = Demand::of(10, crate::lengths::Expected::certain(10), 1);
        for round in 0..1_000_u32 {
            let leaves = [0, 1, 2, 3].map(|n| {
                let item = Item {
                    slot: n as usize,
                    key: 0,
                    sequence: u64::from(4 * round + n),
                    demand,
                    displaceable: n % 2 == 0,
                };
                let path = Path::of(round).under(n / 2).under(round * 4 + n / 3);
                (n, tree.insert(&item, &path, &Fifo))
            });
            assert_eq!(tree.demand().requests, 4);
            for (n, leaf) in leaves {
                tree.remove(n as usize, leaf, demand, n % 2 == 0);
            }
        }
        assert_eq!(tree.nodes.len(), 1, "the root");
        assert_eq!(tree.demand(), Demand::default());
        let root = tree.split(ROOT).unwrap();
        assert!(root.lanes.is_empty() && root.next.is_empty() && root.last.is_empty());
        assert!(tree.nodes.capacity() < 100 && tree.links.len() <= 4);
    }
}
