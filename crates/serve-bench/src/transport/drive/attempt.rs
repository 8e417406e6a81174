//! The notebook of one attempt.

use std::borrow::Cow;
use std::time::Duration;

use serve_core::Span;
use thiserror::Error;
use tokio::time::Instant;

use crate::store::record::{Chunk, Outcome, Record, Timings};

/// Why an attempt did not end with a whole answer.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub(crate) enum AttemptError {
    /// The server is too busy.
    #[error("{message}")]
    Refused {
        /// The server's word for it, or `http_503`.
        code: String,
        /// What the server says.
        message: String,
        /// When it asks to be tried again.
        retry_after: Option<Duration>,
    },
    /// Anything else.
    #[error("{message}")]
    Failed {
        /// One word to count by.
        cause: Cow<'static, str>,
        /// What happened.
        message: String,
    },
    /// The client cancelled it.
    #[error("{0}")]
    Cancelled(&'static str),
}

impl AttemptError {
    /// What an answer with a bad status is: a refusal if the server is too busy (429, 503), a failure
    /// otherwise.
    pub(crate) fn of_status(
        status: u16,
        code: String,
        message: String,
        retry_after: Option<Duration>,
    ) -> Self {
        match status {
            429 | 503 => Self::Refused {
                code,
                message,
                retry_after,
            },
            _ => Self::failed(code, message),
        }
    }

    /// A failure.
    pub(crate) fn failed(cause: impl Into<Cow<'static, str>>, message: impl Into<String>) -> Self {
        Self::Failed {
            cause: cause.into(),
            message: message.into(),
        }
    }
}

/// What a chunk said, beside its text.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Said {
    /// Tokens in the prompt.
    pub prompt_tokens: Option<u32>,
    /// Tokens in the answer so far.
    pub output_tokens: Option<u32>,
    /// Prompt tokens from a cache.
    pub cached_tokens: Option<u32>,
    /// Where the time went.
    pub timings: Option<Timings>,
}

/// What has happened to one attempt so far.
#[derive(Debug)]
pub(crate) struct Attempt {
    origin: Instant,
    record: Record,
    text: Option<String>,
    tokens: u32,
    tokens_max: Option<u32>,
}

impl Attempt {
    /// An attempt that begins now. It keeps its answer's text if a later turn carries it, and is over
    /// after `tokens_max` tokens.
    pub(super) fn new(
        origin: Instant,
        record: Record,
        keeps_text: bool,
        tokens_max: Option<u32>,
    ) -> Self {
        let mut attempt = Self {
            origin,
            record,
            text: keeps_text.then(String::new),
            tokens: 0,
            tokens_max,
        };
        attempt.record.sent_ns = Some(attempt.now());
        attempt
    }

    pub(super) fn sent_ns(&self) -> u64 {
        self.record.sent_ns.unwrap_or_default()
    }

    /// Nanoseconds since the start of the run. One reading serves for all that one network read brings.
    pub(crate) fn now(&self) -> u64 {
        nanos_since(self.origin)
    }

    /// There is a connection.
    pub(crate) fn connected(&mut self) {
        self.record.connected_ns = Some(self.now());
    }

    /// The answer's status and headers are there.
    pub(crate) fn headers(&mut self, status: u16, request_id: Option<String>) {
        self.record.headers_ns = Some(self.now());
        self.record.status = Some(status);
        self.record.server_request_id = request_id;
    }

    /// A piece of text is there, of so many tokens where the server says so.
    ///
    /// # Errors
    ///
    /// [`AttemptError::Cancelled`] when as many tokens are there as the client wanted to wait for.
    pub(crate) fn text(
        &mut self,
        at_ns: u64,
        tokens: Option<u32>,
        text: &str,
    ) -> Result<(), AttemptError> {
        self.record.chunks.push(Chunk { at_ns, tokens });
        if let Some(kept) = &mut self.text {
            kept.push_str(text);
        }
        self.tokens += tokens.unwrap_or(1);
        match self.tokens_max {
            Some(max) if self.tokens >= max => Err(AttemptError::Cancelled("planned")),
            _ => Ok(()),
        }
    }

    /// The piece that was noted last has more text.
    pub(crate) fn more_text(&mut self, text: &str) {
        if let Some(kept) = &mut self.text {
            kept.push_str(text);
        }
    }

    /// The server says why it stopped.
    pub(crate) fn finish_reason(&mut self, reason: String) {
        self.record.finish_reason = Some(reason);
    }

    /// The server says what it counted.
    pub(crate) fn said(&mut self, said: &Said) {
        let record = &mut self.record;
        record.prompt_tokens = said.prompt_tokens.or(record.prompt_tokens);
        record.output_tokens = said.output_tokens.or(record.output_tokens);
        record.cached_tokens = said.cached_tokens.or(record.cached_tokens);
        record.timings = said.timings.or(record.timings);
    }

    /// The last word of the answer is there; what the connection still has to do does not count.
    pub(crate) fn ended(&mut self, at_ns: u64) {
        self.record.end_ns = Some(at_ns);
    }

    /// The row, and the text that was kept.
    pub(super) fn close(mut self, ended: Result<(), AttemptError>) -> (Record, String) {
        let now = self.now();
        let record = &mut self.record;
        record.end_ns = record.end_ns.or(Some(now));
        note_end(record, ended);
        (self.record, self.text.unwrap_or_default())
    }

    /// Whether a later turn carries the answer's text.
    pub(crate) fn keeps_text(&self) -> bool {
        self.text.is_some()
    }
}

/// Writes how an attempt ended into its row.
pub(crate) fn note_end(record: &mut Record, ended: Result<(), AttemptError>) {
    (record.outcome, record.cause) = match ended {
        Ok(()) => (Outcome::Ok, None),
        Err(AttemptError::Refused {
            code,
            message,
            retry_after,
        }) => {
            record.error = Some(message);
            record.retry_after_ms = retry_after.map(|wait| Span::from(wait).as_millis());
            (Outcome::Refused, Some(code))
        }
        Err(AttemptError::Failed { cause, message }) => {
            record.error = Some(message);
            (Outcome::Failed, Some(cause.into_owned()))
        }
        Err(AttemptError::Cancelled(cause)) => (Outcome::Cancelled, Some(cause.to_owned())),
    };
}

pub(super) fn nanos_since(origin: Instant) -> u64 {
    Span::from(Instant::now().saturating_duration_since(origin)).as_nanos()
}
