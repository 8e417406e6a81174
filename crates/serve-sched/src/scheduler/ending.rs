//! The end of a request: one answer to its client, and everything that it held given back.

use std::sync::Arc;

use serve_core::{
    CancelReason, EventKind, FinishReason, Refusal, Request, RequestId, Span, Time, Usage,
};

use super::Scheduler;
use super::live::Stage;
use crate::admit::{Cause, Ended};
use crate::journal::Decision;

/// How a request ends.
pub(super) enum End {
    Finished(FinishReason),
    Cancelled(CancelReason),
    Failed(Arc<str>),
    Displaced(Refusal),
}

impl Scheduler {
    /// Ends a request that has left the queue without being taken. It may have started before and
    /// been preempted.
    pub(super) fn end_waiting(&mut self, now: Time, request: &Request, end: End) {
        let slot = self.ids.get(request.id());
        let unused = Usage {
            prompt_tokens: request.prompt_tokens(),
            ..Usage::default()
        };
        let (usage, ran) = slot.map_or((unused, None), |slot| {
            let live = &self.live[slot];
            (live.usage(), Some(now.since(live.started_at)))
        });
        self.answer(now, request, usage, ran, end);
        if self.probe.request == Some(request.id()) {
            self.probe.request = None;
        }
        if let Some(slot) = slot {
            if self.live[slot].announced {
                self.release_id(request.id());
            }
            self.forget(slot);
        }
    }

    /// Ends a running request. Its blocks are given up now, or when the step in flight, which
    /// writes to them, is complete.
    pub(super) fn end(&mut self, now: Time, slot: usize, end: End) {
        let live = &mut self.live[slot];
        debug_assert_eq!(live.stage, Stage::Running, "a request ends once");
        live.stage = Stage::Ended;
        self.unswept = true;
        let (request, usage) = (Arc::clone(&live.request), live.usage());
        let ran = now.since(live.started_at);
        let (id, announced, in_flight) = (live.id, live.announced, live.in_flight);
        if announced {
            self.release_id(id);
        }
        if !in_flight {
            self.release_blocks(slot);
        }
        if let Some(deadline) = request.deadline() {
            self.deadlines.remove(&(deadline, slot));
        }
        self.class(request.class()).running -= 1;
        self.answer(now, &request, usage, Some(ran), end);
    }

    /// Sends the one terminal event of a request, counts and records it, and tells the policies.
    fn answer(&mut self, now: Time, request: &Request, usage: Usage, ran: Option<Span>, end: End) {
        let cause = match end {
            End::Finished(_) => Cause::Finished,
            End::Cancelled(reason) => Cause::Cancelled(reason),
            End::Failed(_) => Cause::Failed,
            End::Displaced(_) => Cause::Displaced,
        };
        let ended = Ended {
            request,
            cause,
            usage,
            ran,
        };
        self.gate.ended(now, &ended);
        let output_tokens = usage.output_tokens;
        let class = request.class();
        let (decision, kind) = match end {
            End::Displaced(refusal) => {
                // The gate has recorded it.
                self.count(class, |counters| counters.refused += 1);
                return self.emit(now, request.id(), EventKind::Displaced { refusal });
            }
            End::Finished(reason) => {
                self.count(class, |counters| counters.finished += 1);
                (
                    Decision::Finished {
                        reason,
                        output_tokens,
                    },
                    EventKind::Finished { reason, usage },
                )
            }
            End::Cancelled(reason) => {
                self.count(class, |counters| counters.cancelled += 1);
                (
                    Decision::Cancelled {
                        reason,
                        output_tokens,
                    },
                    EventKind::Cancelled { reason, usage },
                )
            }
            End::Failed(cause) => {
                self.count(class, |counters| counters.failed += 1);
                let decision = Decision::Failed {
                    cause: Arc::clone(&cause),
                    output_tokens,
                };
                (decision, EventKind::Failed { cause, usage })
            }
        };
        self.gate.journal().write(now, request.id(), || decision);
        self.emit(now, request.id(), kind);
    }

    /// Has the backend forget a request with the next plan. Its id does not come back until the
    /// backend has: a plan may not announce a request that it lets go.
    fn release_id(&mut self, id: RequestId) {
        self.releases.push(id);
        self.parting.insert(id, 0);
    }

    /// Gives a request's blocks up, from the tail.
    pub(super) fn release_blocks(&mut self, slot: usize) {
        let table = self.live[slot].take_table();
        while let Some(block) = table.pop() {
            self.pool.release(block);
        }
    }

    /// Frees the slot of a request that holds nothing any more and keeps its buffers.
    fn forget(&mut self, slot: usize) {
        let live = self.live.remove(slot);
        self.ids.remove(live.id);
        self.spare.push(live.blocks);
    }

    /// Takes those who no longer run out of the batch.
    pub(super) fn sweep(&mut self) {
        if !std::mem::take(&mut self.unswept) {
            return;
        }
        let mut running = std::mem::take(&mut self.running);
        running.retain(|&slot| match self.live[slot].stage {
            Stage::Running => true,
            Stage::Waiting => false,
            Stage::Ended => {
                self.forget(slot);
                false
            }
        });
        self.running = running;
    }
}
