//! What rates have set aside for a text that is made tokens, and what it has cost when its request is not taken.

use std::sync::Arc;

use serve_core::{Limit, Refusal, Request, RequestId};
use serve_sched::driver::SharedScheduler;

use crate::error::Problem;

/// A part of the rates. Dropping it charges them what the work has come to by then, but where its request
/// [was taken](Self::submitted).
pub(crate) struct Reservation {
    shared: Arc<SharedScheduler>,
    /// Gone with the request that was taken.
    least: Option<Request>,
    reserved: u32,
    /// What has been done, in tokens.
    done: u32,
}

impl Reservation {
    pub(super) fn new(shared: Arc<SharedScheduler>, least: Request, reserved: u32) -> Self {
        Self {
            shared,
            least: Some(least),
            reserved,
            done: 0,
        }
    }

    /// The id under which the request is to be submitted.
    pub(crate) fn id(&self) -> Option<RequestId> {
        self.least.as_ref().map(Request::id)
    }

    /// The work begins; as long as it is not known what it comes to, it counts as what was reserved.
    pub(crate) fn begins(&mut self) {
        self.done = self.reserved;
    }

    /// The work is done.
    pub(crate) fn came_to(&mut self, tokens: usize) {
        self.done = u32::try_from(tokens).unwrap_or(u32::MAX);
    }

    /// The request has been submitted. What was refused for want of room costs nothing.
    pub(crate) fn submitted<T>(mut self, taken: &Result<T, Problem>) {
        match taken {
            Ok(_) => self.least = None,
            Err(Problem::Refused(Refusal::Later { limit, .. })) if !is_rate(limit) => self.done = 0,
            Err(Problem::NotReady(_) | Problem::EngineStopped) => self.done = 0,
            Err(_) => {}
        }
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        if let Some(least) = &self.least {
            self.shared.release(least, self.done);
        }
    }
}

fn is_rate(limit: &Limit) -> bool {
    matches!(limit, Limit::TenantRate { .. } | Limit::GlobalRate)
}
