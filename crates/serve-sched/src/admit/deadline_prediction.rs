//! A request that will be too late is not taken.
//!
//! Rule: refuse when `predicted queue + predicted service + margin` reaches beyond the request's
//! deadline, or when the deadline has passed. The queue is predicted by [`Load::time_to_start`], the
//! service by [`Load::time_to_serve`]; the margin is for what these do not know. A request without a
//! deadline is always taken, and so is every request before anything was measured.
//!
//! The prediction knows who is ahead of a request when it arrives: in tiers, its own class and those
//! above it; under every other order, all that wait. A request that will overtake some of those, as
//! under earliest deadline first, is predicted to start too late and may be refused needlessly. Who
//! comes later and overtakes *it* is not foreseen: a lower tier is promised too much while a higher
//! one keeps coming.
//!
//! What it buys under overload: no time is spent on answers that nobody waits for any more, so that
//! those who are taken can still succeed.

use serve_core::{Limit, Refusal, Request, Span};

use super::{Admission, Admit, Load};
use crate::settings::Setting;

/// As its family lists it.
pub(super) const POLICY: Admission = Admission {
    name: "deadline-prediction",
    settings: &[&DEADLINE_ADMISSION.row, &DEADLINE_MARGIN.row],
    build: |settings| match settings.get(&DEADLINE_ADMISSION) {
        false => Vec::new(),
        true => vec![Box::new(DeadlinePrediction::new(
            settings.get(&DEADLINE_MARGIN),
        ))],
    },
    by_default: || Box::new(DeadlinePrediction::default()),
};

const DEADLINE_ADMISSION: Setting<bool> = Setting::switch(
    "deadline_admission",
    "Refuse on arrival what cannot be answered by its deadline, by measurement",
    false,
);

const DEADLINE_MARGIN: Setting<Span> = Setting::seconds(
    "deadline_margin",
    "Seconds that predictions leave before a deadline",
    Span::ZERO,
)
.needs(&DEADLINE_ADMISSION);

/// A request that will be too late is not taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeadlinePrediction {
    margin: Span,
}

impl DeadlinePrediction {
    /// Predictions are to leave `margin` before the deadline.
    pub const fn new(margin: Span) -> Self {
        Self { margin }
    }
}

impl Default for DeadlinePrediction {
    /// As the setting `deadline_margin` is by default.
    fn default() -> Self {
        Self::new(DEADLINE_MARGIN.usual())
    }
}

impl Admit for DeadlinePrediction {
    fn name(&self) -> &'static str {
        POLICY.name
    }

    /// The numbers in the refusal count the margin as part of the prediction.
    fn admit(&mut self, request: &Request, load: &Load<'_>) -> Result<(), Refusal> {
        let Some(deadline) = request.deadline() else {
            return Ok(());
        };
        let left = deadline.since(load.now);
        if left.is_zero() {
            let predicted = Span::ZERO;
            return Err(Refusal::Never {
                limit: Limit::Deadline { predicted, left },
            });
        }
        let (Some(wait), Some(service)) = (load.time_to_start(), load.time_to_serve(request))
        else {
            return Ok(());
        };
        let alone = service + self.margin;
        let predicted = wait + alone;
        if predicted <= left {
            return Ok(());
        }
        // A request with as much time left may be taken once the queue has become that much
        // shorter; not if it would be late without any queue.
        let too_long = predicted.saturating_sub(left);
        Err(Refusal::Later {
            limit: Limit::Deadline { predicted, left },
            retry_after: (alone <= left).then_some(too_long),
        })
    }
}

#[cfg(test)]
mod tests {
    use serve_core::{RequestId, Time, TokenId};

    use super::*;
    use crate::Pace;

    /// One slot that takes 1.4 s for a request, has been at one for 0.3 s, and has two more waiting:
    /// 3.9 s of queue.
    fn admit(margin_ms: u64, left_ms: u64) -> Result<(), Refusal> {
        let mut pace = Pace::default();
        pace.served(Span::from_millis(1_400));
        let now = Time::from_secs(100);
        let started = [(now - Span::from_millis(300), RequestId::new(0))];
        let load = Load {
            now,
            waiting: 2,
            running: 1,
            started: &started,
            ..Load::idle(1, &pace)
        };
        let deadline = now + Span::from_millis(left_ms);
        let request = Request::new(RequestId::new(1), now, [TokenId::new(1)], 1).unwrap();
        let request = request.with_deadline(Some(deadline));
        DeadlinePrediction::new(Span::from_millis(margin_ms)).admit(&request, &load)
    }

    #[test]
    fn queue_and_service_and_margin_have_to_fit() {
        assert_eq!(admit(0, 5_300), Ok(()));
        assert!(admit(0, 5_299).is_err());
        assert!(admit(1, 5_300).is_err());
        let limit = Limit::Deadline {
            predicted: Span::from_millis(5_300),
            left: Span::from_millis(4_800),
        };
        let later = Refusal::Later {
            limit,
            retry_after: Some(Span::from_millis(500)),
        };
        assert_eq!(admit(0, 4_800), Err(later));
    }

    #[test]
    fn what_would_be_late_on_an_idle_engine_has_no_time_to_come_back() {
        assert_eq!(admit(0, 1_399).unwrap_err().retry_after(), None);
        assert!(admit(0, 1_400).unwrap_err().retry_after().is_some());
    }

    #[test]
    fn a_passed_deadline_is_never_met() {
        assert!(matches!(admit(0, 0), Err(Refusal::Never { .. })));
    }
}
