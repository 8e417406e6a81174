//! As many requests wait as can be answered within a target.
//!
//! Rule: refuse when the predicted time to the end of the request exceeds the target,
//!
//! ```text
//! predicted = what the batch in flight has left + batches queued ahead x batch time + batch time
//! ```
//!
//! with the batch time measured as requests end, and so kept current. See
//! [`Load::time_to_start`] for the first two terms. Before any request has ended nothing is known,
//! and everybody is admitted. While only partly filled batches have ended, as on a server that wakes
//! up to a full load, the target is exceeded by as much as a full one takes longer: about a tenth
//! where sixteen sequences cost 1.11 times one.
//!
//! The textbook depth `(target - batch time) x batch size / batch time` leaves the batch in flight
//! out and takes a queue to drain evenly, where it drains a batch at a time. On a measured server
//! (2.5 s target, 1.09 s batches of 8, so a depth of 10) it promised 2.5 s and gave a p99 of 2.98 s,
//! 19% over: who is tenth in the queue just after a batch has started waits for that batch, one more,
//! and its own, 3 x 1.09 s. Here such a request is refused, and the same request later in the batch,
//! when it can be answered in time, is not.

use serve_core::{Limit, Refusal, Request, Span};

use super::{Admission, Admit, Load};
use crate::settings::Setting;

/// As its family lists it.
pub(super) const POLICY: Admission = Admission {
    name: "latency-budget",
    settings: &[&LATENCY_BUDGET.row],
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

    fn admit(&mut self, _request: &Request, load: &Load<'_>) -> Result<(), Refusal> {
        let (Some(wait), Some(service)) = (load.time_to_start(), load.pace.service_time()) else {
            return Ok(());
        };
        let (predicted, target) = (wait + service, self.target);
        // Whoever would start at once is not helped by being refused.
        if target.is_zero() || predicted <= target || wait.is_zero() {
            return Ok(());
        }
        // If nobody else comes, the wait becomes shorter as fast as time goes by.
        let too_long = predicted.saturating_sub(target).min(wait);
        Err(Refusal::Later {
            limit: Limit::LatencyBudget { predicted, target },
            retry_after: Some(too_long),
        })
    }
}

#[cfg(test)]
mod tests {
    use serve_core::{RequestId, Time, TokenId};

    use super::*;
    use crate::Pace;

    /// The measured server: batches of 8 that take 1.09 s, a target of 2.5 s. The batch in flight
    /// started `age_ms` ago.
    fn admit(waiting: u32, age_ms: u64) -> Result<(), Refusal> {
        let mut pace = Pace::default();
        pace.served(Span::from_millis(1_090));
        let started = [(Time::from_secs(9), RequestId::new(0)); 8];
        let load = Load {
            now: Time::from_secs(9) + Span::from_millis(age_ms),
            waiting,
            running: 8,
            started: &started,
            joinable: false,
            ..Load::idle(8, &pace)
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
            waiting: 1_000,
            running: 8,
            ..Load::idle(8, &pace)
        };
        let mut policy = LatencyBudget::new(Span::from_millis(1));
        assert_eq!(policy.admit(&request, &load), Ok(()));
    }

    #[test]
    fn a_free_slot_is_given_away_even_if_the_target_cannot_be_met() {
        let mut pace = Pace::default();
        pace.served(Span::from_secs(5));
        let request = Request::new(RequestId::new(1), Time::ZERO, [TokenId::new(1)], 1).unwrap();
        let mut policy = LatencyBudget::new(Span::from_secs(1));
        assert_eq!(policy.admit(&request, &Load::idle(1, &pace)), Ok(()));
    }
}
