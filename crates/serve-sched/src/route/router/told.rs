//! What a router is told and what it answers.

use serve_core::{Span, Time, Usage};
use thiserror::Error;

use crate::retry_budget::RetrySettings;
use crate::route::{Attempt, UpstreamId};

/// Parameters of a [`Router`](super::Router).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RouterSettings {
    /// Breaks ties. Routers side by side take different ones, so that they do not all begin with the same upstream.
    pub seed: u64,
    /// Failures and answers that took four times as long as at the others, in a row, after which an upstream is ejected.
    pub bad_in_a_row: u32,
    /// Of a hundred upstreams, as many may be ejected at once.
    pub ejected_percent_max: u32,
    /// For how long at first; twice as long each further time.
    pub ejection: Span,
    /// The longest that this becomes.
    pub ejection_max: Span,
    /// Retries at another upstream. They need no backoff: it is not the one that failed.
    pub retries: RetrySettings,
    /// Conversations that are remembered.
    pub sessions_max: u32,
}

impl Default for RouterSettings {
    /// Ejected after five in a row, for 10 s to 5 min, half of the upstreams at most; one retry, at once, for ten requests.
    fn default() -> Self {
        Self {
            seed: 0,
            bad_in_a_row: 5,
            ejected_percent_max: 50,
            ejection: Span::from_secs(10),
            ejection_max: Span::from_secs(300),
            retries: RetrySettings {
                backoff: Span::ZERO,
                ..RetrySettings::default()
            },
            sessions_max: 65_536,
        }
    }
}

/// What an upstream is like when it joins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Terms {
    /// Blocks of the chain that fit into its prefix cache; as many are remembered of it, 32 bytes each. 0 where it has none.
    pub cache_blocks: u32,
    /// Of a hundred requests, as many go to it, whatever they would cost there, until it turns out to be worse than the
    /// others; at most 50. `None` is one of the others.
    pub trial_percent: Option<u32>,
}

impl Default for Terms {
    /// 16,384 blocks, not on trial.
    fn default() -> Self {
        Self {
            cache_blocks: 16_384,
            trial_percent: None,
        }
    }
}

/// What an upstream says is in flight there, by any router.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct View {
    /// When it was like this, by the router's clock: the time at which it was asked, not the one at which it was heard.
    pub at: Time,
    /// Requests that it has.
    pub in_flight: u32,
    /// Of those, requests without their first token.
    pub waiting: u32,
    /// Prompt tokens of those that wait, what is cached left out.
    pub waiting_tokens: u64,
    /// Tokens in its KV cache that a request holds.
    pub running_tokens: u64,
}

/// Where a request has been sent.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Sent {
    /// To which upstream.
    pub upstream: UpstreamId,
    /// Why to this one.
    pub why: Why,
    /// Tokens of its prompt that are expected to be cached there.
    pub cached_tokens: u32,
    /// When its first token is expected, from now.
    pub first_token: Span,
    /// When its last token is expected, from now.
    pub end: Span,
}

/// Why a request went where it went.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Why {
    /// The policy has chosen.
    Policy,
    /// It is part of a trial.
    Trial,
    /// Whether an upstream that was ejected works again.
    Probe,
}

/// How a request ended at its upstream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// It was answered.
    Answered(Usage),
    /// It says nothing of the upstream: a client's mistake, or a client that went away.
    Ignored,
    /// The upstream has too much to do (429, or 503 with a hint): it is left alone for this long, or for 100 ms, at most for a
    /// minute, and is not held to be broken.
    Busy {
        /// What it said of when to come back.
        retry_after: Option<Span>,
    },
    /// It failed: no connection, 500, a stream that broke, a deadline that passed there.
    Failed,
}

/// What failed may be sent again, at another upstream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Retry {
    /// When.
    pub at: Time,
    /// The [`Work::attempt`](crate::route::Work::attempt) of then.
    pub attempt: Attempt,
}

/// There is no upstream for a request.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
pub enum NoUpstream {
    /// None has joined that is up, not draining, and not the one at which the request failed before.
    #[error("no upstream is up; start one, or wait until one joins")]
    Down,
    /// Those that are up want to be left alone.
    #[error("every upstream has too much to do; try again later")]
    Busy {
        /// Until the first of them may be asked again.
        retry_after: Span,
    },
}

/// What a router makes of an upstream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Standing {
    /// Requests go to it.
    Serving,
    /// A share of requests goes to it.
    OnTrial,
    /// It was on trial and turned out worse than the others; nothing goes to it.
    Worse(Doubt),
    /// It has too much to do until then.
    Busy {
        /// When it is asked again.
        until: Time,
    },
    /// It failed too often; nothing goes to it until then.
    Ejected {
        /// When it is tried again.
        until: Time,
    },
    /// One request shows whether it works again.
    Probation,
    /// It is to leave: nothing goes to it, what it has goes on.
    Draining,
    /// It is known to be down.
    Down,
}

/// In what an upstream on trial is worse than the others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Doubt {
    /// It fails more often.
    Failures,
    /// It is slow more often.
    Latency,
}
