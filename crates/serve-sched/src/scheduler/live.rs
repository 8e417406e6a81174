//! A request that has started: what has been run of it and what it holds.

use std::sync::Arc;

use serve_core::{BlockId, Request, RequestId, Time, Usage};

use super::prefixes::Prefixes;
use crate::gate::Taken;

/// Where a started request is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stage {
    /// In the batch.
    Running,
    /// Preempted, back in the queue.
    Waiting,
    /// Over. The slot stays until the step in flight is complete and the batch is swept.
    Ended,
}

/// A request that has started. Positions `0..computed` are in its blocks; tokens `0..known` are
/// known; what is in between has to be run before the next token can be sampled.
///
/// Every step looks at each of those that run, so it is small: what lies behind `blocks` is needed
/// once a block.
#[derive(Debug)]
pub(super) struct Live {
    pub(super) id: RequestId,
    pub(super) stage: Stage,
    pub(super) in_flight: bool,
    /// Whether the backend has met it.
    pub(super) announced: bool,
    pub(super) stops: bool,
    pub(super) computed: u32,
    pub(super) known: u32,
    pub(super) prompt_tokens: u32,
    pub(super) output_tokens_max: u32,
    /// Prompt positions that have been run or found at least once.
    pub(super) prompt_served: u32,
    pub(super) preemptions: u32,
    pub(super) sequence: u64,
    /// From when on nobody passes it.
    pub(super) ages_at: Time,
    /// Whether nobody could pass it any more when it joined.
    pub(super) aged: bool,
    /// Arrivals from this place in the order of arrival on came after it had joined.
    pub(super) joined_before: u64,
    pub(super) started_at: Time,
    /// Prompt tokens found in the prefix cache at the first start.
    pub(super) cached: u32,
    /// Positions that its blocks have room for.
    pub(super) held: u32,
    /// Entries of the block table that the backend has been given, and whether there are more.
    pub(super) sent: u32,
    pub(super) grown: bool,
    /// How many positions have to be run for another block to be full; never where blocks get no
    /// names.
    pub(super) publish_at: u32,
    /// The first position that no hash covers; none where blocks get no names.
    pub(super) tail_from: u32,
    pub(super) blocks: Box<Blocks>,
    pub(super) request: Arc<Request>,
}

/// The blocks of a request and their names: what a step looks at only when a block is full.
#[derive(Debug, Default)]
pub(super) struct Blocks {
    pub(super) table: Vec<BlockId>,
    pub(super) prefixes: Prefixes,
}

impl Live {
    pub(super) fn new(taken: &Taken, blocks: Box<Blocks>, block_size: u32, now: Time) -> Self {
        let request = Arc::clone(&taken.request);
        let hashed = blocks.prefixes.hashes().len() as u32;
        let tail_from = match blocks.prefixes.is_on() {
            true => hashed * block_size,
            false => u32::MAX,
        };
        Self {
            id: request.id(),
            stage: Stage::Running,
            in_flight: false,
            announced: false,
            stops: !request.stop_tokens().is_empty(),
            computed: 0,
            known: request.prompt_tokens(),
            prompt_tokens: request.prompt_tokens(),
            output_tokens_max: request.output_tokens_max(),
            prompt_served: 0,
            preemptions: taken.preemptions,
            sequence: taken.sequence,
            ages_at: Time::MAX,
            aged: false,
            joined_before: 0,
            started_at: now,
            cached: 0,
            held: 0,
            sent: 0,
            grown: false,
            publish_at: u32::MAX,
            tail_from,
            blocks,
            request,
        }
    }

    /// Positions to run before the next token can be sampled; at least 1 while it runs.
    #[inline]
    pub(super) fn pending(&self) -> u32 {
        self.known - self.computed
    }

    #[inline]
    pub(super) fn output_tokens(&self) -> u32 {
        self.known - self.prompt_tokens
    }

    /// Tokens that may still be generated.
    #[inline]
    pub(super) fn output_left(&self) -> u32 {
        self.output_tokens_max - self.output_tokens()
    }

    pub(super) fn usage(&self) -> Usage {
        Usage {
            prompt_tokens: self.prompt_tokens,
            cached_tokens: self.cached,
            output_tokens: self.output_tokens(),
            preemptions: self.preemptions,
        }
    }

    /// Adds a block to the end of the table.
    pub(super) fn push_block(&mut self, block: BlockId, block_size: u32) {
        self.blocks.table.push(block);
        self.held = self.held.saturating_add(block_size);
        self.grown = true;
    }

    /// The blocks that the backend has not been given yet, to be given now.
    #[inline]
    pub(super) fn fresh_blocks(&mut self) -> &[BlockId] {
        if !std::mem::take(&mut self.grown) {
            return &[];
        }
        let sent = self.sent as usize;
        self.sent = self.blocks.table.len() as u32;
        &self.blocks.table[sent..]
    }

    /// The block table, to be given up.
    pub(super) fn take_table(&mut self) -> &mut Vec<BlockId> {
        (self.held, self.sent, self.grown) = (0, 0, false);
        self.publish_at = u32::MAX;
        &mut self.blocks.table
    }

    /// The pool knows the first `blocks` blocks by name.
    pub(super) fn published(&mut self, blocks: u32, block_size: u32) {
        if self.blocks.prefixes.is_on() {
            self.blocks.prefixes.published = blocks;
            self.publish_at = (blocks + 1).saturating_mul(block_size);
        }
    }

    /// Its tokens are not known from here on, so that its further blocks get no names.
    pub(super) fn stop_naming(&mut self) {
        self.blocks.prefixes.stop();
        (self.publish_at, self.tail_from) = (u32::MAX, u32::MAX);
    }

    /// Records positions up to `end` as run and returns how many prompt tokens that is news for.
    #[inline]
    pub(super) fn advance(&mut self, end: u32) -> u32 {
        self.computed = end;
        let served = end.min(self.prompt_tokens);
        let news = served.saturating_sub(self.prompt_served);
        self.prompt_served += news;
        news
    }
}
