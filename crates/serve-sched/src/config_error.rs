//! Combinations under which nothing could run, or next to nothing.

use serve_core::InvalidLimits;
use thiserror::Error;

use crate::order::LEVELS_MAX;

/// Settings under which nothing could ever run, or only at a crawl.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
#[non_exhaustive]
pub enum ConfigError {
    /// The device's limits are impossible.
    #[error(transparent)]
    Limits(#[from] InvalidLimits),
    /// A parameter is zero.
    #[error("{name} is 0; it must be at least 1")]
    Zero {
        /// The policy and its parameter.
        name: &'static str,
    },
    /// The order has more levels than are kept: requests that it tells apart there would be one lane.
    #[error("the order has {levels} levels; at most {LEVELS_MAX} are kept")]
    OrderLevels {
        /// How many it has.
        levels: usize,
    },
    /// The KV watermark is no less than the blocks that there are: no request could ever join
    /// another.
    #[error(
        "watermark_blocks is {blocks} of {usable} usable blocks, so that no request could join \
         another; it must be at most {}",
        usable.saturating_sub(1)
    )]
    Watermark {
        /// Blocks that are to be left available.
        blocks: u32,
        /// Blocks that there are.
        usable: u32,
    },
    /// Beside a full batch of decodes a step has at most one token left, so that a prompt of a
    /// thousand tokens would take a thousand steps.
    #[error(
        "step_tokens_max is {step_tokens_max} beside {sequences_max} sequences, of which each takes \
         a token, so that prompts would run one token a step; it must be at least {}",
        sequences_max.saturating_add(1)
    )]
    StepTokens {
        /// Positions in one step at most.
        step_tokens_max: u32,
        /// Requests in the batch at most.
        sequences_max: u32,
    },
}

impl ConfigError {
    /// Refuses a parameter that is given as zero.
    ///
    /// # Errors
    ///
    /// [`ConfigError::Zero`] when `value` is `Some(0)`.
    pub fn refuse_zero(name: &'static str, value: Option<u32>) -> Result<(), Self> {
        match value {
            Some(0) => Err(Self::Zero { name }),
            _ => Ok(()),
        }
    }

    /// Refuses a KV watermark under which every request would run alone.
    pub(crate) fn check_watermark(blocks: Option<u32>, usable: u32) -> Result<(), Self> {
        match blocks {
            Some(blocks) if blocks >= usable => Err(Self::Watermark { blocks, usable }),
            _ => Ok(()),
        }
    }

    /// Refuses steps in which a prompt gets one token beside a full batch. A single sequence has
    /// none beside it.
    pub(crate) fn check_step_tokens(step_tokens_max: u32, sequences_max: u32) -> Result<(), Self> {
        if sequences_max > 1 && step_tokens_max <= sequences_max {
            return Err(Self::StepTokens {
                step_tokens_max,
                sequences_max,
            });
        }
        Ok(())
    }
}
