//! How requests end: who is told what, once each.

use std::sync::Arc;

use serve_core::{CancelReason, Event, EventKind, Request, RequestId, Usage};

use super::{Dispatcher, Outcome, Sent};
use crate::admit::{Cause, Ended};
use crate::journal::Decision;
use crate::order::Served;

impl Dispatcher {
    pub(super) fn end_sent(&mut self, id: RequestId, sent: &Sent, outcome: Outcome) {
        let request = Arc::clone(&sent.taken.request);
        let mut used = usage(&request, sent.output_tokens);
        if let Outcome::Answered { usage, .. } = &outcome {
            used = *usage;
            let served = Served {
                prompt_tokens: usage.prompt_tokens.saturating_sub(usage.cached_tokens),
                output_tokens: usage.output_tokens.saturating_sub(sent.output_tokens),
            };
            self.gate.served(&request, served);
        }
        let cause = match (sent.answered, &outcome) {
            (Some(reason), _) => Cause::Cancelled(reason),
            (None, Outcome::Answered { .. }) => Cause::Finished,
            (None, _) => Cause::Failed,
        };
        self.engine_worked(cause == Cause::Finished);
        self.put_back.remove(&id);
        let ended = Ended {
            request: &request,
            cause,
            usage: used,
            ran: Some(self.now.since(sent.at)),
        };
        self.gate.ended(self.now, &ended);
        if sent.answered.is_some() {
            self.aborting -= 1;
        } else {
            self.answer_outcome(id, used, outcome);
        }
    }

    fn answer_outcome(&mut self, id: RequestId, usage: Usage, outcome: Outcome) {
        let output_tokens = usage.output_tokens;
        let (decision, kind) = match outcome {
            Outcome::Answered { reason, .. } => {
                self.counters.finished += 1;
                self.counters.output_tokens += u64::from(output_tokens);
                let decision = Decision::Finished {
                    reason,
                    output_tokens,
                };
                (decision, EventKind::Finished { reason, usage })
            }
            Outcome::Ignored { cause }
            | Outcome::Overloaded { cause, .. }
            | Outcome::PutBack { cause, .. } => {
                self.counters.failed += 1;
                let decision = Decision::Failed {
                    cause: Arc::clone(&cause),
                    output_tokens,
                };
                (decision, EventKind::Failed { cause, usage })
            }
        };
        self.gate.journal().write(self.now, id, || decision);
        self.emit(id, kind);
    }

    /// Ends a request that waits: one that was never sent, or one that was put back.
    pub(super) fn end_waiting(&mut self, request: &Request, reason: CancelReason) {
        let first_sent = self.put_back.remove(&request.id());
        let ended = Ended {
            request,
            cause: Cause::Cancelled(reason),
            usage: usage(request, 0),
            ran: first_sent.map(|at| self.now.since(at)),
        };
        self.gate.ended(self.now, &ended);
        self.answer_cancelled(request, 0, reason);
    }

    /// Ends those who have given their places in a full queue up.
    pub(super) fn end_displaced(&mut self) {
        while let Some((request, refusal)) = self.gate.next_displaced() {
            let ended = Ended {
                request: &request,
                cause: Cause::Displaced,
                usage: usage(&request, 0),
                ran: None,
            };
            self.gate.ended(self.now, &ended);
            self.counters.refused += 1;
            self.emit(request.id(), EventKind::Displaced { refusal });
        }
    }

    pub(super) fn answer_cancelled(
        &mut self,
        request: &Request,
        output_tokens: u32,
        reason: CancelReason,
    ) {
        self.counters.cancelled += 1;
        let usage = usage(request, output_tokens);
        self.gate
            .journal()
            .write(self.now, request.id(), || Decision::Cancelled {
                reason,
                output_tokens,
            });
        self.emit(request.id(), EventKind::Cancelled { reason, usage });
    }

    pub(super) fn emit(&mut self, request: RequestId, kind: EventKind) {
        let at = self.now;
        self.events.push_back(Event { request, at, kind });
    }
}

fn usage(request: &Request, output_tokens: u32) -> Usage {
    Usage {
        prompt_tokens: request.prompt_tokens(),
        output_tokens,
        ..Usage::default()
    }
}
