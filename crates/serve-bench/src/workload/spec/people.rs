//! For whom requests are sent, in which class, and how patient those are who wait.

use std::num::NonZeroU32;

use serde::{Deserialize, Serialize};
use serve_sched::RetrySettings;

use super::{Lengths, Positive, Probability, Wrong};
use crate::workload::slo::Slo;

/// Somebody with an API key.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Tenant {
    /// What rows call it.
    pub name: String,
    /// How much of the whole, beside the shares of the others.
    #[serde(default = "Positive::one", skip_serializing_if = "Positive::is_one")]
    pub share: Positive,
    /// The environment variable that holds its API key. Absent: the key of the command line.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub api_key_env: Option<String>,
    /// The class that it always asks for. Absent: drawn by the classes' shares.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub class: Option<String>,
}

/// A way to be served. Its name goes to the server in the header `x-request-class`.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Class {
    /// The server's name for it.
    pub name: String,
    /// How much of the whole, beside the shares of the others.
    #[serde(default = "Positive::one", skip_serializing_if = "Positive::is_one")]
    pub share: Positive,
    /// After how long from its scheduled send an answer is of no use any more. The server is told what
    /// is left of it (header `x-request-timeout-ms`), and the client hangs up when it has passed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub deadline_ms: Option<Positive>,
    /// Whether those who wait sometimes hang up.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cancel: Option<Cancel>,
    /// Retries of this class alone, with a budget of its own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retry: Option<Retry>,
    /// What makes an answer goodput in this class, where it differs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub slo: Option<Slo>,
    /// More for the body of each request, such as vLLM's `priority`.
    #[serde(default, skip_serializing_if = "toml::Table::is_empty")]
    pub extra: toml::Table,
}

/// How often, and when, the client hangs up on its own.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Cancel {
    /// In which share of the requests.
    pub probability: Probability,
    /// After so many milliseconds from the send.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub after_ms: Option<Lengths>,
    /// After so many tokens, or chunks where the server does not count tokens.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub after_tokens: Option<Lengths>,
}

/// The one of the two that is given.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum CancelAfter<'a> {
    /// Milliseconds.
    Millis(&'a Lengths),
    /// Tokens.
    Tokens(&'a Lengths),
}

impl Cancel {
    /// When it hangs up.
    pub fn after(&self) -> Option<CancelAfter<'_>> {
        match (&self.after_ms, &self.after_tokens) {
            (Some(millis), None) => Some(CancelAfter::Millis(millis)),
            (None, Some(tokens)) => Some(CancelAfter::Tokens(tokens)),
            _ => None,
        }
    }

    fn wrong(&self) -> Option<Wrong> {
        match self.after() {
            None => Some(Wrong::new(
                "cancel",
                "give after_ms or after_tokens, and one of them only",
            )),
            Some(CancelAfter::Millis(lengths)) => lengths.wrong("cancel.after_ms", 0),
            Some(CancelAfter::Tokens(lengths)) => lengths.wrong("cancel.after_tokens", 1),
        }
    }
}

impl Class {
    pub(super) fn wrong(&self) -> Option<Wrong> {
        self.cancel.as_ref().and_then(Cancel::wrong)
    }
}

/// Whether a failed attempt is made again: a budget that all requests share, the server's
/// `Retry-After`, and on top of it a random part of an exponential backoff.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct Retry {
    /// Attempts for one request at most, the original included.
    pub attempts_max: NonZeroU32,
    /// Retries for every hundred originals.
    pub retries_percent: u32,
    /// Retries there are to begin with.
    pub reserve: u32,
    /// How long to wait before the first retry at most, beyond `Retry-After`; doubled for each
    /// further one.
    pub backoff_ms: u32,
    /// The longest that this becomes.
    pub backoff_ms_max: u32,
}

impl Default for Retry {
    fn default() -> Self {
        let defaults = RetrySettings::default();
        let millis = |span: serve_core::Span| u32::try_from(span.as_millis()).unwrap_or(u32::MAX);
        Self {
            attempts_max: NonZeroU32::new(defaults.attempts_max).unwrap_or(NonZeroU32::MIN),
            retries_percent: defaults.retries_percent,
            reserve: defaults.reserve,
            backoff_ms: millis(defaults.backoff),
            backoff_ms_max: millis(defaults.backoff_max),
        }
    }
}

impl From<Retry> for RetrySettings {
    fn from(retry: Retry) -> Self {
        let millis = |ms: u32| serve_core::Span::from_millis(u64::from(ms));
        Self {
            attempts_max: retry.attempts_max.get(),
            retries_percent: retry.retries_percent,
            reserve: retry.reserve,
            backoff: millis(retry.backoff_ms),
            backoff_max: millis(retry.backoff_ms_max),
        }
    }
}
