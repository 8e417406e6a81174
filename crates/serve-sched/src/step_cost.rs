//! What a step with decodes in it costs: so much for the decodes, so much for each prompt token.
//!
//! ```text
//! time of a step = decodes + prompt_token x prompt tokens
//! ```
//!
//! Two numbers, corrected by each step that is measured (a normalised least-mean-squares filter;
//! Widrow and Hoff, *Adaptive switching circuits*, 1960). A step without prompts is about the first
//! number alone. One that was slower than foreseen is believed at once: both numbers grow alike, as if the
//! device had become so much slower. One that was faster is believed by an eighth, and the difference
//! goes to both in proportion to the squares of their parts of the step: the smallest relative change
//! that explains it. So the estimate follows the slow steps: what it is for is a bound. Until a step
//! without prompts has been measured, all is taken for the prompts'.
//!
//! A step counts for twice of what was foreseen at most, so that one stall of the machine is forgotten in
//! tens of steps, and a device that has become `f` times slower is known for it after `log2 f` of them.
//! For the same reason nothing is foreseen for a step of more than twice the prompt tokens that were
//! tried lately: a cost that is no straight line is found out by doubling.
//!
//! Plain arithmetic only: the same steps give the same bits anywhere.

use serve_core::Span;

/// The measured cost of steps with decodes in them. Each reading is `None` until there is something
/// to read from.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct StepCost {
    /// Seconds for the decodes of a step.
    decodes: Option<f64>,
    /// Seconds for one prompt token.
    prompt_token: Option<f64>,
    /// The most prompt tokens in a step, as of late.
    tried: u32,
}

/// How much of the difference is believed when a step was faster than foreseen.
const FASTER: f64 = 1.0 / 8.0;

/// All prompt tokens of a step cost at least this part of its decodes: a step that took no longer
/// with them does not make them free.
const LEAST: f64 = 1.0 / 1000.0;

impl StepCost {
    /// How long the decodes of a step take without any prompt.
    pub fn decodes(&self) -> Option<Span> {
        self.decodes.map(Span::from_secs_f64)
    }

    /// How many prompt tokens a step may run beside its decodes, so that it takes no longer than
    /// `target`: none if the decodes alone take longer, and no more than twice of what was tried.
    pub fn prompt_tokens_within(&self, target: Span) -> Option<u32> {
        let prompt_token = self.prompt_token?;
        let left = target.as_secs_f64() - self.decodes.unwrap_or(0.0);
        // A cast takes what is beyond the numbers for the nearest one.
        let within = (left / prompt_token) as u32;
        Some(within.min(self.tried.saturating_mul(2)))
    }

    /// A step with decodes in it ran `prompt_tokens` beside them in `elapsed`.
    pub(crate) fn stepped(&mut self, prompt_tokens: u32, elapsed: Span) {
        let secs = elapsed.as_secs_f64();
        match (prompt_tokens, self.decodes) {
            (0, None) => {
                self.decodes = Some(secs);
                // It was taken for the cost of the whole step.
                self.prompt_token = None;
            }
            (0, Some(decodes)) => self.decodes = Some(decodes + correction(decodes, secs)),
            (tokens, decodes) => self.mixed(decodes.unwrap_or(0.0), f64::from(tokens), secs),
        }
        if prompt_tokens > 0 {
            self.tried = prompt_tokens.max(self.tried - self.tried / 8);
        }
    }

    fn mixed(&mut self, decodes: f64, tokens: f64, secs: f64) {
        let Some(prompt_token) = self.prompt_token else {
            let prompts = (secs - decodes).max(decodes * LEAST);
            self.prompt_token = Some(prompts / tokens);
            return;
        };
        let prompts = prompt_token * tokens;
        let foreseen = decodes + prompts;
        if foreseen <= 0.0 {
            self.prompt_token = Some(secs / tokens);
            return;
        }
        let correction = correction(foreseen, secs);
        let of_decodes = match correction > 0.0 {
            true => decodes / foreseen,
            false => decodes * decodes / (decodes * decodes + prompts * prompts),
        };
        // Neither is forgotten by one step, or it could not be found again.
        let prompts = (prompts + correction * (1.0 - of_decodes)).max(prompts / 2.0);
        self.prompt_token = Some(prompts / tokens);
        if self.decodes.is_some() {
            self.decodes = Some((decodes + correction * of_decodes).max(decodes / 2.0));
        }
    }
}

/// What is believed of a step that took `secs` and not `foreseen`.
fn correction(foreseen: f64, secs: f64) -> f64 {
    let difference = secs - foreseen;
    match difference > 0.0 {
        true => difference.min(foreseen),
        false => difference * FASTER,
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// A step's time in nanoseconds under a straight line.
    fn line(decode_us: u64, token_us: u64, tokens: u32) -> Span {
        Span::from_micros(decode_us + token_us * u64::from(tokens))
    }

    #[test]
    fn nothing_measured_is_nothing_known() {
        let cost = StepCost::default();
        assert_eq!(cost.decodes(), None);
        assert_eq!(cost.prompt_tokens_within(Span::from_secs(1)), None);
    }

    #[test]
    fn a_straight_line_is_known_from_two_steps() {
        let mut cost = StepCost::default();
        cost.stepped(0, line(10_000, 50, 0));
        cost.stepped(400, line(10_000, 50, 400));
        let within = cost.prompt_tokens_within(Span::from_millis(50)).unwrap();
        assert!((799..=800).contains(&within), "{within}");
        let within = cost.prompt_tokens_within(Span::from_millis(20)).unwrap();
        assert!((199..=200).contains(&within), "{within}");
        assert_eq!(cost.prompt_tokens_within(Span::from_millis(9)), Some(0));
    }

    #[test]
    fn no_more_than_twice_of_what_was_tried_is_foreseen() {
        let mut cost = StepCost::default();
        cost.stepped(0, line(10_000, 50, 0));
        cost.stepped(32, line(10_000, 50, 32));
        assert_eq!(cost.prompt_tokens_within(Span::from_secs(9)), Some(64));
    }

    #[test]
    fn the_estimate_follows_the_slow_steps_and_not_the_fast_ones() {
        let mut cost = StepCost::default();
        let target = Span::from_millis(50);
        cost.stepped(0, line(10_000, 50, 0));
        for step in 0..40 {
            let tokens = cost.prompt_tokens_within(target).unwrap_or(0).max(400);
            let slow = line(10_000, 50, tokens);
            assert!(slow <= target + target / 20, "{slow} in step {step}");
            // Every other step is a fifth faster.
            let took = if step % 2 == 0 {
                slow
            } else {
                slow.mul_div(4, 5)
            };
            cost.stepped(tokens, took);
        }
    }

    #[test]
    fn one_stall_is_forgotten() {
        let mut cost = StepCost::default();
        let target = Span::from_millis(30);
        (0..10).for_each(|_| cost.stepped(0, line(10_000, 50, 0)));
        (0..10).for_each(|_| cost.stepped(400, line(10_000, 50, 400)));
        let before = cost.prompt_tokens_within(target).unwrap();
        cost.stepped(400, Span::from_secs(10));
        assert!(cost.prompt_tokens_within(target).unwrap() < before / 2);
        for _ in 0..60 {
            let tokens = cost.prompt_tokens_within(target).unwrap().max(8);
            cost.stepped(tokens, line(10_000, 50, tokens));
        }
        let after = cost.prompt_tokens_within(target).unwrap();
        assert!(after * 10 > before * 9, "{after} of {before}");
    }

    proptest! {
        /// Steered by the estimate from nothing, whatever the line: the target is kept once one step
        /// of each kind was measured.
        #[test]
        fn steered_by_it_a_step_keeps_its_target(
            decode_us in 1_u64..40_000,
            token_us in 0_u64..5_000,
            prompts in prop::collection::vec(0_u32..3_000, 1..60),
        ) {
            let (mut cost, target, least) = (StepCost::default(), Span::from_millis(50), 16);
            cost.stepped(0, line(decode_us, token_us, 0));
            for pending in prompts {
                let within = cost.prompt_tokens_within(target).unwrap_or(0);
                let tokens = within.max(least).min(pending);
                let took = line(decode_us, token_us, tokens);
                let allowed = target.max(line(decode_us, token_us, tokens.min(least)));
                prop_assert!(took <= allowed + Span::from_nanos(10), "{took} of {allowed}");
                cost.stepped(tokens, took);
            }
        }

        /// The same without a step that only decodes, which a full load may never show: each step is
        /// over by no more than the decodes, and in the end by nothing.
        #[test]
        fn without_a_step_of_decodes_it_is_over_by_those_at_most(
            decode_us in 1_u64..40_000,
            token_us in 1_u64..2_000,
        ) {
            let (mut cost, target, least) = (StepCost::default(), Span::from_millis(50), 16);
            let mut last = Span::ZERO;
            for step in 0..200 {
                let tokens = cost.prompt_tokens_within(target).unwrap_or(0).max(least);
                last = line(decode_us, token_us, tokens);
                let allowed = target.max(line(decode_us, token_us, least));
                let over = last.saturating_sub(allowed);
                prop_assert!(over <= Span::from_micros(decode_us), "{last} in step {step}");
                cost.stepped(tokens, last);
            }
            let allowed = target.max(line(decode_us, token_us, least));
            prop_assert!(last <= allowed + Span::from_micros(token_us), "{last} at last");
        }

        /// What becomes dearer is over once for each doubling, and then no more.
        #[test]
        fn a_dearer_step_is_known_after_as_many_steps_as_it_doubled(
            decode_us in 1_000_u64..4_000,
            token_us in 10_u64..200,
            times in 1_u64..9,
        ) {
            let (mut cost, target, least) = (StepCost::default(), Span::from_millis(50), 1);
            cost.stepped(0, line(decode_us, token_us, 0));
            let mut step = |decode_us, token_us| {
                let tokens = cost.prompt_tokens_within(target).unwrap_or(0).max(least);
                let took = line(decode_us, token_us, tokens);
                cost.stepped(tokens, took);
                took
            };
            (0..40).for_each(|_| { step(decode_us, token_us); });
            for steps in 0..40 {
                let took = step(decode_us * times, token_us * times);
                let allowed = target.mul_div(times, 1 << steps.min(10)).max(target);
                prop_assert!(took <= allowed + target / 100, "{took} after {steps}");
            }
        }
    }
}
