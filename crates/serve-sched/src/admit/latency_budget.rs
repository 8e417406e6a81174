//! As many requests wait as can be answered within a target.
//!
//! Rule: refuse when the predicted time to the end of the request exceeds the target,
//!
//! ```text
//! predicted = time to start  +  time that its own tokens take, each as 99 of 100 keep to
//! ```
//!
//! both from what was measured: see [`Load::time_to_start`] and [`Load::time_to_serve`]. Before anything has
//! run nothing is known, and everybody is admitted.
//!
//! Where output limits tell how long answers are, that is kept whatever the limit of the device is: slots, KV
//! blocks, step tokens, or a mixture. Where they do not, the *wait* is what is kept, and an answer that is
//! longer than its like ends so much later.

use serve_core::{Limit, Refusal, Request, Span, Time};

use super::{Admission, Admit, Load};
use crate::settings::{Setting, Settings};

/// As its family lists it.
pub(super) const POLICY: Admission = Admission {
    name: "latency-budget",
    settings: &[&LATENCY_BUDGET.row],
    reads_tenants: false,
    build: |settings| match settings.get(&LATENCY_BUDGET) {
        Span::ZERO => Vec::new(),
        target => vec![Box::new(LatencyBudget::new(target))],
    },
    by_default: || Box::new(LatencyBudget::default()),
};

const LATENCY_BUDGET: Setting<Span> = Setting::seconds(
    "latency_budget",
    "Seconds within which every request that is taken is to end, by measurement; 0 is no such limit",
    Span::ZERO,
);

/// As many requests wait as can be answered within a target.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LatencyBudget {
    target: Span,
}

impl LatencyBudget {
    /// Every admitted request is to end within `target` of its admission; zero turns the policy
    /// off.
    pub const fn new(target: Span) -> Self {
        Self { target }
    }
}

impl Default for LatencyBudget {
    /// Ten seconds.
    fn default() -> Self {
        Self::new(Span::from_secs(10))
    }
}

impl Admit for LatencyBudget {
    fn name(&self) -> &'static str {
        POLICY.name
    }

    fn change(&mut self, settings: &Settings, _now: Time) {
        self.target = settings.get(&LATENCY_BUDGET);
    }

    fn admit(&mut self, _request: &Request, load: &Load<'_>) -> Result<(), Refusal> {
        let (Some(wait), Some(service)) = (load.time_to_start(), load.time_to_serve()) else {
            return Ok(());
        };
        let (predicted, target) = (wait + service, self.target);
        // A request that would start at once is not helped by being refused.
        if target.is_zero() || predicted <= target || wait.is_zero() {
            return Ok(());
        }
        // If nobody else comes, the wait becomes shorter as fast as time goes by.
        let too_long = predicted.saturating_sub(target).min(wait);
        Err(Refusal::Later {
            limit: Limit::LatencyBudget { predicted, target },
            retry_after: load.retry_after(Some(too_long)),
        })
    }
}

#[cfg(test)]
mod tests {
    use serve_core::{RequestId, Time, TokenId};

    use super::*;
    use crate::Pace;
    use crate::load::tests::{rounds_of, waiting};

    /// The measured server: batches of 8 that take 1.09 s, a target of 2.5 s. The batch in flight
    /// started `age_ms` ago.
    fn admit(ahead: u32, age_ms: u64) -> Result<(), Refusal> {
        let pace = rounds_of(Span::from_millis(1_090));
        let started = [(Time::from_secs(9), RequestId::new(0)); 8];
        let load = Load {
            now: Time::from_secs(9) + Span::from_millis(age_ms),
            running: 8,
            started: &started,
            joinable: false,
            ..waiting(ahead, Load::idle(8, &pace))
        };
        let request = Request::new(RequestId::new(1), Time::ZERO, [TokenId::new(1)], 1).unwrap();
        LatencyBudget::new(Span::from_millis(2_500)).admit(&request, &load)
    }

    #[test]
    fn the_batch_in_flight_counts() {
        assert_eq!(admit(7, 0), Ok(()), "2 x 1.09 s");
        assert_eq!(admit(7, 1_000), Ok(()));
        let refusal = admit(8, 0).unwrap_err();
        let limit = Limit::LatencyBudget {
            predicted: Span::from_millis(3 * 1_090),
            target: Span::from_millis(2_500),
        };
        assert_eq!(refusal.limit(), limit);
        assert_eq!(refusal.retry_after(), Some(Span::from_millis(770)));
        assert!(admit(8, 769).is_err());
        assert_eq!(admit(8, 770), Ok(()));
    }

    #[test]
    fn nothing_known_is_everybody_admitted() {
        let pace = Pace::default();
        let request = Request::new(RequestId::new(1), Time::ZERO, [TokenId::new(1)], 1).unwrap();
        let load = Load {
            running: 8,
            ..waiting(1_000, Load::idle(8, &pace))
        };
        let mut policy = LatencyBudget::new(Span::from_millis(1));
        assert_eq!(policy.admit(&request, &load), Ok(()));
    }

    #[test]
    fn a_free_slot_is_given_away_even_if_the_target_cannot_be_met() {
        let pace = rounds_of(Span::from_secs(5));
        let request = Request::new(RequestId::new(1), Time::ZERO, [TokenId::new(1)], 1).unwrap();
        let mut policy = LatencyBudget::new(Span::from_secs(1));
        assert_eq!(policy.admit(&request, &Load::idle(1, &pace)), Ok(()));
    }
}
