//! Which prompts get this step's tokens, and how many of them?
//!
//! Decodes are not asked about: each takes its one token in every step. What is left of the step
//! goes to the prompts of the batch, and that is what a budget shares out.

mod class_first;
mod first_come;
mod inter_token_target;

pub use class_first::ClassFirst;
pub use first_come::FirstCome;
pub use inter_token_target::InterTokenTarget;

use serve_core::{Request, Time};

use crate::ConfigError;
use crate::settings::{Named, Setting};
pub use crate::step_cost::StepCost;

/// Which budget policy it is.
pub const BUDGET: Setting<&'static str> = Setting::name(
    "budget",
    "Which prompts get a step's tokens",
    "first-come",
    || Named::names(BUDGETS),
);

/// Every budget policy, with its settings.
pub const BUDGETS: &[Named<dyn Budget>] = &[
    first_come::POLICY,
    class_first::POLICY,
    inter_token_target::POLICY,
];

/// A rule for sharing a step's prompt tokens. The one method that matters is [`part`](Self::part).
///
/// The mechanism gives each prompt what it asks for, up to its part, in the order of the ranks; what
/// is left then goes, in the same order, to those that want more. It also sees to what holds
/// whatever a policy says: every decode has its token, prompts get at least one token between them
/// if the step has any left, and the head of the queue joins when it would get some.
///
/// ```
/// use serve_sched::budget::{Budget, Part, Prompt};
///
/// /// The prompt that is soonest done goes first.
/// struct ShortestRemaining;
///
/// impl Budget for ShortestRemaining {
///     fn name(&self) -> &'static str {
///         "shortest-remaining"
///     }
///
///     fn part(&self, prompt: &Prompt<'_>) -> Part {
///         Part::by_rank([u64::from(prompt.pending), prompt.sequence])
///     }
/// }
/// ```
pub trait Budget: Send {
    /// The name in settings.
    fn name(&self) -> &'static str;

    /// Where a prompt stands in the step and how many tokens it gets while others want some. Asked
    /// of each prompt once a step, and of the head of the queue.
    fn part(&self, prompt: &Prompt<'_>) -> Part;

    /// How many tokens the prompts of the step get together, of [`StepView::tokens_left`]: all of
    /// them, unless a policy keeps the step short.
    fn prompt_tokens(&self, step: &StepView) -> u32 {
        step.tokens_left
    }

    /// Checks the parameters.
    ///
    /// # Errors
    ///
    /// [`ConfigError`], naming the parameter and what it may be.
    fn validate(&self) -> Result<(), ConfigError> {
        Ok(())
    }
}

/// A prompt as a policy sees it: a request of which more than one position has to be run before its
/// next token. That is also a request that runs again after a preemption.
#[derive(Clone, Copy, Debug)]
pub struct Prompt<'a> {
    /// The request.
    pub request: &'a Request,
    /// Its place in the order of arrival at the gate, kept through preemptions.
    pub sequence: u64,
    /// Positions that are still to be run.
    pub pending: u32,
    /// How often it has been preempted.
    pub preemptions: u32,
    /// Whether the order lets nobody pass it any more, of whatever class.
    pub aged: bool,
}

/// The step that is being planned.
#[derive(Clone, Copy, Debug)]
pub struct StepView {
    /// When it begins.
    pub now: Time,
    /// Requests that get their one token in it.
    pub decodes: u32,
    /// Tokens of the step beside those.
    pub tokens_left: u32,
    /// What a step with decodes in it has lately cost.
    pub cost: StepCost,
}

/// A prompt's part of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Part {
    /// The lowest goes first, compared field by field; of equals, the one that joined first.
    pub rank: [u64; 2],
    /// Tokens that it gets while others want some; at least 1.
    pub tokens_max: u32,
}

impl Part {
    /// All that the prompt wants, in its turn.
    pub const fn by_rank(rank: [u64; 2]) -> Self {
        Self {
            rank,
            tokens_max: u32::MAX,
        }
    }
}
