//! A request that has started: what has been run of it and what it holds.

use std::sync::Arc;

use serve_core::{BlockId, Request, RequestId, Time, TokenId, Usage};

use crate::gate::Taken;
use crate::kv::{PrefixHash, PrefixHasher};

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
    pub(super) started_at: Time,
    /// Prompt tokens found in the prefix cache at the first start.
    pub(super) cached: u32,
    pub(super) table: Vec<BlockId>,
    /// Entries of the table that the backend has been given.
    pub(super) sent: u32,
    pub(super) prefixes: Prefixes,
    pub(super) request: Arc<Request>,
}

/// The hashes of a request's full blocks, as far as its tokens are known, and how many of those
/// blocks the pool knows by name. Stays empty where prefixes are not reused.
#[derive(Debug, Default)]
pub(super) struct Prefixes {
    hasher: Option<PrefixHasher>,
    hashes: Vec<PrefixHash>,
    tokens: u32,
    pub(super) published: u32,
}

impl Live {
    pub(super) fn new(taken: &Taken, prefixes: Prefixes, table: Vec<BlockId>, now: Time) -> Self {
        let request = Arc::clone(&taken.request);
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
            started_at: now,
            cached: 0,
            table,
            sent: 0,
            prefixes,
            request,
        }
    }

    /// Positions to run before the next token can be sampled; at least 1 while it runs.
    pub(super) fn pending(&self) -> u32 {
        self.known - self.computed
    }

    pub(super) fn output_tokens(&self) -> u32 {
        self.known - self.prompt_tokens
    }

    /// Tokens that may still be generated.
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

    /// Records positions up to `end` as run and returns how many prompt tokens that is news for.
    pub(super) fn advance(&mut self, end: u32) -> u32 {
        self.computed = end;
        let served = end.min(self.prompt_tokens);
        let news = served.saturating_sub(self.prompt_served);
        self.prompt_served += news;
        news
    }
}

impl Prefixes {
    /// Starts over for another request and keeps the memory.
    pub(super) fn restart(&mut self, hasher: Option<PrefixHasher>) {
        self.hasher = hasher;
        self.hashes.clear();
        self.tokens = 0;
        self.published = 0;
    }

    pub(super) fn push(&mut self, token: TokenId, block_size: u32) {
        if let Some(hasher) = &mut self.hasher {
            hasher.push(token);
            self.tokens += 1;
            if self.tokens.is_multiple_of(block_size) {
                self.hashes.push(hasher.finish());
            }
        }
    }

    /// Makes room for the hashes of `blocks` blocks.
    pub(super) fn reserve(&mut self, blocks: usize) {
        if self.hasher.is_some() {
            self.hashes
                .reserve(blocks.saturating_sub(self.hashes.len()));
        }
    }

    /// One hash for each full block.
    pub(super) fn hashes(&self) -> &[PrefixHash] {
        &self.hashes
    }
}
