//! A higher class's prompts go first, and no prompt takes a whole step while others want some of it.
//!
//! Rule: prompts by (class, arrival), each up to `prompt_tokens_max` tokens of the step; what is left
//! then goes in the same order to those that want more. A request that the order lets nobody pass any
//! more goes before all classes, so that what an aging order has promised is not taken back here.
//!
//! Bound: a prompt of `n` tokens that fits into a slot waits for no prompt of a lower class. Among
//! prompts of its own class that came before, at most `step tokens / prompt_tokens_max` run beside
//! it, none of which holds it up longer than that share of a step.

use super::{Budget, Part, Prompt};
use crate::ConfigError;
use crate::settings::{Named, Setting, Settings};

/// As its family lists it.
pub(super) const POLICY: Named<dyn Budget> = Named {
    name: "class-first",
    settings: &[&PROMPT_TOKENS_MAX.row],
    build: |settings| Box::new(ClassFirst::of(settings)),
};

/// What one prompt gets of a step.
pub(super) const PROMPT_TOKENS_MAX: Setting<u32> = Setting::count(
    "prompt_tokens_max",
    "Tokens of a step that one prompt gets while others want some; 0 is all that it can use",
    512,
);

/// Prompts by class and arrival, several side by side.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClassFirst {
    prompt_tokens_max: Option<u32>,
}

impl ClassFirst {
    /// With the tokens of the settings.
    pub(super) fn of(settings: &Settings) -> Self {
        let tokens = settings.get(&PROMPT_TOKENS_MAX);
        Self::new((tokens > 0).then_some(tokens))
    }

    /// One prompt gets at most `prompt_tokens_max` tokens of a step while others want some; `None`
    /// is all that it can use.
    pub const fn new(prompt_tokens_max: Option<u32>) -> Self {
        Self { prompt_tokens_max }
    }
}

impl Default for ClassFirst {
    /// 512 tokens for a prompt: four side by side in a step of 2,048.
    fn default() -> Self {
        Self::of(&Settings::default())
    }
}

impl Budget for ClassFirst {
    fn name(&self) -> &'static str {
        POLICY.name
    }

    fn part(&self, prompt: &Prompt<'_>) -> Part {
        let class = match prompt.aged {
            true => 0,
            false => 1 + u64::from(prompt.request.class().rank()),
        };
        Part {
            rank: [class, prompt.sequence],
            tokens_max: self.prompt_tokens_max.unwrap_or(u32::MAX),
        }
    }

    fn validate(&self) -> Result<(), ConfigError> {
        ConfigError::refuse_zero("class-first: prompt_tokens_max", self.prompt_tokens_max)
    }
}

#[cfg(test)]
mod tests {
    use serve_core::{Class, Request, RequestId, Time, TokenId};

    use super::*;

    fn rank(class: u8, sequence: u64, aged: bool) -> [u64; 2] {
        let request = Request::new(RequestId::new(1), Time::ZERO, [TokenId::new(1)], 1)
            .unwrap()
            .with_class(Class::new(class));
        let prompt = Prompt {
            request: &request,
            sequence,
            pending: 10,
            preemptions: 0,
            aged,
        };
        ClassFirst::default().part(&prompt).rank
    }

    #[test]
    fn the_aged_go_before_the_classes_and_the_older_before_the_newer() {
        let ranks = [
            rank(2, 3, true),
            rank(2, 9, true),
            rank(0, 1, false),
            rank(0, 2, false),
            rank(1, 0, false),
            rank(255, 0, false),
        ];
        assert!(ranks.is_sorted(), "{ranks:?}");
    }
}
