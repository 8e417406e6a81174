//! What a scheduler needs of a device.

use thiserror::Error;

use crate::mock::StepLoad;
use crate::{RequestId, Span, StepId, StepOutcome, StepPlan, TokenId};

/// Something that runs steps: a GPU, a CPU, a mock.
///
/// The contract, which a conformance suite checks of every implementation:
///
/// - A call blocks until the step is done, and exactly one thread makes calls: a device serialises.
/// - The token sampled for a request depends on that request alone: not on what else is in the plan,
///   how its prompt was cut into segments, which blocks it was given and when, or whether it was
///   preempted and recomputed.
/// - A request that asks for log-probabilities is given them with each of its tokens, in
///   [`StepOutcome::logprobs`](crate::StepOutcome::logprobs), and nobody else is.
/// - A segment may start at position 0 again after a preemption; the tokens sampled before it are
///   then part of what is run, and the backend still knows them.
/// - After an error the next plan runs as if the failed one had not been asked for. The requests of
///   the failed plan are not named again, or with a block table that starts over.
pub trait Backend {
    /// What this device can hold. Constant for its lifetime.
    fn limits(&self) -> Limits;

    /// Runs one step and writes what came of it over `outcome`.
    ///
    /// # Errors
    ///
    /// [`BackendError::Step`] fails the plan's requests and no others; after
    /// [`BackendError::Lost`] every live request has lost its state.
    fn execute(&mut self, plan: &StepPlan, outcome: &mut StepOutcome) -> Result<(), BackendError>;

    /// How long `step` would take with this load, if that is known without running it and the step
    /// would not fail. A device does not know; a model of one does, which lets a simulation jump
    /// over steps that decide nothing.
    fn price(&self, step: StepId, load: &StepLoad) -> Option<Span> {
        let _ = (step, load);
        None
    }

    /// The token that would be sampled for `request` at `position`, if that is known without running
    /// anything: of all tokens or of none. A simulation that jumps needs it where prefixes are reused,
    /// as a prefix is told by its tokens.
    fn foresee(&self, request: RequestId, position: u32) -> Option<TokenId> {
        let _ = (request, position);
        None
    }
}

impl<B: Backend + ?Sized> Backend for Box<B> {
    fn limits(&self) -> Limits {
        (**self).limits()
    }

    fn execute(&mut self, plan: &StepPlan, outcome: &mut StepOutcome) -> Result<(), BackendError> {
        (**self).execute(plan, outcome)
    }

    fn price(&self, step: StepId, load: &StepLoad) -> Option<Span> {
        (**self).price(step, load)
    }

    fn foresee(&self, request: RequestId, position: u32) -> Option<TokenId> {
        (**self).foresee(request, position)
    }
}

/// Why a step did not run.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum BackendError {
    /// This step failed; the device goes on.
    #[error("the step failed: {cause}")]
    Step {
        /// The device's own words.
        cause: String,
    },
    /// The device is gone and so is everything that it held.
    #[error("the device was lost: {cause}")]
    Lost {
        /// The device's own words.
        cause: String,
    },
}

impl BackendError {
    /// The device's own words.
    pub fn cause(&self) -> &str {
        match self {
            Self::Step { cause } | Self::Lost { cause } => cause,
        }
    }
}

/// What a device can hold. A plan never exceeds it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Segments in one step at most.
    pub sequences_max: u32,
    /// Positions in one step at most, over all segments.
    pub step_tokens_max: u32,
    /// Positions of one request at most.
    pub context_max: u32,
    /// Positions in one KV block.
    pub block_size: u32,
    /// KV blocks in all, the null block included.
    pub blocks: u32,
}

/// Limits under which nothing could ever run.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
pub enum InvalidLimits {
    /// A limit is zero.
    #[error("{name} is 0; it must be at least 1")]
    Zero {
        /// The field.
        name: &'static str,
    },
    /// There is no block beside the null block.
    #[error("blocks is {blocks}; it must be at least 2, as block 0 is never allocated")]
    NoBlocks {
        /// The number given.
        blocks: u32,
    },
}

impl Limits {
    /// Blocks that may be allocated: all but the null block.
    pub fn usable_blocks(&self) -> u32 {
        self.blocks.saturating_sub(1)
    }

    /// Blocks that hold `positions` positions.
    pub fn blocks_for(&self, positions: u32) -> u32 {
        positions.div_ceil(self.block_size)
    }

    /// Checks that something can run under these limits.
    ///
    /// # Errors
    ///
    /// [`InvalidLimits`], naming the first limit that makes it impossible.
    pub fn validate(&self) -> Result<(), InvalidLimits> {
        let fields = [
            ("sequences_max", self.sequences_max),
            ("step_tokens_max", self.step_tokens_max),
            ("context_max", self.context_max),
            ("block_size", self.block_size),
        ];
        if let Some(&(name, _)) = fields.iter().find(|(_, value)| *value == 0) {
            return Err(InvalidLimits::Zero { name });
        }
        if self.blocks < 2 {
            return Err(InvalidLimits::NoBlocks {
                blocks: self.blocks,
            });
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMITS: Limits = Limits {
        sequences_max: 4,
        step_tokens_max: 64,
        context_max: 128,
        block_size: 16,
        blocks: 9,
    };

    #[test]
    fn impossible_limits_are_named() {
        assert_eq!(LIMITS.validate(), Ok(()));
        let zero = Limits {
            block_size: 0,
            ..LIMITS
        };
        assert_eq!(
            zero.validate().unwrap_err().to_string(),
            "block_size is 0; it must be at least 1"
        );
        let none = Limits {
            blocks: 1,
            ..LIMITS
        };
        assert_eq!(none.validate(), Err(InvalidLimits::NoBlocks { blocks: 1 }));
    }

    #[test]
    fn a_partly_filled_block_is_a_block() {
        assert_eq!(LIMITS.blocks_for(16), 1);
        assert_eq!(LIMITS.blocks_for(17), 2);
        assert_eq!(LIMITS.usable_blocks(), 8);
    }
}
