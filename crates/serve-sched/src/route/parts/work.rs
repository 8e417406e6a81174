//! What a request asks of an upstream, as far as it matters for where it goes.

use serve_core::{Class, Time, TokenId};

use crate::kv::PrefixHasher;
use crate::route::UpstreamId;

/// What a request asks of an upstream.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Work<'a> {
    /// Tokens in its prompt; an estimate where nobody has counted them.
    pub prompt_tokens: u32,
    /// Tokens that are expected of its answer.
    pub output_tokens: u32,
    /// The [chain](chain) of its prompt: a name for everything up to the end of each block. Empty if it is not known.
    pub prefix: &'a [u64],
    /// Tokens in a block of the chain.
    pub block_tokens: u32,
    /// Requests of one conversation have the same, each of which begins with the one before it and its answer. Of use where
    /// there is no chain.
    pub session: Option<u64>,
    /// Its class; the policies of this crate do not look at it.
    pub class: Class,
    /// When its answer is of no use any more.
    pub deadline: Option<Time>,
    /// Which attempt it is.
    pub attempt: Attempt,
}

/// Which attempt at a request: the original, or what a [`Retry`](crate::route::Retry) says.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Attempt {
    pub(in crate::route) failed: u32,
    pub(in crate::route) failed_at: Option<UpstreamId>,
}

impl Work<'_> {
    /// The original attempt of a request of the highest class, of which only the lengths are known.
    pub const fn new(prompt_tokens: u32, output_tokens: u32) -> Self {
        Self {
            prompt_tokens,
            output_tokens,
            prefix: &[],
            block_tokens: 16,
            session: None,
            class: Class::HIGHEST,
            deadline: None,
            attempt: Attempt {
                failed: 0,
                failed_at: None,
            },
        }
    }

    /// KV positions that it holds, in the mean over its answer.
    pub(in crate::route) fn held_tokens(&self) -> u64 {
        u64::from(self.prompt_tokens) + u64::from(self.output_tokens) / 2
    }
}

/// The chain of a prompt: for each full block a hash of all tokens up to its end, under a key. Two prompts with the same
/// first `n` names have the same first `n` blocks. O(tokens).
pub fn chain(key: u128, tokens: &[TokenId], block_tokens: u32) -> Vec<u64> {
    let mut hasher = PrefixHasher::new(key, None);
    let blocks = tokens.chunks_exact(block_tokens.max(1) as usize);
    let names = blocks.map(|block| {
        hasher.extend(block);
        hasher.finish().bucket()
    });
    names.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_chain_names_full_blocks_and_tells_prompts_apart_from_the_first_difference_on() {
        let tokens = |last: u32| [1, 2, 3, 4, 5, 6, last, 8, 9].map(TokenId::new);
        let (one, other) = (chain(7, &tokens(7), 2), chain(7, &tokens(0), 2));
        assert_eq!(one.len(), 4);
        assert_eq!(one[..3], other[..3]);
        assert_ne!(one[3], other[3]);
        assert_ne!(one[0], chain(8, &tokens(7), 2)[0], "another key");
    }
}
