//! Requests join and leave the batch at every step (Yu et al., *Orca*, OSDI 2022), and prompts are
//! run in chunks beside the decodes (Agrawal et al., *Sarathi-Serve*, OSDI 2024).
//!
//! Rule: running requests go on; whatever is left of the step's token budget goes to prompts, and who
//! waits joins as long as there is a slot, a token and room in the KV cache. A long prompt delays the
//! running decodes by one budgeted step at a time and never by more.

use super::{Batch, BatchView, Join};
use crate::ConfigError;
use crate::settings::Named;

/// As its family lists it.
pub(super) const POLICY: Named<dyn Batch> = Named {
    name: "continuous",
    settings: &[],
    build: |_| Box::new(Continuous::default()),
};

/// Requests join and leave at every step.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Continuous {
    /// Positions in one step at most; `None` is as many as the device can run. Smaller budgets give
    /// steadier inter-token times, larger ones earlier first tokens.
    pub step_tokens_max: Option<u32>,
    /// Requests running at most; `None` is as many as the device can hold.
    pub sequences_max: Option<u32>,
}

impl Batch for Continuous {
    fn name(&self) -> &'static str {
        POLICY.name
    }

    fn join(&mut self, view: &BatchView) -> Join {
        Join::UpTo(view.sequences_max.saturating_sub(view.running))
    }

    fn step_tokens_max(&self) -> Option<u32> {
        self.step_tokens_max
    }

    fn sequences_max(&self) -> Option<u32> {
        self.sequences_max
    }

    fn validate(&self) -> Result<(), ConfigError> {
        ConfigError::refuse_zero("continuous: step_tokens_max", self.step_tokens_max)?;
        ConfigError::refuse_zero("continuous: sequences_max", self.sequences_max)
    }
}
