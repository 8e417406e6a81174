//! What a scheduler holds and what it has done, as plain numbers for metrics and tests.

use serve_core::Class;

use super::Scheduler;
use crate::kv::PoolStats;

/// A reading of a scheduler. At every instant
/// `arrived = finished + refused + cancelled + failed + waiting + running`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct Stats {
    /// Requests in the queue, the preempted included.
    pub waiting: u32,
    /// Prompt tokens of the requests in the queue.
    pub waiting_prompt_tokens: u64,
    /// Requests in the batch.
    pub running: u32,
    /// KV blocks.
    pub blocks: PoolStats,
    /// Events counted since the start.
    pub counters: Counters,
    /// The same for each class that was ever seen, highest first.
    pub classes: Vec<ClassStats>,
}

/// A reading of one class.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct ClassStats {
    /// The class.
    pub class: Class,
    /// Requests in the queue.
    pub waiting: u32,
    /// Requests in the batch.
    pub running: u32,
    /// Events counted since the start; steps are not counted by class.
    pub counters: Counters,
}

/// Events counted since the start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct Counters {
    /// Requests submitted.
    pub arrived: u64,
    /// Requests not taken in.
    pub refused: u64,
    /// Requests that ended by themselves.
    pub finished: u64,
    /// Requests cancelled.
    pub cancelled: u64,
    /// Requests that the backend failed.
    pub failed: u64,
    /// Times that a running request had to wait again.
    pub preempted: u64,
    /// Steps planned that run something.
    pub steps: u64,
    /// Of those, steps that failed.
    pub steps_failed: u64,
    /// Positions run of more than one for a segment: prompts, and what is run again.
    pub prefill_tokens: u64,
    /// Tokens sampled, stop tokens included.
    pub output_tokens: u64,
    /// Positions found in the prefix cache.
    pub cached_tokens: u64,
}

impl Scheduler {
    /// A reading of the scheduler.
    pub fn stats(&self) -> Stats {
        let classes = self.by_class.iter().zip(0_u8..).map(|(counts, rank)| {
            let class = Class::new(rank);
            ClassStats {
                class,
                waiting: self.gate.len_of(class),
                running: counts.running,
                counters: counts.counters,
            }
        });
        Stats {
            waiting: self.gate.len(),
            waiting_prompt_tokens: self.gate.load(self.now).ahead.prompt_tokens,
            running: self.gate.running(),
            blocks: self.pool.stats(),
            counters: self.counters,
            classes: classes.filter(|class| class.counters.arrived > 0).collect(),
        }
    }
}
