//! A request that cannot be in time is not taken, not begun, and not gone on with.
//!
//! Rule on arrival: refuse when `predicted wait + predicted service + margin` reaches beyond the request's
//! deadline, or when the deadline has passed. The wait is that of [`Load::time_to_start`], the service that of
//! [`Load::time_to_serve`]; the margin is for what these do not know. A request without a deadline is always
//! taken, and so is every request before anything was measured.
//!
//! Rule when it would join a batch, and as it goes on: cancel it when the chance that it ends in time, by how long requests of its kind go on that have come as
//! far ([`Load::chance_to_end`]), is less than one in twenty.
//!
//! What would be late even on an idle engine is refused without a time to come back. Of those, and of those that
//! would be cancelled, one of 16 is done all the same, then, while they fail, one of 32 up to one of 256: what is
//! never tried is never learnt again.
//!
//! What it buys under overload: no time is spent on answers that nobody waits for any more, so that those that
//! are taken can still succeed.

use std::collections::BTreeSet;

use serve_core::{Limit, Refusal, Request, RequestId, Span, Time};

use super::{Admission, Admit, Cause, Ended, Load, Watch};
use crate::settings::{Setting, Settings};

/// As its family lists it.
pub(super) const POLICY: Admission = Admission {
    name: "deadline-prediction",
    settings: &[&DEADLINE_ADMISSION.row, &DEADLINE_MARGIN.row],
    reads_tenants: false,
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
    "Refuse on arrival, and cancel before it is begun or as it runs, what cannot be answered by its deadline, by measurement",
    false,
);

const DEADLINE_MARGIN: Setting<Span> = Setting::seconds(
    "deadline_margin",
    "Seconds that predictions leave before a deadline",
    Span::ZERO,
)
.needs(&DEADLINE_ADMISSION);

/// A request that cannot be in time is not taken.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeadlinePrediction {
    margin: Span,
    /// By the power of two of the output limit.
    tries: Vec<Tries>,
    /// Those that are tried.
    tried: BTreeSet<RequestId>,
}

/// Refusals of what would be late even alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Tries {
    refused: u32,
    /// After how many one is tried.
    after: u32,
}

/// After how many refusals one is tried, at first and at last.
const AFTER_MIN: u32 = 16;
const AFTER_MAX: u32 = 256;

/// A request is given up when its chance to be in time is less.
const CHANCE_MIN: f64 = 0.05;

impl DeadlinePrediction {
    /// Predictions are to leave `margin` before the deadline.
    pub const fn new(margin: Span) -> Self {
        Self {
            margin,
            tries: Vec::new(),
            tried: BTreeSet::new(),
        }
    }

    /// Whether a request that has `left` has next to no chance.
    fn is_hopeless(&self, request: &Request, left: Span, done: u32, load: &Load<'_>) -> bool {
        load.chance_to_end(request, done, left.saturating_sub(self.margin)) < CHANCE_MIN
    }

    /// Whether a request is to be done though nothing like it has been in time of late.
    fn is_tried(&mut self, request: &Request) -> bool {
        self.tried.contains(&request.id())
            || self.tries(request).is_due() && self.tried.insert(request.id())
    }

    fn tries(&mut self, request: &Request) -> &mut Tries {
        let kind = request.output_tokens_max().ilog2() as usize;
        if self.tries.len() <= kind {
            self.tries.resize(kind + 1, Tries::default());
        }
        &mut self.tries[kind]
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
    fn change(&mut self, settings: &Settings, _now: Time) {
        self.margin = settings.get(&DEADLINE_MARGIN);
    }

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
        let (Some(wait), Some(service)) = (load.time_to_start(), load.time_to_serve()) else {
            return Ok(());
        };
        let predicted = wait + service + self.margin;
        let alone = load.usual_time_to_serve().unwrap_or(service) + self.margin;
        let is_doomed = alone > left || self.is_hopeless(request, left, 0, load);
        let in_time = predicted <= left && !is_doomed;
        if in_time || is_doomed && self.is_tried(request) {
            return Ok(());
        }
        // A request with as much time left may be taken once the queue has become that much
        // shorter; not if it would be late without any queue.
        let too_long = predicted.saturating_sub(left);
        Err(Refusal::Later {
            limit: Limit::Deadline { predicted, left },
            retry_after: load.retry_after((!is_doomed).then_some(too_long)),
        })
    }

    fn watches(&self) -> Watch {
        Watch::Running
    }

    fn gives_up(&mut self, request: &Request, done: u32, load: &Load<'_>) -> bool {
        let Some(deadline) = request.deadline() else {
            return false;
        };
        let left = deadline.since(load.now);
        self.is_hopeless(request, left, done, load) && !self.is_tried(request)
    }

    fn ended(&mut self, ended: &Ended<'_>, _load: &Load<'_>) {
        let tried = self.tried.remove(&ended.request.id());
        if tried && ended.cause == Cause::Finished {
            *self.tries(ended.request) = Tries::default();
        }
    }
}

impl Tries {
    /// One more would be refused; true if it is to be tried instead.
    fn is_due(&mut self) -> bool {
        self.refused += 1;
        if self.refused < self.after {
            return false;
        }
        self.refused = 0;
        self.after = (self.after * 2).min(AFTER_MAX);
        true
    }
}

impl Default for Tries {
    fn default() -> Self {
        Self {
            refused: 0,
            after: AFTER_MIN,
        }
    }
}

#[cfg(test)]
mod tests {
    use serve_core::{RequestId, Time, TokenId};

    use super::*;
    use crate::load::tests::{rounds_of, waiting};

    /// One slot that takes 1.4 s for a request, has been at one for 0.3 s, and has two more waiting:
    /// 3.9 s of queue.
    fn admit(margin_ms: u64, left_ms: u64) -> Result<(), Refusal> {
        let pace = rounds_of(Span::from_millis(1_400));
        let now = Time::from_secs(100);
        let started = [(now - Span::from_millis(300), RequestId::new(0))];
        let load = Load {
            now,
            running: 1,
            started: &started,
            ..waiting(2, Load::idle(1, &pace))
        };
        let request = due(now + Span::from_millis(left_ms));
        DeadlinePrediction::new(Span::from_millis(margin_ms)).admit(&request, &load)
    }

    fn due(deadline: Time) -> Request {
        let request = Request::new(RequestId::new(1), Time::ZERO, [TokenId::new(1)], 1).unwrap();
        request.with_deadline(Some(deadline))
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

    fn ended(request: &Request, cause: Cause) -> Ended<'_> {
        Ended {
            request,
            cause,
            usage: serve_core::Usage::default(),
            ran: Some(Span::from_secs(1)),
        }
    }

    #[test]
    fn what_is_never_tried_is_tried_again_and_ever_less_often() {
        let pace = rounds_of(Span::from_secs(10));
        let load = Load::idle(1, &pace);
        let mut policy = DeadlinePrediction::default();
        let request = due(Time::from_secs(2));
        let tried = |policy: &mut DeadlinePrediction, times: u32, cause| {
            let mut tried = 0;
            for _ in 0..times {
                if policy.admit(&request, &load).is_ok() {
                    tried += 1;
                    assert!(
                        !policy.gives_up(&request, 0, &load),
                        "it is tried to its end"
                    );
                    policy.ended(&ended(&request, cause), &load);
                }
            }
            tried
        };
        assert_eq!(tried(&mut policy, 15, Cause::Failed), 0);
        assert_eq!(tried(&mut policy, 1, Cause::Failed), 1);
        assert_eq!(tried(&mut policy, 31, Cause::Failed), 0);
        assert_eq!(
            tried(&mut policy, 1 + 64 + 128 + 256 + 255, Cause::Failed),
            4
        );
        assert_eq!(tried(&mut policy, 1, Cause::Finished), 1);
        assert_eq!(
            tried(&mut policy, 16, Cause::Failed),
            1,
            "one was in time, so others may be"
        );
    }
}
