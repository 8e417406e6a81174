//! A step with decodes in it runs as many prompt tokens as fit into a target for the time between two
//! tokens (Agrawal et al., *Sarathi-Serve*, OSDI 2024: a chunk sized for the time between tokens;
//! here the size follows what steps have been measured to cost).
//!
//! Rule: prompt tokens of a step = the most for which [`StepCost`](super::StepCost) foresees no more
//! than `target`, at least `prompt_tokens_min`; all that the step has left if nothing decodes in it.
//! Which prompts get them is as under [`ClassFirst`](super::ClassFirst).
//!
//! Before anything was measured, and where the decodes alone take longer than the target, prompts go
//! on by `prompt_tokens_min` a step. So the longest that a decode waits for its next token is
//!
//! ```text
//! max(target, decodes alone + prompt_tokens_min x cost of a prompt token)
//! ```
//!
//! for a cost that does not change. Where a step becomes dearer, by more decodes beside it or a slower
//! device, that step takes longer by so much, and the next ones know: after `log2 f` steps if
//! everything became `f` times dearer.

use std::num::NonZeroU32;

use serve_core::Span;

use super::class_first::PROMPT_TOKENS_MAX;
use super::{Budget, ClassFirst, Part, Prompt, StepView};
use crate::ConfigError;
use crate::settings::{Named, Setting, Settings};

/// As its family lists it.
pub(super) const POLICY: Named<dyn Budget> = Named {
    name: "inter-token-target",
    settings: &[
        &INTER_TOKEN_TARGET.row,
        &PROMPT_TOKENS_MIN.row,
        &PROMPT_TOKENS_MAX.row,
    ],
    build: |settings| Box::new(InterTokenTarget::of(settings)),
};

const INTER_TOKEN_TARGET: Setting<Span> = Setting::seconds(
    "inter_token_target",
    "Seconds between two tokens of an answer that prompts are to leave, by measurement",
    Span::from_millis(50),
)
.checked(|settings| match settings.get(&INTER_TOKEN_TARGET) {
    Span::ZERO => Err("it must be above 0".to_owned()),
    _ => Ok(()),
});

const PROMPT_TOKENS_MIN: Setting<NonZeroU32> = Setting::one_or_more(
    "prompt_tokens_min",
    "Tokens by which prompts go on in each step, whatever the target",
    NonZeroU32::new(32).unwrap(),
);

/// Prompt tokens beside decodes as a target for the time between tokens allows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InterTokenTarget {
    target: Span,
    prompt_tokens_min: u32,
    prompts: ClassFirst,
}

impl InterTokenTarget {
    /// With the target of the settings.
    fn of(settings: &Settings) -> Self {
        let min = settings.get(&PROMPT_TOKENS_MIN);
        let target = Self::new(settings.get(&INTER_TOKEN_TARGET), min.get());
        target.with_prompts(ClassFirst::of(settings))
    }

    /// Steps with decodes in them take no longer than `target`, as far as `prompt_tokens_min` prompt
    /// tokens in each allow.
    pub const fn new(target: Span, prompt_tokens_min: u32) -> Self {
        Self {
            target,
            prompt_tokens_min,
            prompts: ClassFirst::new(None),
        }
    }

    /// Shares what prompts get in the way of `prompts`.
    #[must_use]
    pub const fn with_prompts(mut self, prompts: ClassFirst) -> Self {
        self.prompts = prompts;
        self
    }
}

impl Default for InterTokenTarget {
    /// 50 ms, twenty tokens a second, which is faster than people read; prompts go on by at least 32
    /// tokens a step.
    fn default() -> Self {
        Self::new(Span::from_millis(50), 32)
    }
}

impl Budget for InterTokenTarget {
    fn name(&self) -> &'static str {
        POLICY.name
    }

    fn part(&self, prompt: &Prompt<'_>) -> Part {
        self.prompts.part(prompt)
    }

    fn prompt_tokens(&self, step: &StepView) -> u32 {
        if step.decodes == 0 {
            return step.tokens_left;
        }
        let within = step.cost.prompt_tokens_within(self.target);
        within.unwrap_or(0).max(self.prompt_tokens_min)
    }

    fn validate(&self) -> Result<(), ConfigError> {
        let nanos = u32::try_from(self.target.as_nanos()).unwrap_or(u32::MAX);
        ConfigError::refuse_zero("inter-token-target: target", Some(nanos))?;
        let least = Some(self.prompt_tokens_min);
        ConfigError::refuse_zero("inter-token-target: prompt_tokens_min", least)?;
        self.prompts.validate()
    }
}
