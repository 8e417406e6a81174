//! The prompt that joined first gets all that it can use, then the next one.
//!
//! Rule: the order of joining, without a limit for one prompt. It finishes the most prompts soonest
//! where they are alike; a long one holds up all that come after it until it has been run.

use super::{Budget, Part, Prompt};
use crate::settings::Named;

/// As its family lists it.
pub(super) const POLICY: Named<dyn Budget> = Named {
    name: "first-come",
    settings: &[],
    build: |_| Box::new(FirstCome),
};

/// Prompts one after another, in the order in which they joined.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FirstCome;

impl Budget for FirstCome {
    fn name(&self) -> &'static str {
        POLICY.name
    }

    fn part(&self, _prompt: &Prompt<'_>) -> Part {
        Part::by_rank([0, 0])
    }
}
