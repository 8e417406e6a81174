//! What the scheduler says of an attempt, as the row that its client would have written.

use serve_core::{FinishReason, InvalidRequest, Span, Time};
use serve_sched::sim::{Row, Terminal};

use crate::store::record::{Chunk, Record};
use crate::transport::drive::{AttemptError, note_end};
use crate::transport::engine::ending::{self, Unanswered};
use crate::transport::engine::finish_reason;

/// Why a client has left.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Left {
    /// The workload said so.
    Planned,
    /// The answer is of no use any more.
    Deadline,
    /// Its patience was at its end.
    OutOfPatience,
}

/// What has happened to an attempt so far, as its client sees it.
#[derive(Clone, Debug, Default)]
pub(super) struct Course {
    sent: Time,
    /// When tokens came, if each one's time is kept.
    tokens: Vec<Time>,
    left: Option<(Time, Left)>,
}

impl Course {
    pub(super) fn sent(at: Time) -> Self {
        Self {
            sent: at,
            ..Self::default()
        }
    }

    /// A token was there.
    pub(super) fn token(&mut self, seen: Time) {
        self.tokens.push(seen);
    }

    /// The client leaves; what comes later it does not see.
    pub(super) fn leave(&mut self, at: Time, why: Left) {
        self.left = self.left.or(Some((at, why)));
    }

    /// The row of an attempt that cannot be a request.
    pub(super) fn invalid(&self, row: Record, error: &InvalidRequest, origin: Time) -> Record {
        let sent_ns = Some(self.sent.since(origin).as_nanos());
        let mut row = Record {
            sent_ns,
            headers_ns: sent_ns,
            end_ns: sent_ns,
            status: Some(400),
            ..row
        };
        let failed = AttemptError::failed("invalid_value", error.to_string());
        note_end(&mut row, Err(failed));
        row
    }

    /// The row of an attempt of which the scheduler says `said`, and when its client knows. Whatever
    /// comes back is `edge` later than the scheduler's time.
    pub(super) fn ended(
        self,
        unsent: Record,
        said: &Row,
        (edge, origin): (Span, Time),
        stream: bool,
    ) -> (Record, Time) {
        let ns = |at: Time| at.since(origin).as_nanos();
        let sent_ns = Some(ns(self.sent));
        let back = |at: Time| at + edge;
        let (end, ended) = match (self.left, &said.terminal) {
            (Some((at, why)), _) => (at, Err((200, left(why)))),
            (None, terminal) => (back(said.end), ended(terminal)),
        };
        let mut chunks = self.chunks(said, edge, end, ns);
        if !stream {
            let tokens = chunks.iter().filter_map(|chunk| chunk.tokens).sum();
            chunks = match ended.is_ok() && tokens > 0 {
                true => vec![Chunk {
                    at_ns: ns(end),
                    tokens: Some(tokens),
                }],
                false => Vec::new(),
            };
        }
        let first_ns = chunks.first().map(|chunk| chunk.at_ns);
        let mut row = Record {
            sent_ns,
            connected_ns: sent_ns,
            headers_ns: first_ns.or(self.left.is_none().then_some(ns(end))),
            end_ns: Some(ns(end)),
            chunks,
            ..unsent
        };
        match ended {
            Ok(reason) => {
                row.status = Some(200);
                row.finish_reason = Some(finish_reason(reason).to_owned());
                let first = said.first_token;
                let last = match first {
                    Some(first) if said.usage.output_tokens < 2 => Some(first),
                    _ => Some(said.end),
                };
                let course = ending::Course {
                    arrival_ns: said.arrival.as_nanos(),
                    started_ns: said.started.map(Time::as_nanos),
                    first_token_ns: first.map(Time::as_nanos),
                    last_token_ns: last.map(Time::as_nanos),
                };
                let said = course.said(&said.usage);
                row.prompt_tokens = said.prompt_tokens;
                row.output_tokens = said.output_tokens;
                row.cached_tokens = said.cached_tokens;
                row.timings = said.timings;
                note_end(&mut row, Ok(()));
            }
            Err((status, error)) => {
                row.status = row.headers_ns.map(|_| match row.chunks.is_empty() {
                    true => status,
                    false => 200,
                });
                note_end(&mut row, Err(error));
            }
        }
        (row, end)
    }

    /// The pieces of the answer that came before its client had gone.
    fn chunks(&self, said: &Row, edge: Span, end: Time, ns: impl Fn(Time) -> u64) -> Vec<Chunk> {
        let chunk = |at: Time, tokens| Chunk {
            at_ns: ns(at),
            tokens: Some(tokens),
        };
        if !self.tokens.is_empty() {
            let seen = self.tokens.iter().filter(|at| **at <= end);
            return seen.map(|at| chunk(*at, 1)).collect();
        }
        let Some(first) = said.first_token.map(|at| at + edge).filter(|at| *at <= end) else {
            return Vec::new();
        };
        let mut chunks = vec![chunk(first, 1)];
        let more = said.usage.output_tokens.saturating_sub(1);
        if more > 0 && said.is_finished() {
            chunks.push(chunk(end, more));
        }
        chunks
    }
}

/// What is noted when a client has left.
fn left(why: Left) -> AttemptError {
    match why {
        Left::Planned => AttemptError::Cancelled("planned"),
        Left::Deadline => AttemptError::failed("deadline", "the deadline has passed"),
        Left::OutOfPatience => AttemptError::failed("timeout", "no end of the answer in time"),
    }
}

/// How an attempt ended whose client has stayed: why the answer is over, or its status and what is
/// noted.
fn ended(terminal: &Terminal) -> Result<FinishReason, (u16, AttemptError)> {
    let unanswered = match terminal {
        Terminal::Finished(reason) => return Ok(*reason),
        Terminal::Refused(refusal) => Unanswered::refused_over_http(refusal),
        Terminal::Cancelled(reason) => Unanswered::cancelled(*reason),
        Terminal::Failed => Unanswered::failed("the device failed"),
    };
    Err((unanswered.status, unanswered.error))
}
