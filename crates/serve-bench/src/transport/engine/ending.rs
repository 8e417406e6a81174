//! How the scheduler's word on a request that got no whole answer reads in a row: with the status and
//! the code that `serve` has for it, so that rows of any source can be counted together.

use std::time::Duration;

use serve_core::{CancelReason, Code, Refusal, Span, Usage};

use crate::store::record::Timings;
use crate::transport::drive::{AttemptError, Said};

/// A request without a whole answer.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Unanswered {
    /// The HTTP status that says so.
    pub(crate) status: u16,
    /// What is noted.
    pub(crate) error: AttemptError,
}

impl Unanswered {
    /// The scheduler did not take it.
    pub(crate) fn refused(refusal: &Refusal) -> Self {
        let wait = refusal.retry_after().map(Duration::from);
        Self::new(refusal.code(), refusal.to_string(), wait)
    }

    /// The same as `serve` says it: its `Retry-After` counts whole seconds.
    pub(crate) fn refused_over_http(refusal: &Refusal) -> Self {
        let wait = refusal.retry_after_s().map(Duration::from_secs);
        Self::new(refusal.code(), refusal.to_string(), wait)
    }

    /// It was cancelled, and not by its client.
    pub(crate) fn cancelled(reason: CancelReason) -> Self {
        let message = format!("the request was cancelled: {reason}");
        Self::new(reason.code(), message, None)
    }

    /// The backend failed under it.
    pub(crate) fn failed(cause: &str) -> Self {
        Self::new(Code::BACKEND_ERROR, cause.to_owned(), None)
    }

    fn new(code: Code, message: String, retry_after: Option<Duration>) -> Self {
        let status = code.status;
        let error = AttemptError::of_status(status, code.name.to_owned(), message, retry_after);
        Self { status, error }
    }
}

/// When a request that was answered was where, in nanoseconds of any one clock.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Course {
    pub(crate) arrival_ns: u64,
    pub(crate) started_ns: Option<u64>,
    pub(crate) first_token_ns: Option<u64>,
    pub(crate) last_token_ns: Option<u64>,
}

impl Course {
    /// What the engine has counted and timed, as a server would say it.
    pub(crate) fn said(&self, usage: &Usage) -> Said {
        let ms = |from: Option<u64>, to: Option<u64>| {
            Some(Span::from_nanos(to?.saturating_sub(from?)).as_millis_f64())
        };
        Said {
            prompt_tokens: Some(usage.prompt_tokens),
            output_tokens: Some(usage.output_tokens),
            cached_tokens: Some(usage.cached_tokens),
            timings: Some(Timings {
                queue_ms: ms(Some(self.arrival_ns), self.started_ns),
                prefill_ms: ms(self.started_ns, self.first_token_ns),
                decode_ms: ms(self.first_token_ns, self.last_token_ns),
                preemptions: Some(usage.preemptions),
            }),
        }
    }
}

#[cfg(test)]
mod tests {
    use serve_core::{Blame, Limit, Reason};

    use super::*;

    #[test]
    fn a_refusal_of_a_policy_of_ones_own_is_noted_with_its_code() {
        static SHELF: Reason = Reason::new("shelf_full", Blame::Tenant, "books");
        let limit = Limit::Policy {
            reason: &SHELF,
            value: 5,
            max: 4,
        };
        let retry_after = Some(Span::from_millis(1_200));
        let refusal = Refusal::Later { limit, retry_after };
        let noted = Unanswered::refused(&refusal);
        let message = "refused for now: 5 books, and at most 4 may be".to_owned();
        let wait = Some(Duration::from_millis(1_200));
        let expected = AttemptError::of_status(429, "shelf_full".to_owned(), message, wait);
        assert_eq!((noted.status, noted.error), (429, expected));
    }
}
