//! Prompts as the access log may tell them: a hash for each block of tokens, so that a day's requests can be played
//! again with what they had in common, and without what they said.

use std::fmt::Write as _;
use std::hash::{BuildHasher, RandomState};
use std::num::NonZeroU32;

use serve_core::TokenId;

/// Hashes of one prompt at most, so that they fit into a line.
const BLOCKS_MAX: usize = 400;

/// Hashes are told to so many bits: a million blocks are as good as never two of one hash.
const MASK: u64 = (1 << 48) - 1;

/// Hashes blocks of prompts by SipHash under a key that the system gave this process and nobody is shown: nobody can
/// look up a text that he has, and another process has other hashes.
#[derive(Clone, Debug)]
pub(crate) struct PromptBlocks {
    tokens: NonZeroU32,
    key: RandomState,
}

impl PromptBlocks {
    /// Blocks of so many tokens, under a new key.
    pub(crate) fn of(tokens: NonZeroU32) -> Self {
        Self {
            tokens,
            key: RandomState::new(),
        }
    }

    /// As `16:0123456789ab,..`: the tokens of a block, and of each whole block a hash of all tokens up to its end.
    /// Two prompts have as many first hashes in common as whole blocks.
    pub(crate) fn tell(&self, prompt: &[TokenId]) -> String {
        let mut told = format!("{}:", self.tokens);
        let mut up_to = 0_u64;
        let blocks = prompt.chunks_exact(self.tokens.get() as usize);
        for (index, block) in blocks.take(BLOCKS_MAX).enumerate() {
            up_to = self.key.hash_one((up_to, block));
            let comma = if index == 0 { "" } else { "," };
            // Writing to a string cannot fail.
            let _ = write!(told, "{comma}{:012x}", up_to & MASK);
        }
        told
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn prompt(numbers: impl IntoIterator<Item = u32>) -> Vec<TokenId> {
        numbers.into_iter().map(TokenId::new).collect()
    }

    fn hashes(blocks: &PromptBlocks, prompt: &[TokenId]) -> Vec<String> {
        let told = blocks.tell(prompt);
        let (tokens, hashes) = told.split_once(':').unwrap();
        assert_eq!(tokens, blocks.tokens.to_string());
        let hashes = hashes.split(',').filter(|hash| !hash.is_empty());
        hashes.map(str::to_owned).collect()
    }

    fn of(tokens: u32) -> PromptBlocks {
        PromptBlocks::of(NonZeroU32::new(tokens).unwrap())
    }

    #[test]
    fn prompts_have_as_many_hashes_in_common_as_whole_blocks() {
        for tokens in [1, 2, 16] {
            let blocks = of(tokens);
            let long = prompt(0..100);
            for same in 0..100 {
                let other = prompt((0..100).map(|n| if n < same { n } else { n + 1_000 }));
                let (long, other) = (hashes(&blocks, &long), hashes(&blocks, &other));
                assert_eq!(long.len(), (100 / tokens) as usize);
                let common = long.iter().zip(&other).take_while(|(a, b)| a == b);
                assert_eq!(common.count(), (same / tokens) as usize);
                // What follows a difference is never taken for the same.
                let later = long.iter().filter(|hash| other.contains(hash));
                assert_eq!(later.count(), (same / tokens) as usize);
            }
        }
    }

    #[test]
    fn equal_blocks_after_different_beginnings_are_different() {
        let blocks = of(2);
        let one = hashes(&blocks, &prompt([1, 2, 7, 7, 7, 7]));
        let other = hashes(&blocks, &prompt([3, 4, 7, 7, 7, 7]));
        let all: std::collections::BTreeSet<_> = one.iter().chain(&other).collect();
        assert_eq!(all.len(), 6);
    }

    /// One who knows a text and the rule, but not the key, cannot tell whether it was asked.
    #[test]
    fn another_process_has_no_hash_in_common() {
        let text = prompt(0..2_000);
        let (one, other) = (hashes(&of(10), &text), hashes(&of(10), &text));
        assert_eq!((one.len(), other.len()), (200, 200));
        assert!(!one.iter().any(|hash| other.contains(hash)));
    }

    #[test]
    fn a_line_stays_short_whatever_the_prompt() {
        assert!(of(1).tell(&prompt(0..1_000_000)).len() < 6_000);
        assert_eq!(of(16).tell(&prompt(0..15)), "16:");
    }
}
