//! What requests ask of a device, in whole numbers that add up: kept in sums over everybody who waits.

use std::ops::{AddAssign, SubAssign};

/// What one request, or several together, will occupy: slots, KV blocks and step tokens.
///
/// A request with a prompt of `p` tokens that is expected to sample `o` holds about
/// `b = ceil((p + o / 2) / block size)` blocks in the mean, for as long as its prompt and its outputs
/// take. So slot time needs the sums of `p` and `o`, block time those of `b p` and `b o`, and the
/// step's token budget that of `p`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Demand {
    /// Requests.
    pub requests: u64,
    /// Prompt tokens.
    pub prompt_tokens: u64,
    /// Output tokens that are expected.
    pub output_tokens: u64,
    /// Blocks that the prompts take.
    pub prompt_blocks: u64,
    /// Mean blocks held, times prompt tokens, each request by itself.
    pub block_prompt_tokens: u128,
    /// Mean blocks held, times expected output tokens, each request by itself.
    pub block_output_tokens: u128,
}

impl Demand {
    /// One request's. Blocks of 0 tokens are counted as of one.
    pub fn of(prompt_tokens: u32, output_tokens: u32, block_size: u32) -> Self {
        let (prompt, output) = (u64::from(prompt_tokens), u64::from(output_tokens));
        let block_size = u64::from(block_size.max(1));
        let blocks = u128::from((prompt + output / 2).div_ceil(block_size));
        Self {
            requests: 1,
            prompt_tokens: prompt,
            output_tokens: output,
            prompt_blocks: prompt.div_ceil(block_size),
            block_prompt_tokens: blocks * u128::from(prompt),
            block_output_tokens: blocks * u128::from(output),
        }
    }

    /// The `part`-th part of a `whole`, as if all requests were alike. All of it where `part` is not
    /// less than `whole`.
    #[must_use]
    pub fn part(&self, part: u64, whole: u64) -> Self {
        if part >= whole {
            return *self;
        }
        // Not above the amount, as part < whole; with the product in floating point where it is large.
        let of = |amount: u64| (u128::from(amount) * u128::from(part) / u128::from(whole)) as u64;
        let share = part as f64 / whole as f64;
        let of_large = |amount: u128| (amount as f64 * share) as u128;
        Self {
            requests: of(self.requests),
            prompt_tokens: of(self.prompt_tokens),
            output_tokens: of(self.output_tokens),
            prompt_blocks: of(self.prompt_blocks),
            block_prompt_tokens: of_large(self.block_prompt_tokens),
            block_output_tokens: of_large(self.block_output_tokens),
        }
    }
}

impl AddAssign for Demand {
    fn add_assign(&mut self, other: Self) {
        self.requests += other.requests;
        self.prompt_tokens += other.prompt_tokens;
        self.output_tokens += other.output_tokens;
        self.prompt_blocks += other.prompt_blocks;
        self.block_prompt_tokens += other.block_prompt_tokens;
        self.block_output_tokens += other.block_output_tokens;
    }
}

/// Takes away what was added before.
impl SubAssign for Demand {
    fn sub_assign(&mut self, other: Self) {
        self.requests -= other.requests;
        self.prompt_tokens -= other.prompt_tokens;
        self.output_tokens -= other.output_tokens;
        self.prompt_blocks -= other.prompt_blocks;
        self.block_prompt_tokens -= other.block_prompt_tokens;
        self.block_output_tokens -= other.block_output_tokens;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_are_parts_and_sums_come_back() {
        let (short, long) = (Demand::of(10, 4, 16), Demand::of(30_000, 400, 16));
        assert_eq!(short.block_prompt_tokens, 10);
        assert_eq!(long.prompt_blocks, 1_875);
        let mut both = short;
        both += long;
        assert_eq!(both.part(2, 2), both);
        assert_eq!(both.part(1, 2).prompt_tokens, 15_005);
        both -= short;
        assert_eq!(both, long);
    }
}
