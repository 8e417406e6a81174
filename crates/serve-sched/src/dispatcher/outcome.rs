//! What came of a request that was sent, in the words of its driver, and what it says
//! of the engine's load.

use std::sync::Arc;

use serve_core::{CancelReason, FinishReason, Span, Usage};

use crate::limit::Signal;

/// What came of a request that was sent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The engine answered it to the end. How long it took is a measure of the engine's load.
    Answered {
        /// Why the generation ended.
        reason: FinishReason,
        /// What it used.
        usage: Usage,
    },
    /// It failed for a reason that says nothing of the load: a client's mistake (400, 404, 422), or
    /// work that was aborted.
    Ignored {
        /// The engine's own words.
        cause: Arc<str>,
    },
    /// It failed because the engine has too much to do: a time-out, 429, 503.
    Overloaded {
        /// The engine's own words.
        cause: Arc<str>,
        /// When the engine wants to be asked again, if it says so; at most a minute counts. Nothing is sent
        /// before that, unless another request leaves the engine.
        retry_after: Option<Span>,
    },
    /// The engine refused it before it began (429, 503), and it is to be sent again: it waits in its
    /// old place, its deadline goes on. It fails if it has been put back
    /// [too often](super::Dispatcher::with_put_backs_max) or if tokens of it have come back.
    PutBack {
        /// The engine's own words.
        cause: Arc<str>,
        /// How long it waits at least, a minute at most. Without a hint 100 ms, and twice as long each time.
        retry_after: Option<Span>,
    },
}

impl Outcome {
    /// What it says of the load, of a request that may have been `cancelled` before.
    pub(super) fn signal(&self, cancelled: Option<CancelReason>) -> Signal {
        match (self, cancelled) {
            (Self::Overloaded { .. } | Self::PutBack { .. }, _) => Signal::Overloaded,
            (Self::Answered { .. }, None) => Signal::Answered,
            (Self::Ignored { .. }, _) | (Self::Answered { .. }, Some(_)) => Signal::Ignored,
        }
    }

    /// Why it failed; `None` if it was answered.
    pub(super) fn cause(&self) -> Option<&Arc<str>> {
        match self {
            Self::Answered { .. } => None,
            Self::Ignored { cause }
            | Self::Overloaded { cause, .. }
            | Self::PutBack { cause, .. } => Some(cause),
        }
    }

    /// For how long the engine wants to be left alone, given how often it has said so of this request
    /// before.
    pub(super) fn pause(&self, times_before: u32) -> Option<Span> {
        let asked = match self {
            Self::Overloaded { retry_after, .. } => *retry_after,
            Self::PutBack { retry_after, .. } => Some(retry_after.unwrap_or_else(|| {
                let doubled = 1_u64.checked_shl(times_before).unwrap_or(u64::MAX);
                PAUSE * doubled
            })),
            Self::Answered { .. } | Self::Ignored { .. } => None,
        };
        asked.map(|pause| pause.min(PAUSE_MAX))
    }
}

/// The longest that an engine is left alone. A hint of a year, where nothing is under way that could
/// show that the engine works again, would be an outage of a year.
const PAUSE_MAX: Span = Span::from_secs(60);

/// How long a request waits that was put back for the first time, without a hint.
const PAUSE: Span = Span::from_millis(100);
