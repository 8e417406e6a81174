//! As many requests wait as can be given their first token within a target.
//!
//! Rule: refuse when the predicted wait and the time that the request's own prompt takes exceed the target. A
//! request that starts at once is taken however long its prompt is, as it is not helped by being refused; and
//! everybody is taken before anything was measured.
//!
//! Unlike [`LatencyBudget`](super::LatencyBudget) it does not depend on how long answers are, which a server
//! often cannot know, and is the promise to make for answers that are streamed.

use serve_core::{Limit, Refusal, Request, Span, Time};

use super::{Admission, Admit, Load};
use crate::settings::{Setting, Settings};

/// As its family lists it.
pub(super) const POLICY: Admission = Admission {
    name: "first-token-budget",
    settings: &[&FIRST_TOKEN_BUDGET.row],
    reads_tenants: false,
    build: |settings| match settings.get(&FIRST_TOKEN_BUDGET) {
        Span::ZERO => Vec::new(),
        target => vec![Box::new(FirstTokenBudget::new(target))],
    },
    by_default: || Box::new(FirstTokenBudget::default()),
};

const FIRST_TOKEN_BUDGET: Setting<Span> = Setting::seconds(
    "first_token_budget",
    "Seconds within which every request that is taken is to have its first token, by measurement; 0 is no \
     such limit",
    Span::ZERO,
);

/// As many requests wait as can be given their first token within a target.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FirstTokenBudget {
    target: Span,
}

impl FirstTokenBudget {
    /// First tokens are to come within `target` of the admission; zero turns the policy off.
    pub const fn new(target: Span) -> Self {
        Self { target }
    }
}

impl Default for FirstTokenBudget {
    /// Two seconds.
    fn default() -> Self {
        Self::new(Span::from_secs(2))
    }
}

impl Admit for FirstTokenBudget {
    fn name(&self) -> &'static str {
        POLICY.name
    }

    fn change(&mut self, settings: &Settings, _now: Time) {
        self.target = settings.get(&FIRST_TOKEN_BUDGET);
    }

    fn admit(&mut self, _request: &Request, load: &Load<'_>) -> Result<(), Refusal> {
        let (Some(wait), Some(prompt)) = (load.time_to_start(), load.time_to_first_token()) else {
            return Ok(());
        };
        let (predicted, target) = (wait + prompt, self.target);
        if target.is_zero() || predicted <= target || wait.is_zero() {
            return Ok(());
        }
        Err(Refusal::Later {
            limit: Limit::FirstTokenBudget { predicted, target },
            retry_after: load.retry_after(Some(predicted.saturating_sub(target).min(wait))),
        })
    }
}

#[cfg(test)]
mod tests {
    use serve_core::{RequestId, Time, TokenId};

    use super::*;
    use crate::Demand;
    use crate::lengths::Expected;
    use crate::load::tests::{crowded, steps_of_ten_ms};

    /// Steps of 10 ms and 1 ms for each prompt token, one slot, `ahead` prompts of 100 tokens and answers of 50
    /// waiting: 0.6 s each.
    fn admit(ahead: u64, prompt: u32) -> Result<(), Refusal> {
        let pace = steps_of_ten_ms();
        let one = Demand::of(100, Expected::certain(50), 16);
        let mut load = crowded(&pace, 1);
        (0..ahead).for_each(|_| load.ahead += one);
        load.own = Demand::of(prompt, Expected::certain(50), 16);
        let tokens = vec![TokenId::new(1); prompt as usize];
        let request = Request::new(RequestId::new(1), Time::ZERO, tokens, 50).unwrap();
        FirstTokenBudget::new(Span::from_secs(2)).admit(&request, &load)
    }

    #[test]
    fn the_wait_and_the_own_prompt_have_to_fit() {
        // Two and a half requests, and 0.11 s.
        assert_eq!(admit(2, 100), Ok(()));
        let refusal = admit(3, 100).unwrap_err();
        let Limit::FirstTokenBudget { predicted, .. } = refusal.limit() else {
            panic!("{refusal}");
        };
        assert!((predicted.as_secs_f64() - 2.21).abs() < 0.1, "{predicted}");
        let after = refusal.retry_after().unwrap();
        assert_eq!(after, predicted.saturating_sub(Span::from_secs(2)));
        assert!(admit(2, 900).is_err(), "a prompt of 0.9 s");
    }

    #[test]
    fn a_long_prompt_that_starts_at_once_is_taken() {
        let pace = steps_of_ten_ms();
        let load = Load {
            own: Demand::of(50_000, Expected::certain(1), 16),
            ..Load::idle(1, &pace)
        };
        let tokens = vec![TokenId::new(1); 50_000];
        let request = Request::new(RequestId::new(1), Time::ZERO, tokens, 1).unwrap();
        assert_eq!(FirstTokenBudget::default().admit(&request, &load), Ok(()));
    }
}
