//! The right to work at one request, which gives itself back.

use std::fmt;
use std::sync::Arc;
use std::task::{Context, Poll};

use serve_core::{FinishReason, RequestId, Span, Usage};

use super::ask::Ask;
use super::rejection::Rejection;
use super::shared::Shared;
use crate::dispatcher::Outcome;

/// A slot of the service, held for one request. Whatever becomes of a permit, its slot comes back
/// exactly once.
///
/// | what becomes of it | the request ends as | what an adaptive limit hears |
/// |---|---|---|
/// | [`finish`](Self::finish), [`finish_with`](Self::finish_with) | finished | how long it took |
/// | [`ignore`](Self::ignore): a client's mistake (400, 404, 422) | failed | nothing |
/// | [`overloaded`](Self::overloaded): a time-out, 429, 503 | failed | that it was too much |
/// | dropped, in a panic too | cancelled by its client | nothing |
///
/// The dispatcher may end the request first: its deadline passes, or a drain's grace period is over.
/// Then [`ended`](Self::ended) is ready, and what is said afterwards changes no count; the slot is free
/// when the permit is gone.
#[must_use = "a permit that is dropped cancels its request"]
pub struct Permit {
    shared: Arc<Shared>,
    id: RequestId,
    ask: Ask,
    /// Tokens reported; none may be none, or nobody who counts.
    output_tokens: u32,
    held: bool,
}

impl Permit {
    pub(super) fn new(shared: Arc<Shared>, id: RequestId, ask: Ask) -> Self {
        Self {
            shared,
            id,
            ask,
            output_tokens: 0,
            held: true,
        }
    }

    /// The request's id, as the journal has it.
    pub fn id(&self) -> RequestId {
        self.id
    }

    /// Reports tokens as they come back, for orders that share them out, for limits that measure first
    /// tokens, and for the count of those that a cancelled request had.
    pub fn served(&mut self, output_tokens: u32) {
        self.output_tokens = self.output_tokens.saturating_add(output_tokens);
        let id = self.id;
        self.shared
            .input(|state, now| state.dispatcher.served(now, id, output_tokens));
    }

    /// Waits until the dispatcher ends the request, and says why: then the work on it is of no use
    /// to anybody. Dropping this future changes nothing.
    pub async fn ended(&mut self) -> Rejection {
        std::future::poll_fn(|context| self.poll_ended(context)).await
    }

    /// As [`ended`](Self::ended), for those who poll. Wakes the task that asked last.
    pub fn poll_ended(&mut self, context: &mut Context<'_>) -> Poll<Rejection> {
        let (ended, _before) = self.shared.read(|state| state.poll_ended(self.id, context));
        ended
    }

    /// The service has answered the request. It used the tokens that were [reported](Self::served); if
    /// none were, it counts as having used all that it asked for.
    pub fn finish(self) {
        let output_tokens = match self.output_tokens {
            0 => self.ask.output_tokens_max(),
            reported => reported,
        };
        let usage = Usage {
            prompt_tokens: self.ask.prompt_tokens(),
            output_tokens,
            ..Usage::default()
        };
        self.finish_with(usage);
    }

    /// The service has answered the request, and says what that took.
    pub fn finish_with(mut self, usage: Usage) {
        let reason = match usage.output_tokens < self.ask.output_tokens_max() {
            true => FinishReason::Stop,
            false => FinishReason::Length,
        };
        self.end(Some(Outcome::Answered { reason, usage }));
    }

    /// The request failed for a reason that says nothing of the load.
    pub fn ignore(mut self, cause: impl Into<Arc<str>>) {
        let cause = cause.into();
        self.end(Some(Outcome::Ignored { cause }));
    }

    /// The request failed because the service has too much to do. If it says for how long, nothing is
    /// sent to it meanwhile, unless another request leaves it.
    pub fn overloaded(mut self, cause: impl Into<Arc<str>>, retry_after: Option<Span>) {
        let cause = cause.into();
        self.end(Some(Outcome::Overloaded { cause, retry_after }));
    }

    fn end(&mut self, outcome: Option<Outcome>) {
        if std::mem::take(&mut self.held) {
            let id = self.id;
            let waker = self
                .shared
                .input(|state, now| state.let_go(now, id, outcome));
            drop(waker);
        }
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        self.end(None);
    }
}

impl fmt::Debug for Permit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut debug = f.debug_struct("Permit");
        debug.field("id", &self.id).field("ask", &self.ask);
        debug.finish_non_exhaustive()
    }
}
