//! What a scheduler is made of: one policy of each family, and the errors of a combination under
//! which nothing could run, or next to nothing.

use serve_core::InvalidLimits;
use thiserror::Error;

use crate::admit::{Admit, QueueCap};
use crate::batch::{Batch, Continuous};
use crate::budget::{Budget, FirstCome};
use crate::kv::KvSettings;
use crate::lengths::{Lengths, SeenLengths};
use crate::order::{Fifo, LEVELS_MAX, Order};
use crate::victim::{NewestOfLowestClass, Preemption, Victim};

/// The policies of a [`Scheduler`](crate::Scheduler). Start from the default and replace what the
/// experiment is about:
///
/// ```
/// use serve_sched::{Policies, batch::Static};
///
/// let policies = Policies {
///     batch: Box::new(Static::default()),
///     ..Policies::default()
/// };
/// # assert_eq!(policies.batch.name(), "static");
/// ```
pub struct Policies {
    /// Who is taken in; every one of them has to agree. None takes everybody in.
    pub admit: Vec<Box<dyn Admit>>,
    /// Who is next.
    pub order: Box<dyn Order>,
    /// When a batch forms and who may join it.
    pub batch: Box<dyn Batch>,
    /// Which prompts get a step's tokens.
    pub budget: Box<dyn Budget>,
    /// Who is preempted.
    pub victim: Box<dyn Victim>,
    /// When and how often.
    pub preemption: Preemption,
    /// How the KV cache is used.
    pub kv: KvSettings,
    /// How long answers are expected to be, for admission policies that predict.
    pub lengths: Box<dyn Lengths>,
}

impl Default for Policies {
    /// First come, first served, behind a queue cap, in continuous batches.
    fn default() -> Self {
        Self {
            admit: vec![Box::new(QueueCap::default())],
            order: Box::new(Fifo),
            batch: Box::new(Continuous::default()),
            budget: Box::new(FirstCome),
            victim: Box::new(NewestOfLowestClass),
            preemption: Preemption::default(),
            kv: KvSettings::default(),
            lengths: Box::new(SeenLengths::new()),
        }
    }
}

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
