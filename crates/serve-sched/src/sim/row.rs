//! What a simulation says of one request, and the rows of those that have not ended yet.

use serve_core::{
    CancelReason, Class, Event, EventKind, FinishReason, Refusal, Request, RequestId, Span,
    TenantId, Time, Usage,
};
use slab::Slab;

use crate::ids::IdTable;

/// One request, from its arrival to its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
pub struct Row {
    /// Which request.
    pub request: RequestId,
    /// Whose.
    pub tenant: TenantId,
    /// Its class.
    pub class: Class,
    /// When it arrived.
    pub arrival: Time,
    /// When its first segment was planned.
    pub started: Option<Time>,
    /// When its first token was sampled.
    pub first_token: Option<Time>,
    /// When it ended or was refused.
    pub end: Time,
    /// Tokens that it used.
    pub usage: Usage,
    /// How it ended.
    pub terminal: Terminal,
}

/// How a request ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
pub enum Terminal {
    /// It was not taken in.
    Refused(Refusal),
    /// By itself.
    Finished(FinishReason),
    /// It was cancelled.
    Cancelled(CancelReason),
    /// The backend failed.
    Failed,
}

impl Row {
    /// From its arrival to its start.
    pub fn waited(&self) -> Option<Span> {
        Some(self.started?.since(self.arrival))
    }

    /// Time to first token (TTFT).
    pub fn first_token_time(&self) -> Option<Span> {
        Some(self.first_token?.since(self.arrival))
    }

    /// Time per output token (TPOT): the mean time between tokens after the first.
    pub fn time_per_output_token(&self) -> Option<Span> {
        let tokens = u64::from(self.usage.output_tokens);
        match (self.first_token, self.terminal) {
            (Some(first), Terminal::Finished(FinishReason::Length)) if tokens > 1 => {
                Some(self.end.since(first) / (tokens - 1))
            }
            _ => None,
        }
    }

    /// From its arrival to its end.
    pub fn response_time(&self) -> Span {
        self.end.since(self.arrival)
    }

    /// Whether it ended by itself.
    pub fn is_finished(&self) -> bool {
        matches!(self.terminal, Terminal::Finished(_))
    }

    pub(super) fn refused(request: &Request, at: Time, refusal: Refusal) -> Self {
        Self {
            end: at,
            terminal: Terminal::Refused(refusal),
            ..Self::open(request)
        }
    }

    fn open(request: &Request) -> Self {
        Self {
            request: request.id(),
            tenant: request.tenant(),
            class: request.class(),
            arrival: request.arrival(),
            started: None,
            first_token: None,
            end: Time::MAX,
            usage: Usage {
                prompt_tokens: request.prompt_tokens(),
                ..Usage::default()
            },
            terminal: Terminal::Failed,
        }
    }
}

/// Rows of requests that have not ended.
#[derive(Debug, Default)]
pub(super) struct OpenRows {
    rows: Slab<Row>,
    ids: IdTable,
}

impl OpenRows {
    pub(super) fn begin(&mut self, request: &Request) {
        let slot = self.rows.insert(Row::open(request));
        self.ids.insert(request.id(), slot);
    }

    /// Books an event; gives the row out with its last one.
    pub(super) fn take(&mut self, event: &Event) -> Option<Row> {
        let slot = self.ids.get(event.request)?;
        let row = &mut self.rows[slot];
        let (terminal, usage) = match &event.kind {
            EventKind::Started => {
                row.started = Some(event.at);
                return None;
            }
            EventKind::Token { .. } => {
                row.first_token = row.first_token.or(Some(event.at));
                return None;
            }
            EventKind::Finished { reason, usage } => (Terminal::Finished(*reason), *usage),
            EventKind::Cancelled { reason, usage } => (Terminal::Cancelled(*reason), *usage),
            EventKind::Failed { usage, .. } => (Terminal::Failed, *usage),
            EventKind::Displaced { refusal } => (Terminal::Refused(*refusal), row.usage),
        };
        self.ids.remove(event.request);
        let row = self.rows.remove(slot);
        Some(Row {
            end: event.at,
            usage,
            terminal,
            ..row
        })
    }
}
