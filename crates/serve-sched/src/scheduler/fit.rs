//! Blocks for who joins: what the prefix cache has, what must be allocated, and whether it is there.

use serve_core::{BlockId, Time};

use super::Scheduler;
use super::live::Live;
use super::prefixes::Prefixes;
use crate::gate::Taken;
use crate::kv::PrefixHasher;

/// Blocks for the head of the queue.
#[derive(Clone, Copy, Debug)]
pub(super) struct Fit {
    /// Blocks found in the prefix cache.
    pub(super) shared: u32,
    /// Blocks to allocate beside them.
    pub(super) needed: u32,
}

impl Scheduler {
    /// What the head of the queue needs, and how many blocks it may be given.
    pub(super) fn blocks_for_head(&mut self, now: Time) -> (Fit, u32) {
        let (fit, withheld) = self.need_of_head(now, 0);
        (fit, self.pool.available().saturating_sub(withheld))
    }

    /// What the head of the queue needs, and how many of the available blocks it may not be given,
    /// if `leaving` of those running did not run any more.
    pub(super) fn need_of_head(&mut self, now: Time, leaving: u32) -> (Fit, u32) {
        self.probe_head(now);
        let Some(head) = self.gate.head(now) else {
            let nothing = Fit {
                shared: 0,
                needed: 0,
            };
            return (nothing, 0);
        };
        let started = self.ids.get(head.request.id()).map(|slot| &self.live[slot]);
        let (known, prefixes) = match started {
            Some(live) => (live.known, &live.blocks.prefixes),
            None => (head.request.prompt_tokens(), &self.probe.prefixes),
        };
        // A request that cannot be preempted again holds from the start all that it can come to need.
        let positions = match head.preemptions >= self.preemption.times_max {
            true => head.request.positions_max(),
            false => known,
        };
        let (mut shared, mut cached) = (0, 0);
        for block in self.blocks_found(known, prefixes) {
            shared += 1;
            cached += u32::from(self.pool.is_cached(block));
        }
        let fit = Fit {
            shared,
            needed: self.limits.blocks_for(positions) - shared,
        };
        // Taking a cached block makes one block fewer available.
        let spared = match self.gate.running().saturating_sub(leaving) {
            0 => 0,
            _ => self.watermark,
        };
        (fit, cached + spared)
    }

    /// The blocks that the head of the queue takes from the prefix cache, sorted.
    pub(super) fn blocks_reused_by_head(&mut self, now: Time) -> Vec<BlockId> {
        self.probe_head(now);
        let Some(head) = self.gate.head(now) else {
            return Vec::new();
        };
        let started = self.ids.get(head.request.id()).map(|slot| &self.live[slot]);
        let mut blocks: Vec<BlockId> = match started {
            Some(live) => self
                .blocks_found(live.known, &live.blocks.prefixes)
                .collect(),
            None => {
                let known = head.request.prompt_tokens();
                self.blocks_found(known, &self.probe.prefixes).collect()
            }
        };
        blocks.sort_unstable();
        blocks
    }

    /// The blocks in the cache for a request of which so many tokens are known.
    fn blocks_found<'a>(
        &'a self,
        known: u32,
        prefixes: &'a Prefixes,
    ) -> impl Iterator<Item = BlockId> + 'a {
        // The last token is run in any case: its logits are wanted.
        let reusable = ((known - 1) / self.limits.block_size) as usize;
        let hashes = prefixes.hashes();
        hashes[..reusable.min(hashes.len())]
            .iter()
            .map_while(|&prefix| self.pool.find(prefix))
    }

    /// Hashes the prompt of the head of the queue, unless that has been done.
    fn probe_head(&mut self, now: Time) {
        if !self.kv.reuse_prefixes {
            return;
        }
        let Some(head) = self.gate.head(now) else {
            return;
        };
        let (id, tenant) = (head.request.id(), head.request.tenant());
        if self.probe.request == Some(id) || self.ids.get(id).is_some() {
            return;
        }
        let tenant = self.kv.isolate_tenants.then_some(tenant);
        let hasher = PrefixHasher::new(self.kv.hash_key, tenant);
        let prefixes = &mut self.probe.prefixes;
        prefixes.restart(Some(hasher));
        let full = head
            .request
            .prompt()
            .chunks_exact(self.limits.block_size as usize);
        full.for_each(|block| prefixes.hash_block(block, &[]));
        self.probe.request = Some(id);
    }

    /// The slot of a request that has started before, or a new one.
    pub(super) fn slot_for(&mut self, now: Time, taken: &Taken) -> usize {
        let id = taken.request.id();
        if let Some(slot) = self.ids.get(id) {
            return slot;
        }
        let mut blocks = self.spare.pop().unwrap_or_default();
        if self.probe.request == Some(id) {
            std::mem::swap(&mut blocks.prefixes, &mut self.probe.prefixes);
            self.probe.request = None;
        } else {
            blocks.prefixes.restart(None);
        }
        let live = Live::new(taken, blocks, self.limits.block_size, now);
        let slot = self.live.insert(live);
        if self.kv.reuse_prefixes {
            self.tails.reserve(slot);
        }
        self.ids.insert(id, slot);
        slot
    }

    pub(super) fn take_blocks(&mut self, slot: usize, fit: Fit) {
        let block_size = self.limits.block_size;
        let live = &mut self.live[slot];
        // Room for its whole life, so that it grows without allocating.
        let blocks_max = self.limits.blocks_for(live.request.positions_max()) as usize;
        let table = &mut live.blocks.table;
        table.reserve(blocks_max.saturating_sub(table.len()));
        live.blocks.prefixes.reserve(blocks_max);
        for index in 0..fit.shared as usize {
            let prefix = live.blocks.prefixes.hashes()[index];
            if let Some(block) = self.pool.find(prefix) {
                self.pool.share(block);
                live.push_block(block, block_size);
            }
        }
        live.published(fit.shared, block_size);
        // The caller has seen that so many are available.
        let fresh = std::iter::from_fn(|| self.pool.allocate());
        for block in fresh.take(fit.needed as usize) {
            live.push_block(block, block_size);
        }
    }
}
