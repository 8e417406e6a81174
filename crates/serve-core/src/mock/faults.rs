//! Which steps go wrong, and how: seeded, so that a failing run can be run again.

use crate::rng::mix2;
use crate::{Span, StepId};

/// How often steps go wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Faults {
    /// Of a million steps, how many fail.
    pub errors_per_million: u32,
    /// Of a million steps, how many take `stall` longer.
    pub stalls_per_million: u32,
    /// How much longer a stalled step takes.
    pub stall: Span,
}

/// What goes wrong in a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The step fails.
    Error,
    /// The step takes this much longer.
    Stall(Span),
}

impl Faults {
    /// A device that never fails.
    pub const NONE: Self = Self {
        errors_per_million: 0,
        stalls_per_million: 0,
        stall: Span::ZERO,
    };

    /// What goes wrong in `step`, as a pure function of the seed and the step.
    pub fn at(&self, seed: u64, step: StepId) -> Option<Fault> {
        if *self == Self::NONE {
            return None;
        }
        // A stream of its own, so that faults and tokens are independent.
        let draw = mix2(seed ^ 0xFA17, step.get()) % 1_000_000;
        let errors = u64::from(self.errors_per_million);
        if draw < errors {
            Some(Fault::Error)
        } else if draw < errors + u64::from(self.stalls_per_million) {
            Some(Fault::Stall(self.stall))
        } else {
            None
        }
    }
}

impl Default for Faults {
    fn default() -> Self {
        Self::NONE
    }
}
