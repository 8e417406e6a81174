//! When does a batch form, and who may join it?

mod continuous;
mod one_at_a_time;
mod static_batch;

pub use continuous::Continuous;
pub use one_at_a_time::OneAtATime;
pub use static_batch::{Static, Window};

use serve_core::Time;

use crate::ConfigError;
use crate::settings::{Named, Setting};

/// Which batch policy it is.
pub const BATCH: Setting<&'static str> = Setting::name(
    "batch",
    "When a batch forms and who may join it; `static` waits for --max-batch requests",
    "continuous",
    || Named::names(BATCHES),
);

/// Every batch policy, with its settings.
pub const BATCHES: &[Named<dyn Batch>] = &[
    continuous::POLICY,
    one_at_a_time::POLICY,
    static_batch::POLICY,
];

/// A rule for forming batches. The one method that matters is [`join`](Self::join).
///
/// The mechanism sees to the rest: running requests are served before any joins, a prompt is cut to
/// the step's token budget, the device's limits hold, and who joins is the head of the queue.
pub trait Batch: Send {
    /// The name in the journal.
    fn name(&self) -> &'static str;

    /// How many waiting requests may join the batch in the step that is being planned. Asked before
    /// a step, when something waits. Where the answer can change by the mere passing of time it must
    /// be [`Join::Hold`] with that time.
    fn join(&mut self, view: &BatchView) -> Join;

    /// Whether a waiting request may ever join requests that run already. Predictions of the wait
    /// depend on it.
    fn joins_running(&self) -> bool {
        true
    }

    /// Positions in one step at most, if fewer than the device can run.
    fn step_tokens_max(&self) -> Option<u32> {
        None
    }

    /// Requests in the batch at most, if fewer than the device can hold.
    fn sequences_max(&self) -> Option<u32> {
        None
    }

    /// A request has come to the gate.
    fn arrived(&mut self, now: Time) {
        let _ = now;
    }

    /// Checks the parameters.
    ///
    /// # Errors
    ///
    /// [`ConfigError`], naming the parameter under which nothing could run.
    fn validate(&self) -> Result<(), ConfigError> {
        Ok(())
    }
}

/// What a batch policy may know of the moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BatchView {
    /// The time.
    pub now: Time,
    /// Requests in the batch.
    pub running: u32,
    /// Requests waiting.
    pub waiting: u32,
    /// Since when the longest-waiting of them waits.
    pub oldest_since: Time,
    /// Requests that the device can hold at once.
    pub sequences_max: u32,
}

/// Who may join.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Join {
    /// So many, from the head of the queue, as long as the step has tokens left for their prompts.
    UpTo(u32),
    /// A whole batch of at most so many: also requests whose prompts begin in a later step, because
    /// nobody can join then.
    Batch(u32),
    /// Nobody yet; ask again at this time, or after the next arrival.
    Hold {
        /// When to ask again; later than now.
        until: Time,
    },
}
