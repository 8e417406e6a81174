//! The names of a request's full blocks: a hash of all tokens up to the end of each.
//!
//! A block is hashed when it is full, not token by token. Until then its tokens lie in [`Tails`], as
//! far as they were sampled; the prompt's are in the request.

use serve_core::TokenId;

use crate::kv::{PrefixHash, PrefixHasher};

/// The hashes of a request's full blocks, as far as they were needed, and how many of those blocks
/// the pool knows by name. Stays empty where prefixes are not reused.
#[derive(Debug, Default)]
pub(super) struct Prefixes {
    hasher: Option<PrefixHasher>,
    hashes: Vec<PrefixHash>,
    pub(super) published: u32,
}

impl Prefixes {
    /// Starts over for another request and keeps the memory.
    pub(super) fn restart(&mut self, hasher: Option<PrefixHasher>) {
        self.hasher = hasher;
        self.hashes.clear();
        self.published = 0;
    }

    /// Whether blocks get names at all.
    pub(super) fn is_on(&self) -> bool {
        self.hasher.is_some()
    }

    /// No further block gets a name.
    pub(super) fn stop(&mut self) {
        self.hasher = None;
    }

    /// Takes the tokens of the next block, all of them: some of the prompt, then sampled ones.
    pub(super) fn hash_block(&mut self, prompt: &[TokenId], sampled: &[TokenId]) {
        if let Some(hasher) = &mut self.hasher {
            hasher.extend(prompt);
            hasher.extend(sampled);
            self.hashes.push(hasher.finish());
        }
    }

    /// Makes room for the hashes of `blocks` blocks.
    pub(super) fn reserve(&mut self, blocks: usize) {
        if self.hasher.is_some() {
            self.hashes
                .reserve(blocks.saturating_sub(self.hashes.len()));
        }
    }

    /// One hash for each block hashed so far.
    pub(super) fn hashes(&self) -> &[PrefixHash] {
        &self.hashes
    }
}

/// For each slot the sampled tokens of the block that is not full yet.
#[derive(Debug)]
pub(super) struct Tails {
    tokens: Vec<TokenId>,
    block_size: usize,
}

impl Tails {
    pub(super) fn new(block_size: u32) -> Self {
        Self {
            tokens: Vec::new(),
            block_size: block_size as usize,
        }
    }

    /// Makes room for `slot`.
    pub(super) fn reserve(&mut self, slot: usize) {
        let needed = (slot + 1) * self.block_size;
        if self.tokens.len() < needed {
            self.tokens.resize(needed, TokenId::new(0));
        }
    }

    /// Puts a token at `offset` of the block of `slot`, for which there is room.
    #[inline]
    pub(super) fn set(&mut self, slot: usize, offset: u32, token: TokenId) {
        self.tokens[slot * self.block_size + offset as usize] = token;
    }

    /// The block of `slot`.
    pub(super) fn of(&self, slot: usize) -> &[TokenId] {
        &self.tokens[slot * self.block_size..][..self.block_size]
    }
}
