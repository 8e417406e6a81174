//! What a scheduler is made of: one policy of each family, and the errors of a combination under
//! which nothing could run.

use serve_core::InvalidLimits;
use thiserror::Error;

use crate::admit::{Admit, QueueCap};
use crate::batch::{Batch, Continuous};
use crate::kv::KvSettings;
use crate::order::{Fifo, Order};
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
    /// Who yields.
    pub victim: Box<dyn Victim>,
    /// When and how often somebody yields.
    pub preemption: Preemption,
    /// How the KV cache is used.
    pub kv: KvSettings,
}

impl Default for Policies {
    /// First come, first served, behind a queue cap, in continuous batches.
    fn default() -> Self {
        Self {
            admit: vec![Box::new(QueueCap::default())],
            order: Box::new(Fifo),
            batch: Box::new(Continuous::default()),
            victim: Box::new(NewestOfLowestClass),
            preemption: Preemption::default(),
            kv: KvSettings::default(),
        }
    }
}

/// Settings under which nothing could ever run.
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
}
