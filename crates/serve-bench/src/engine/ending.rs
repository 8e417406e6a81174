//! How the scheduler's word on a request that got no whole answer reads in a row: with the status and
//! the code that `serve` has for it, so that rows of any source can be counted together.

use std::time::Duration;

use serve_core::{CancelReason, Limit, Refusal, Span, Usage};

use crate::drive::{AttemptError, Said};
use crate::record::Timings;

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
        let later = matches!(refusal, Refusal::Later { .. });
        let (status, code) = match refusal.limit() {
            Limit::Draining => (503, "shutting_down"),
            Limit::TenantRate { .. } => (429, "rate_limit_exceeded"),
            Limit::TenantInFlight { .. } | Limit::TenantKv { .. } if later => {
                (429, "tenant_limit_exceeded")
            }
            Limit::GlobalRate => (503, "server_rate_exceeded"),
            Limit::Context { .. } => (400, "context_length_exceeded"),
            Limit::KvBlocks { .. } => (400, "kv_capacity_exceeded"),
            Limit::TenantKv { .. } => (400, "kv_capacity_exceeded"),
            Limit::ClassKv { .. } if !later => (400, "kv_capacity_exceeded"),
            Limit::Deadline { .. } if later => (503, "deadline_unreachable"),
            Limit::Deadline { .. } => (504, "deadline_exceeded"),
            _ if later => (503, "overloaded"),
            _ => (400, "never_served"),
        };
        let wait = refusal.retry_after().map(Duration::from);
        Self::new(status, code, refusal.to_string(), wait)
    }

    /// It was called off, and not by its client.
    pub(crate) fn cancelled(reason: CancelReason) -> Self {
        let (status, code, message) = match reason {
            CancelReason::Client => (400, "cancelled", "the client called it off"),
            CancelReason::Deadline => (504, "deadline_exceeded", "the deadline has passed"),
            CancelReason::DeadlineUnreachable => (
                503,
                "deadline_unreachable",
                "the deadline cannot be met any more",
            ),
            CancelReason::QueueTimeout => (503, "queue_timeout", "it has waited too long"),
            CancelReason::Drain => (503, "shutting_down", "the engine is shutting down"),
        };
        Self::new(status, code, message.to_owned(), None)
    }

    /// The backend failed under it.
    pub(crate) fn failed(cause: &str) -> Self {
        Self::new(500, "backend_error", cause.to_owned(), None)
    }

    /// The same as `serve` says it: its `Retry-After` counts whole seconds.
    pub(crate) fn over_http(mut self) -> Self {
        if let AttemptError::Refused {
            retry_after: Some(wait),
            ..
        } = &mut self.error
        {
            let seconds = wait.as_nanos().div_ceil(1_000_000_000).max(1);
            *wait = Duration::from_secs(u64::try_from(seconds).unwrap_or(u64::MAX));
        }
        self
    }

    fn new(status: u16, code: &str, message: String, retry_after: Option<Duration>) -> Self {
        let error = AttemptError::of_status(status, code.to_owned(), message, retry_after);
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
