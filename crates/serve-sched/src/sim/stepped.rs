//! An engine behind a dispatcher that is itself a scheduler with a device: what a dispatcher does in
//! front of a server of this kind, both in virtual time.

use std::collections::VecDeque;
use std::sync::Arc;

use serve_core::{
    Backend, CancelReason, EventKind, Request, RequestId, StepOutcome, StepPlan, Time,
};

use super::dispatch::{EngineModel, Reply};
use crate::dispatcher::Outcome;
use crate::scheduler::{Scheduler, TokenEvents};

/// A scheduler and its device, driven one request at a time. What its admission refuses is put back.
#[derive(Debug)]
pub struct SteppedEngine<B> {
    scheduler: Scheduler,
    backend: B,
    plan: StepPlan,
    outcome: StepOutcome,
    /// When the step in flight ends.
    ends: Option<Time>,
    replies: VecDeque<(RequestId, Reply)>,
}

impl<B: Backend> SteppedEngine<B> {
    /// An idle engine of a scheduler and the device whose limits it was made for.
    pub fn new(mut scheduler: Scheduler, backend: B) -> Self {
        scheduler.set_token_events(TokenEvents::First);
        Self {
            scheduler,
            backend,
            plan: StepPlan::new(),
            outcome: StepOutcome::new(),
            ends: None,
            replies: VecDeque::new(),
        }
    }

    /// Begins a step, if none is in flight and something can run.
    fn begin(&mut self, now: Time) {
        while self.ends.is_none() && self.scheduler.plan_into(now, &mut self.plan) {
            match self.backend.execute(&self.plan, &mut self.outcome) {
                Ok(()) => self.ends = Some(now + self.outcome.elapsed),
                Err(error) => self.scheduler.book(now, self.plan.step(), Err(&error)),
            }
        }
    }

    fn complete(&mut self, now: Time) {
        if self.ends.is_some_and(|end| end <= now) {
            self.ends = None;
            let (step, outcome) = (self.plan.step(), Ok(&self.outcome));
            self.scheduler.book(now, step, outcome);
        }
    }

    fn take_events(&mut self) {
        while let Some(event) = self.scheduler.poll_event() {
            let outcome = match event.kind {
                EventKind::Started => continue,
                EventKind::Token { .. } => {
                    self.replies.push_back((event.request, Reply::Tokens(1)));
                    continue;
                }
                EventKind::Finished { reason, usage } => Outcome::Answered { reason, usage },
                EventKind::Cancelled { .. } => Outcome::Ignored {
                    cause: Arc::from("cancelled"),
                },
                EventKind::Failed { cause, .. } => Outcome::Ignored { cause },
                EventKind::Displaced { refusal } => Outcome::PutBack {
                    cause: Arc::from("displaced"),
                    retry_after: refusal.retry_after(),
                },
            };
            self.replies
                .push_back((event.request, Reply::Done(outcome)));
        }
    }
}

impl<B: Backend> EngineModel for SteppedEngine<B> {
    fn send(&mut self, now: Time, request: &Arc<Request>) {
        if let Err(refusal) = self.scheduler.submit(now, Arc::clone(request)) {
            let outcome = Outcome::PutBack {
                cause: Arc::from(refusal.to_string()),
                retry_after: refusal.retry_after(),
            };
            self.replies.push_back((request.id(), Reply::Done(outcome)));
        }
    }

    fn abort(&mut self, now: Time, id: RequestId) {
        self.scheduler.cancel(now, id, CancelReason::Client);
    }

    fn reply(&mut self, now: Time) -> Option<(RequestId, Reply)> {
        self.complete(now);
        self.begin(now);
        self.take_events();
        self.replies.pop_front()
    }

    fn next_at(&self) -> Option<Time> {
        self.ends.or_else(|| self.scheduler.next_timeout())
    }
}
