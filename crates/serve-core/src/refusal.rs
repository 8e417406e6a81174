//! Why a request was not taken: *later*, and when, or *never*, and which limit it broke.

use std::fmt;

use thiserror::Error;

use crate::told::{Blame, Code};
use crate::{Class, Span, TenantId};

/// A request that was not taken. Nothing of it is kept.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
pub enum Refusal {
    /// The same request can be taken later.
    #[error("refused for now: {limit}")]
    Later {
        /// What is exhausted.
        limit: Limit,
        /// When it is worth trying again, from the measured drain rate; absent when unknown.
        retry_after: Option<Span>,
    },
    /// The same request will never be taken by this engine.
    #[error("refused: {limit}")]
    Never {
        /// The limit that it breaks.
        limit: Limit,
    },
}

impl Refusal {
    /// What the request ran into.
    pub fn limit(&self) -> Limit {
        match *self {
            Self::Later { limit, .. } | Self::Never { limit } => limit,
        }
    }

    /// When it is worth trying again, if that is known.
    pub fn retry_after(&self) -> Option<Span> {
        match *self {
            Self::Later { retry_after, .. } => retry_after,
            Self::Never { .. } => None,
        }
    }
}

/// The limit that a refused request ran into, with the numbers that broke it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub enum Limit {
    /// The waiting queue is as long as it may be.
    QueueDepth {
        /// Requests waiting.
        waiting: u32,
        /// The most that may wait.
        max: u32,
    },
    /// The waiting queue is as long as it may be for this class.
    ClassQueueDepth {
        /// The refused request's class.
        class: Class,
        /// Requests waiting.
        waiting: u32,
        /// The depth from which this class is refused.
        max: u32,
    },
    /// The tenant has used up its rate.
    TenantRate {
        /// The tenant.
        tenant: TenantId,
    },
    /// All tenants together have used up the server's rate.
    GlobalRate,
    /// The tenant has as many requests in flight as it may.
    TenantInFlight {
        /// The tenant.
        tenant: TenantId,
        /// Its requests waiting and running.
        in_flight: u32,
        /// The most that may be.
        max: u32,
    },
    /// The class has as many requests in flight as it may.
    ClassInFlight {
        /// The refused request's class.
        class: Class,
        /// Its requests waiting and running.
        in_flight: u32,
        /// The most that may be.
        max: u32,
    },
    /// The tenant's requests in flight could come to hold more of the KV cache than they may.
    TenantKv {
        /// The tenant.
        tenant: TenantId,
        /// Positions in whole blocks, this request's included.
        positions: u64,
        /// The most that may be.
        max: u64,
    },
    /// The requests of the class in flight could come to hold more of the KV cache than they may.
    ClassKv {
        /// The refused request's class.
        class: Class,
        /// Positions in whole blocks, this request's included.
        positions: u64,
        /// The most that may be.
        max: u64,
    },
    /// The predicted wait breaks the latency target.
    LatencyBudget {
        /// Predicted time to the end of the request.
        predicted: Span,
        /// The target.
        target: Span,
    },
    /// The deadline cannot be met, by prediction or because it has passed.
    Deadline {
        /// Predicted time to the end of the request.
        predicted: Span,
        /// Time left until the deadline.
        left: Span,
    },
    /// The predicted wait breaks the target for first tokens.
    FirstTokenBudget {
        /// Predicted time to the first token of the request.
        predicted: Span,
        /// The target.
        target: Span,
    },
    /// Every concurrency slot is taken and nothing may wait.
    Concurrency {
        /// Requests in flight.
        in_flight: u32,
        /// The most that may be.
        max: u32,
    },
    /// Prompt and output limit do not fit in the context window.
    Context {
        /// Positions needed.
        needed: u64,
        /// Positions available to one request.
        max: u64,
    },
    /// The request needs more KV blocks than the pool can ever give to one request.
    KvBlocks {
        /// Blocks needed.
        needed: u32,
        /// Blocks in the whole pool.
        max: u32,
    },
    /// The server is shutting down and takes no new work.
    Draining,
    /// A request with this id is still live.
    DuplicateId,
    /// The tokens of the prompt are not known, only [their number](crate::Request::of_lengths), and
    /// a backend cannot run that.
    NoTokens,
    /// A limit of a policy that is not among those of `serve-sched`.
    Policy {
        /// Which one it is, in the policy's own words.
        reason: &'static Reason,
        /// What the request would come to.
        value: u32,
        /// The most that may be.
        max: u32,
    },
}

/// Why a policy of one's own refuses: the code that its clients branch on, whose fault it is, and what it
/// counts. One for each kind of refusal, as a `static`:
///
/// ```
/// use serve_core::{Blame, Limit, Reason, Refusal};
///
/// static LONG_PROMPT: Reason = Reason::new("prompt_too_long", Blame::Client, "prompt tokens");
///
/// let limit = Limit::Policy { reason: &LONG_PROMPT, value: 150, max: 100 };
/// let refusal = Refusal::Never { limit };
/// assert_eq!(refusal.to_string(), "refused: 150 prompt tokens, and at most 100 may be");
/// assert_eq!((refusal.code().name, refusal.code().status), ("prompt_too_long", 400));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reason {
    code: Code,
    counts: &'static str,
}

#[cfg(feature = "serde")]
impl serde::Serialize for Reason {
    /// Its code.
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.code.name)
    }
}

impl Reason {
    /// A reason whose refusals have the code `name`, and which counts `counts`, as in "150 `counts`".
    ///
    /// The HTTP status says whose fault it is: 400 for the client, 429 for the tenant and for a lack of
    /// capacity, 500 for the server otherwise.
    ///
    /// # Panics
    ///
    /// When the name is not made of lower-case letters, digits and `_` alone, or `counts` is empty. Of a
    /// `static` that is an error of the compiler.
    pub const fn new(name: &'static str, blame: Blame, counts: &'static str) -> Self {
        assert!(!name.is_empty(), "a reason has a name");
        assert!(!counts.is_empty(), "a reason says what it counts");
        let bytes = name.as_bytes();
        let mut index = 0;
        while index < bytes.len() {
            assert!(
                matches!(bytes[index], b'a'..=b'z' | b'0'..=b'9' | b'_'),
                "the name of a reason has lower-case letters, digits and _ alone"
            );
            index += 1;
        }
        Self {
            code: Code::of_blame(name, blame),
            counts,
        }
    }

    /// How a refusal for this reason is told.
    pub const fn code(&self) -> Code {
        self.code
    }

    /// What it counts.
    pub const fn counts(&self) -> &'static str {
        self.counts
    }
}

impl fmt::Display for Limit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::QueueDepth { waiting, max } => {
                write!(f, "{waiting} requests are waiting and at most {max} may")
            }
            Self::ClassQueueDepth {
                class,
                waiting,
                max,
            } => write!(
                f,
                "{waiting} requests are waiting and class {} is refused from {max} on",
                class.rank()
            ),
            Self::TenantRate { .. } => f.write_str("the tenant's rate limit is used up"),
            Self::GlobalRate => f.write_str("the server's rate limit is used up"),
            Self::TenantInFlight { in_flight, max, .. } => write!(
                f,
                "{in_flight} requests of the tenant are in flight and at most {max} may be"
            ),
            Self::ClassInFlight {
                class,
                in_flight,
                max,
            } => write!(
                f,
                "{in_flight} requests of class {} are in flight and at most {max} may be",
                class.rank()
            ),
            Self::TenantKv { positions, max, .. } => write!(
                f,
                "the tenant's requests could hold {positions} KV positions and at most {max} may be"
            ),
            Self::ClassKv {
                class,
                positions,
                max,
            } => write!(
                f,
                "the requests of class {} could hold {positions} KV positions and at most {max} \
                 may be",
                class.rank()
            ),
            Self::LatencyBudget { predicted, target } => {
                write!(
                    f,
                    "it would take about {predicted} and the target is {target}"
                )
            }
            Self::Deadline { predicted, left } => {
                write!(
                    f,
                    "it would take about {predicted} and the deadline is in {left}"
                )
            }
            Self::FirstTokenBudget { predicted, target } => {
                write!(
                    f,
                    "its first token would take about {predicted} and the target is {target}"
                )
            }
            Self::Concurrency { in_flight, max } => {
                write!(
                    f,
                    "{in_flight} requests are in flight and at most {max} may be"
                )
            }
            Self::Context { needed, max } => write!(
                f,
                "prompt and output limit need {needed} positions and the context holds {max}"
            ),
            Self::KvBlocks { needed, max } => write!(
                f,
                "the request can need {needed} KV blocks and the pool holds {max}"
            ),
            Self::Draining => f.write_str("the server is shutting down"),
            Self::DuplicateId => f.write_str("a request with this id is still running"),
            Self::NoTokens => {
                f.write_str("the request gives the length of its prompt and not the prompt")
            }
            Self::Policy { reason, value, max } => {
                write!(f, "{value} {}, and at most {max} may be", reason.counts)
            }
        }
    }
}
