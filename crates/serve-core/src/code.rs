//! What a client is told of a request that got no whole answer: a machine-readable code, whose fault
//! it is, and the HTTP status that says so.
//!
//! It is one table for every way of asking: the server's answers, its metrics, the journal and the rows
//! of a simulation have the same codes. How an answer is built from them belongs to the edge.

use std::fmt;

use crate::told::{Blame, Code};
use crate::{CancelReason, InvalidRequest, Limit, Reason, Refusal, Span};

impl Refusal {
    /// How the refusal is told. Every limit has its code here and nowhere else; that of a policy of
    /// one's own has the one of its [`Reason`].
    pub const fn code(&self) -> Code {
        let (limit, usual) = match self {
            Self::Later { limit, .. } => (limit, Code::OVERLOADED),
            Self::Never { limit } => (limit, Code::NEVER_SERVED),
        };
        match (limit, self) {
            (Limit::Policy { reason, .. }, _) => reason.code(),
            (Limit::Draining, _) => Code::SHUTTING_DOWN,
            (Limit::TenantRate { .. }, _) => Code::new("rate_limit_exceeded", 429, Blame::Tenant),
            (Limit::GlobalRate, _) => Code::new("server_rate_exceeded", 429, Blame::Capacity),
            (Limit::Context { .. }, _) => Code::new("context_length_exceeded", 400, Blame::Client),
            (Limit::KvBlocks { .. }, _)
            | (Limit::TenantKv { .. } | Limit::ClassKv { .. }, Self::Never { .. }) => {
                Code::new("kv_capacity_exceeded", 400, Blame::Client)
            }
            (Limit::TenantInFlight { .. } | Limit::TenantKv { .. }, Self::Later { .. }) => {
                Code::new("tenant_limit_exceeded", 429, Blame::Tenant)
            }
            (Limit::Deadline { .. }, Self::Later { .. }) => Code::DEADLINE_UNREACHABLE,
            (Limit::Deadline { .. }, Self::Never { .. }) => Code::DEADLINE_EXCEEDED,
            (
                Limit::QueueDepth { .. }
                | Limit::ClassQueueDepth { .. }
                | Limit::LatencyBudget { .. }
                | Limit::FirstTokenBudget { .. }
                | Limit::TenantInFlight { .. }
                | Limit::ClassInFlight { .. }
                | Limit::ClassKv { .. }
                | Limit::Concurrency { .. }
                | Limit::DuplicateId
                | Limit::NoTokens,
                _,
            ) => usual,
        }
    }

    /// `retry_after` in whole seconds, rounded up, as the header `Retry-After` counts: a client that
    /// comes a moment too early is refused again.
    pub fn retry_after_s(&self) -> Option<u64> {
        const SECOND: u64 = 1_000_000_000;

        let wait = self.retry_after()?;
        Some(wait.as_nanos().div_ceil(SECOND).max(1))
    }
}

impl InvalidRequest {
    /// How it is told that the request means nothing.
    pub const fn code(&self) -> Code {
        Code::INVALID_VALUE
    }
}

impl CancelReason {
    /// Every reason, for tables that must know all of them.
    pub fn each() -> impl Iterator<Item = Self> {
        std::iter::successors(Some(Self::Client), |reason| reason.next())
    }

    /// The reason after this one. A new reason has its place here or nothing compiles.
    const fn next(self) -> Option<Self> {
        match self {
            Self::Client => Some(Self::Deadline),
            Self::Deadline => Some(Self::DeadlineUnreachable),
            Self::DeadlineUnreachable => Some(Self::QueueTimeout),
            Self::QueueTimeout => Some(Self::Drain),
            Self::Drain => None,
        }
    }

    /// How the cancellation is told.
    pub const fn code(self) -> Code {
        match self {
            Self::Client => Code::new("cancelled", 400, Blame::Client),
            Self::Deadline => Code::DEADLINE_EXCEEDED,
            Self::DeadlineUnreachable => Code::DEADLINE_UNREACHABLE,
            Self::QueueTimeout => Code::new("queue_timeout", 429, Blame::Capacity),
            Self::Drain => Code::SHUTTING_DOWN,
        }
    }
}

impl fmt::Display for CancelReason {
    /// The reason as the end of a sentence: `the request was cancelled: its deadline passed`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Client => "its client cancelled it",
            Self::Deadline => "its deadline passed",
            Self::DeadlineUnreachable => "its deadline cannot be met any more",
            Self::QueueTimeout => "it waited longer than it was to and was never run",
            Self::Drain => "the server is shutting down",
        })
    }
}

impl Limit {
    /// One limit of each kind, for tables that must know all of them.
    pub fn each() -> impl Iterator<Item = Self> {
        std::iter::successors(Some(Self::Draining), Self::next)
    }

    /// The kind after this one. A new kind has its place here or nothing compiles.
    fn next(&self) -> Option<Self> {
        use crate::{Class, TenantId};

        let (span, left) = (Span::from_secs(2), Span::from_secs(1));
        let (waiting, max, positions) = (1, 1, 2);
        let (class, tenant) = (Class::new(1), TenantId::new(1));
        Some(match self {
            Self::Draining => Self::QueueDepth { waiting, max },
            Self::QueueDepth { .. } => Self::ClassQueueDepth {
                class,
                waiting,
                max,
            },
            Self::ClassQueueDepth { .. } => Self::TenantRate { tenant },
            Self::TenantRate { .. } => Self::GlobalRate,
            Self::GlobalRate => Self::TenantInFlight {
                tenant,
                in_flight: max,
                max,
            },
            Self::TenantInFlight { .. } => Self::ClassInFlight {
                class,
                in_flight: max,
                max,
            },
            Self::ClassInFlight { .. } => Self::TenantKv {
                tenant,
                positions,
                max: 1,
            },
            Self::TenantKv { .. } => Self::ClassKv {
                class,
                positions,
                max: 1,
            },
            Self::ClassKv { .. } => Self::LatencyBudget {
                predicted: span,
                target: left,
            },
            Self::LatencyBudget { .. } => Self::Deadline {
                predicted: span,
                left,
            },
            Self::Deadline { .. } => Self::FirstTokenBudget {
                predicted: span,
                target: left,
            },
            Self::FirstTokenBudget { .. } => Self::Concurrency { in_flight: 1, max },
            Self::Concurrency { .. } => Self::Context { needed: 2, max: 1 },
            Self::Context { .. } => Self::KvBlocks { needed: 2, max },
            Self::KvBlocks { .. } => Self::DuplicateId,
            Self::DuplicateId => Self::NoTokens,
            Self::NoTokens => Self::Policy {
                reason: &SAMPLE,
                value: 2,
                max: 1,
            },
            Self::Policy { .. } => return None,
        })
    }
}

/// What stands in tables for the reasons of policies of one's own.
static SAMPLE: Reason = Reason::new("reason_of_ones_own", Blame::Capacity, "of something");

#[cfg(test)]
mod tests {
    use super::*;

    /// Both refusals that a limit can be the reason of.
    fn refusals() -> impl Iterator<Item = Refusal> {
        Limit::each().flat_map(|limit| {
            let retry_after = None;
            [
                Refusal::Later { limit, retry_after },
                Refusal::Never { limit },
            ]
        })
    }

    fn all() -> Vec<Code> {
        let cancelled = CancelReason::each().map(CancelReason::code);
        let codes = refusals().map(|refusal| refusal.code());
        codes
            .chain(cancelled)
            .chain([Code::BACKEND_ERROR])
            .collect()
    }

    #[test]
    fn every_limit_is_listed_once() {
        let mut kinds: Vec<_> = Limit::each()
            .map(|it| std::mem::discriminant(&it))
            .collect();
        let listed = kinds.len();
        kinds.dedup();
        assert_eq!((kinds.len(), listed), (18, 18));
    }

    #[test]
    fn every_reason_is_listed_once() {
        let reasons: Vec<_> = CancelReason::each().map(|it| it as usize).collect();
        assert_eq!(reasons, [0, 1, 2, 3, 4]);
    }

    #[test]
    fn one_code_is_one_status_and_one_blame() {
        for code in all() {
            let same = all().into_iter().filter(|other| other.name == code.name);
            same.for_each(|other| assert_eq!(other, code));
        }
    }

    #[test]
    fn the_status_fits_the_blame() {
        let blames = [Blame::Client, Blame::Tenant, Blame::Capacity, Blame::Server];
        let own = blames.map(|blame| Reason::new("own", blame, "of it").code());
        for code in all().into_iter().chain(own) {
            let fits = match code.blame {
                Blame::Client => (400..500).contains(&code.status) && code.status != 429,
                Blame::Tenant => code.status == 429,
                Blame::Capacity => code.status == 429,
                Blame::Server => (500..600).contains(&code.status),
            };
            assert!(fits, "{code:?}");
        }
    }

    #[test]
    fn what_is_refused_for_now_is_nobodys_mistake_unless_it_can_never_fit() {
        for refusal in refusals() {
            let (code, limit) = (refusal.code(), refusal.limit());
            let never_fits = matches!(limit, Limit::Context { .. } | Limit::KvBlocks { .. });
            if let Refusal::Later { .. } = refusal {
                assert_eq!(code.blame == Blame::Client, never_fits, "{limit:?}");
            }
        }
    }

    #[test]
    fn a_reason_of_ones_own_is_told_as_it_is_whether_later_or_never() {
        static LONG: Reason = Reason::new("prompt_too_long", Blame::Tenant, "prompt tokens");
        let (value, max) = (u32::MAX, 100);
        let limit = Limit::Policy {
            reason: &LONG,
            value,
            max,
        };
        let retry_after = None;
        for refusal in [
            Refusal::Never { limit },
            Refusal::Later { limit, retry_after },
        ] {
            assert_eq!(refusal.code(), LONG.code());
            let said = "4294967295 prompt tokens, and at most 100 may be";
            assert!(refusal.to_string().ends_with(said), "{refusal}");
        }
    }

    /// It becomes a label of a metric and a field of JSON, so it needs no escapes.
    #[test]
    fn the_name_of_a_reason_is_one_plain_word() {
        let made = |name| std::panic::catch_unwind(|| Reason::new(name, Blame::Client, "of it"));
        for name in [
            "",
            "Long",
            "too long",
            "a\"b",
            "zu_gro\u{df}",
            "a-b",
            "a\nb",
        ] {
            assert!(made(name).is_err(), "{name:?}");
        }
        assert!(made("k8s_quota").is_ok());
        assert!(std::panic::catch_unwind(|| Reason::new("own", Blame::Client, "")).is_err());
    }

    #[test]
    fn a_wait_is_rounded_up_to_a_whole_second() {
        let limit = Limit::GlobalRate;
        let seconds = |retry_after| Refusal::Later { limit, retry_after }.retry_after_s();
        assert_eq!(seconds(None), None);
        assert_eq!(seconds(Some(Span::from_nanos(0))), Some(1));
        assert_eq!(seconds(Some(Span::from_millis(1_000))), Some(1));
        assert_eq!(seconds(Some(Span::from_millis(1_001))), Some(2));
    }
}
