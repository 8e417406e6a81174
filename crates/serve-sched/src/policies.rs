//! What a scheduler is made of: one policy of each family.

use crate::admit::{Admit, QueueCap};
use crate::batch::{Batch, Continuous};
use crate::budget::{Budget, FirstCome};
use crate::kv::KvSettings;
use crate::lengths::{Lengths, SeenLengths};
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
#[derive(Debug)]
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
