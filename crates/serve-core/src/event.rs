//! What a client may observe of its request, stamped with the time at which it happened.

use std::sync::Arc;

use crate::{Refusal, RequestId, Time, TokenId, TokenLogprob};

/// Something that happened to one request.
#[derive(Clone, Debug, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
pub struct Event {
    /// Whose event this is.
    pub request: RequestId,
    /// When it happened: for a token, the end of the step that produced it.
    pub at: Time,
    /// What happened.
    pub kind: EventKind,
}

/// What happened. Every accepted request gets exactly one terminal event: `Finished`, `Cancelled`,
/// `Failed` or `Displaced`, and nothing after it.
#[derive(Clone, Debug, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
pub enum EventKind {
    /// The request left the queue: its first segment was planned.
    Started,
    /// A token was sampled. A stop token is sampled too, but is not an output and gets no event.
    Token {
        /// The token.
        token: TokenId,
        /// Its place in the output, from 0.
        index: u32,
        /// Its log-probability, then those of the most likely tokens, if the request asks for them
        /// and the backend gives them.
        logprobs: Option<Arc<[TokenLogprob]>>,
    },
    /// The generation ended by itself.
    Finished {
        /// Why it ended.
        reason: FinishReason,
        /// What it used.
        usage: Usage,
    },
    /// It was cancelled, by somebody or something.
    Cancelled {
        /// Who or what.
        reason: CancelReason,
        /// What it used until then.
        usage: Usage,
    },
    /// The backend failed under it.
    Failed {
        /// The backend's own words.
        cause: Arc<str>,
        /// What it used until then.
        usage: Usage,
    },
    /// It waited in a full queue, had never started, and gave its place up to a request that goes
    /// before it. It counts as refused.
    Displaced {
        /// What its client is to be told: *later*, and when.
        refusal: Refusal,
    },
}

impl EventKind {
    /// Whether this is the request's last event.
    pub fn is_terminal(&self) -> bool {
        !matches!(self, Self::Started | Self::Token { .. })
    }
}

/// Why a generation ended by itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub enum FinishReason {
    /// A stop token was sampled.
    Stop,
    /// The output limit was reached.
    Length,
}

/// Who or what cancelled a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub enum CancelReason {
    /// The client: a disconnect or an explicit abort.
    Client,
    /// Its deadline passed.
    Deadline,
    /// Its deadline has not passed yet and cannot be met any more.
    DeadlineUnreachable,
    /// It was to have started by now and still waited.
    QueueTimeout,
    /// The server is shutting down and its grace period is over.
    Drain,
}

/// Tokens that a request used.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct Usage {
    /// Tokens in the prompt.
    pub prompt_tokens: u32,
    /// Of those, tokens whose KV came from the prefix cache at the first start.
    pub cached_tokens: u32,
    /// Tokens generated, a final stop token not counted.
    pub output_tokens: u32,
    /// Times that it gave up its blocks and had to wait again.
    pub preemptions: u32,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_few_ask_for_makes_no_event_larger() {
        // The cause of a failure and what it used.
        let failed = size_of::<Arc<str>>() + size_of::<Usage>() + size_of::<usize>();
        assert!(size_of::<EventKind>() <= failed);
    }
}
