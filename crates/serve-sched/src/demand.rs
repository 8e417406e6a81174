//! What requests ask of a device, in whole numbers that add up: kept in sums over everybody who waits, and over
//! everybody who runs.

use std::ops::{AddAssign, SubAssign};

use crate::lengths::Expected;

/// What one request, or several together, will occupy: slots and KV blocks, for so many steps, and step tokens.
///
/// A request that is expected to sample `o` tokens after a prompt of `p` runs in `o` steps, and in more if its
/// prompt does not fit into one; it holds about `ceil((p + o / 2) / block size)` blocks in the mean.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Demand {
    /// Requests.
    pub requests: u64,
    /// Prompt tokens.
    pub prompt_tokens: u64,
    /// Output tokens that are expected, each the work of a step.
    pub output_tokens: u64,
    /// How unsure that is: the variance, in tokens squared.
    pub output_variance: u128,
    /// Blocks that the prompts take.
    pub prompt_blocks: u64,
    /// Blocks held in the mean.
    pub blocks: u64,
    /// Blocks held in the mean times prompt tokens, each request by itself.
    pub block_prompt_tokens: u128,
    /// Blocks held in the mean times expected output tokens, each request by itself.
    pub block_output_tokens: u128,
}

impl Demand {
    /// One request's. Blocks of 0 tokens are counted as of one.
    pub fn of(prompt_tokens: u32, output: Expected, block_size: u32) -> Self {
        let (prompt, spread) = (u64::from(prompt_tokens), u64::from(output.spread));
        let output = u64::from(output.tokens);
        let block_size = u64::from(block_size.max(1));
        let blocks = (prompt + output / 2).div_ceil(block_size);
        Self {
            requests: 1,
            prompt_tokens: prompt,
            output_tokens: output,
            output_variance: u128::from(spread * spread),
            prompt_blocks: prompt.div_ceil(block_size),
            blocks,
            block_prompt_tokens: u128::from(blocks) * u128::from(prompt),
            // Longer ones hold more blocks for longer, so the mean of the product exceeds that of the means.
            block_output_tokens: u128::from(blocks) * u128::from(output)
                + u128::from(spread * spread / (2 * block_size)),
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
            output_variance: of_large(self.output_variance),
            prompt_blocks: of(self.prompt_blocks),
            blocks: of(self.blocks),
            block_prompt_tokens: of_large(self.block_prompt_tokens),
            block_output_tokens: of_large(self.block_output_tokens),
        }
    }

    /// By how much more outputs may come together than is expected, as a share of it: two standard deviations.
    pub(crate) fn doubt(&self) -> f64 {
        2.0 * (self.output_variance as f64).sqrt() / (self.output_tokens as f64).max(1.0)
    }

    /// Steps for which slots are held, where a step can run so many prompt tokens.
    pub(crate) fn slot_steps(&self, step_tokens: f64) -> f64 {
        self.output_tokens as f64 + self.prompt_tokens as f64 / step_tokens
    }

    /// Steps for which blocks are held, each times its blocks.
    pub(crate) fn block_steps(&self, step_tokens: f64) -> f64 {
        self.block_output_tokens as f64 + self.block_prompt_tokens as f64 / step_tokens
    }
}

impl AddAssign for Demand {
    fn add_assign(&mut self, other: Self) {
        self.requests += other.requests;
        self.prompt_tokens += other.prompt_tokens;
        self.output_tokens += other.output_tokens;
        self.output_variance += other.output_variance;
        self.prompt_blocks += other.prompt_blocks;
        self.blocks += other.blocks;
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
        self.output_variance -= other.output_variance;
        self.prompt_blocks -= other.prompt_blocks;
        self.blocks -= other.blocks;
        self.block_prompt_tokens -= other.block_prompt_tokens;
        self.block_output_tokens -= other.block_output_tokens;
    }
}

/// What the requests that run occupy, and since which steps.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Underway {
    /// All of it, from their starts to their ends.
    pub(crate) demand: Demand,
    /// The sum of the numbers of their first steps.
    starts: u128,
    /// The same, each times its mean blocks.
    block_starts: u128,
}

impl Underway {
    /// A request has started before so many steps had been run.
    pub(crate) fn add(&mut self, step: u64, demand: Demand) {
        self.demand += demand;
        self.starts += u128::from(step);
        self.block_starts += u128::from(step) * u128::from(demand.blocks);
    }

    /// A request that started then runs no longer.
    pub(crate) fn remove(&mut self, step: u64, demand: Demand) {
        self.demand -= demand;
        self.starts -= u128::from(step);
        self.block_starts -= u128::from(step) * u128::from(demand.blocks);
    }

    /// Steps for which slots have been held, so many steps having been run.
    pub(crate) fn slot_steps(&self, steps: u64) -> f64 {
        let held = u128::from(steps) * u128::from(self.demand.requests);
        held.saturating_sub(self.starts) as f64
    }

    /// Steps for which blocks have been held, each times its blocks.
    pub(crate) fn block_steps(&self, steps: u64) -> f64 {
        let held = u128::from(steps) * u128::from(self.demand.blocks);
        held.saturating_sub(self.block_starts) as f64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_are_parts_and_sums_come_back() {
        let (short, long) = (
            Demand::of(10, Expected::certain(4), 16),
            Demand::of(30_000, Expected::certain(400), 16),
        );
        assert_eq!(short.block_prompt_tokens, 10);
        assert_eq!(long.prompt_blocks, 1_875);
        let mut both = short;
        both += long;
        assert_eq!(both.part(2, 2), both);
        assert_eq!(both.part(1, 2).prompt_tokens, 15_005);
        both -= short;
        assert_eq!(both, long);
    }

    #[test]
    fn requests_of_which_nothing_is_sure_add_up() {
        let unsure = Expected {
            tokens: u32::MAX,
            spread: u32::MAX,
        };
        let one = Demand::of(u32::MAX, unsure, 1);
        let mut all = Demand::default();
        (0..1_000).for_each(|_| all += one);
        assert!(
            (all.doubt() - 2.0 / 1_000_f64.sqrt()).abs() < 1e-6,
            "{}",
            all.doubt()
        );
        (0..1_000).for_each(|_| all -= one);
        assert_eq!(all, Demand::default());
    }

    #[test]
    fn what_runs_has_held_its_slots_since_its_steps() {
        let mut underway = Underway::default();
        let (short, long) = (
            Demand::of(16, Expected::certain(2), 16),
            Demand::of(160, Expected::certain(2), 16),
        );
        underway.add(10, short);
        underway.add(14, long);
        assert_eq!(
            (underway.slot_steps(20), underway.block_steps(20)),
            (16.0, 86.0)
        );
        underway.remove(10, short);
        assert_eq!(
            (underway.slot_steps(20), underway.block_steps(20)),
            (6.0, 66.0)
        );
    }
}
