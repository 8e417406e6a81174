//! Fixed-size KV blocks: reference counts, reuse of full blocks by prefix, eviction of the least
//! recently used. Every operation is O(1).
//!
//! A block is *free* (its contents mean nothing), *held* (by one request or, with the same prefix,
//! by several) or *cached* (nobody holds it and its contents may still be reused).

use hashbrown::HashTable;
use hashbrown::hash_table::Entry;
use serve_core::BlockId;

use super::PrefixHash;

const NONE: u32 = 0; // block 0 is never allocated, so it ends lists too

/// The block pool of one device.
#[derive(Debug)]
pub struct BlockPool {
    // What a block is needed for at different times lies apart: a step that takes blocks and names
    // others then touches few cache lines, however many blocks there are.
    holders: Vec<u32>,
    prefixes: Vec<Option<PrefixHash>>,
    /// Neighbours in the list of cached blocks.
    links: Vec<Link>,
    free: Vec<u32>,
    cached: List,
    by_prefix: HashTable<u32>,
}

/// How many blocks are in which state.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct PoolStats {
    /// Blocks in all, the null block not counted.
    pub total: u32,
    /// Blocks without contents.
    pub free: u32,
    /// Blocks that a request holds.
    pub held: u32,
    /// Blocks that nobody holds and whose contents may be reused.
    pub cached: u32,
}

#[derive(Clone, Copy, Debug, Default)]
struct Link {
    before: u32,
    after: u32,
}

/// Cached blocks from the least to the most recently used.
#[derive(Debug, Default)]
struct List {
    first: u32,
    last: u32,
    len: u32,
}

impl BlockPool {
    /// A pool of blocks `1..blocks`; block 0 is the null block.
    pub fn new(blocks: u32) -> Self {
        let all = blocks.max(1) as usize;
        Self {
            holders: vec![0; all],
            prefixes: vec![None; all],
            links: vec![Link::default(); all],
            free: (1..blocks).rev().collect(),
            cached: List::default(),
            by_prefix: HashTable::with_capacity(blocks as usize),
        }
    }

    /// Blocks that can be allocated now: the free and the cached ones.
    pub fn available(&self) -> u32 {
        self.free.len() as u32 + self.cached.len
    }

    /// How many blocks are in which state.
    pub fn stats(&self) -> PoolStats {
        let total = self.holders.len() as u32 - 1;
        PoolStats {
            total,
            free: self.free.len() as u32,
            held: total - self.available(),
            cached: self.cached.len,
        }
    }

    /// A block with no contents and one holder; the least recently used cached block loses its
    /// contents when no block is free. `None` when all are held.
    pub fn allocate(&mut self) -> Option<BlockId> {
        let block = match self.free.pop() {
            Some(block) => block,
            None if self.cached.len > 0 => self.evict(),
            None => return None,
        };
        self.holders[block as usize] = 1;
        Some(BlockId::new(block))
    }

    /// The block that holds `prefix`, if it is still there.
    pub fn find(&self, prefix: PrefixHash) -> Option<BlockId> {
        let same = |&block: &u32| self.prefixes[block as usize] == Some(prefix);
        let block = self.by_prefix.find(prefix.bucket(), same);
        block.map(|&block| BlockId::new(block))
    }

    /// Whether nobody holds `block`, so that taking it makes one block fewer available.
    pub fn is_cached(&self, block: BlockId) -> bool {
        self.holders[block.get() as usize] == 0
    }

    /// Whether `block` would become available if one holder let go of it.
    pub fn is_held_once(&self, block: BlockId) -> bool {
        self.holders[block.get() as usize] == 1
    }

    /// How many requests hold `block`.
    pub(crate) fn holders(&self, block: BlockId) -> u32 {
        self.holders[block.get() as usize]
    }

    /// Adds a holder to a block that [`find`](Self::find) gave.
    pub fn share(&mut self, block: BlockId) {
        let index = block.get();
        if self.holders[index as usize] == 0 {
            self.unlink(index);
        }
        self.holders[index as usize] += 1;
    }

    /// Takes a holder away. A request lets go of its table from the tail, so that of one prefix the
    /// later blocks are evicted before the earlier ones that they build upon.
    pub fn release(&mut self, block: BlockId) {
        let index = block.get();
        let holders = &mut self.holders[index as usize];
        debug_assert!(*holders > 0, "{block} is released once for each holder");
        *holders -= 1;
        if *holders > 0 {
            return;
        }
        if self.prefixes[index as usize].is_some() {
            self.link_last(index);
        } else {
            self.free.push(index);
        }
    }

    /// Records that a held block is full and ends `prefix`. Another block may hold the same prefix
    /// already, computed side by side; the first one keeps the name.
    pub fn publish(&mut self, block: BlockId, prefix: PrefixHash) {
        let (index, prefixes) = (block.get() as usize, &mut self.prefixes);
        if prefixes[index].is_some() {
            return;
        }
        let rehash = |&other: &u32| prefixes[other as usize].map_or(0, PrefixHash::bucket);
        let same = |&other: &u32| prefixes[other as usize] == Some(prefix);
        let entry = self.by_prefix.entry(prefix.bucket(), same, rehash);
        if let Entry::Vacant(place) = entry {
            place.insert(index as u32);
            prefixes[index] = Some(prefix);
        }
    }

    /// Forgets all contents: the device has lost them.
    pub fn forget_contents(&mut self) {
        while self.cached.len > 0 {
            let block = self.evict();
            self.free.push(block);
        }
        self.by_prefix.clear();
        self.prefixes.fill(None);
    }

    fn evict(&mut self) -> u32 {
        let block = self.cached.first;
        self.unlink(block);
        if let Some(prefix) = self.prefixes[block as usize].take() {
            let found = self
                .by_prefix
                .find_entry(prefix.bucket(), |&other| other == block);
            if let Ok(entry) = found {
                entry.remove();
            }
        }
        block
    }

    fn link_last(&mut self, index: u32) {
        let last = self.cached.last;
        self.links[index as usize].before = last;
        self.links[index as usize].after = NONE;
        match last {
            NONE => self.cached.first = index,
            last => self.links[last as usize].after = index,
        }
        self.cached.last = index;
        self.cached.len += 1;
    }

    fn unlink(&mut self, index: u32) {
        let Link { before, after } = self.links[index as usize];
        match before {
            NONE => self.cached.first = after,
            before => self.links[before as usize].after = after,
        }
        match after {
            NONE => self.cached.last = before,
            after => self.links[after as usize].before = before,
        }
        self.cached.len -= 1;
    }
}

#[cfg(test)]
mod tests {
    use serve_core::TokenId;

    use super::*;
    use crate::kv::PrefixHasher;

    fn prefix(token: u32) -> PrefixHash {
        let mut hasher = PrefixHasher::new(0, None);
        hasher.push(TokenId::new(token));
        hasher.finish()
    }

    fn states(pool: &BlockPool) -> (u32, u32, u32) {
        let stats = pool.stats();
        assert_eq!(stats.free + stats.held + stats.cached, stats.total);
        (stats.free, stats.held, stats.cached)
    }

    #[test]
    fn the_null_block_is_never_given() {
        let mut pool = BlockPool::new(4);
        let given: Vec<_> = std::iter::from_fn(|| pool.allocate()).collect();
        assert_eq!(given, [1, 2, 3].map(BlockId::new));
        assert_eq!(states(&pool), (0, 3, 0));
    }

    #[test]
    fn a_released_prefix_is_found_until_its_block_is_needed() {
        let mut pool = BlockPool::new(3);
        let block = pool.allocate().unwrap();
        pool.publish(block, prefix(1));
        pool.release(block);
        assert_eq!(states(&pool), (1, 0, 1));
        assert_eq!(pool.find(prefix(1)), Some(block));

        pool.share(block);
        pool.share(block);
        pool.release(block);
        assert_eq!(states(&pool), (1, 1, 0));
        pool.release(block);

        let other = pool.allocate().unwrap();
        assert_ne!(other, block, "a free block goes before a cached one");
        assert_eq!(pool.allocate(), Some(block));
        assert_eq!(pool.find(prefix(1)), None);
        pool.release(block);
        assert_eq!(states(&pool), (1, 1, 0), "its contents are gone");
    }

    #[test]
    fn the_least_recently_used_prefix_goes_first() {
        let mut pool = BlockPool::new(4);
        let blocks: Vec<_> = (1..=3)
            .map(|token| {
                let block = pool.allocate().unwrap();
                pool.publish(block, prefix(token));
                block
            })
            .collect();
        blocks.iter().for_each(|&block| pool.release(block));
        pool.share(blocks[0]);
        pool.release(blocks[0]);
        assert_eq!(pool.allocate(), Some(blocks[1]));
        assert_eq!(pool.allocate(), Some(blocks[2]));
        assert_eq!(pool.allocate(), Some(blocks[0]));
    }

    #[test]
    fn a_second_block_with_the_same_prefix_stays_unnamed() {
        let mut pool = BlockPool::new(3);
        let (first, second) = (pool.allocate().unwrap(), pool.allocate().unwrap());
        pool.publish(first, prefix(1));
        pool.publish(second, prefix(1));
        pool.release(second);
        assert_eq!(states(&pool), (1, 1, 0));
        assert_eq!(pool.find(prefix(1)), Some(first));
    }

    #[test]
    fn a_lost_device_leaves_no_prefix_behind() {
        let mut pool = BlockPool::new(4);
        let (held, cached) = (pool.allocate().unwrap(), pool.allocate().unwrap());
        pool.publish(held, prefix(1));
        pool.publish(cached, prefix(2));
        pool.release(cached);
        pool.forget_contents();
        assert_eq!((pool.find(prefix(1)), pool.find(prefix(2))), (None, None));
        assert_eq!(states(&pool), (2, 1, 0));
        pool.release(held);
        assert_eq!(states(&pool), (3, 0, 0));
    }
}
