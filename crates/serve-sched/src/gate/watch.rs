//! What an engine that runs in steps tells a gate, and whom the admission policies give up.

use std::sync::Arc;

use serve_core::{Request, RequestId, Time};

use super::{Asked, Gate};
use crate::admit::{Room, Watch};
use crate::demand::Demand;
use crate::lengths::Expected;
use crate::pace::{Queued, StepDone};

impl Gate {
    /// A step has run, of an engine that runs in steps.
    pub(crate) fn stepped(&mut self, done: &StepDone) {
        self.pace.stepped(done);
    }

    /// What the engine has beside slots.
    pub(crate) fn set_room(&mut self, room: Room) {
        self.room = room;
    }

    /// Which admitted requests are to be [asked about](Self::gives_up).
    pub(crate) fn watch(&self) -> Watch {
        self.watch
    }

    /// Whether an admission policy gives an admitted request up, of which `done` tokens have been generated and
    /// so many prompt tokens are left to run.
    pub(crate) fn gives_up(
        &mut self,
        now: Time,
        request: &Request,
        prompt_left: u32,
        done: u32,
    ) -> bool {
        let asked = Asked {
            ahead: Demand::default(),
            own: Demand::of(prompt_left, Expected::certain(1), self.block_size),
            queued: Queued::default(),
        };
        let (policies, load) = self.policies_and_load(now, &asked);
        policies
            .iter_mut()
            .any(|policy| policy.gives_up(request, done, &load))
    }

    /// The request that is next, if an admission policy gives it up.
    pub(crate) fn head_given_up(&mut self, now: Time, prompt_left: u32, done: u32) -> bool {
        let Some(slot) = self.head_in_time(now) else {
            return false;
        };
        let request = Arc::clone(&self.queue.get(slot).request);
        request.deadline().is_some() && self.gives_up(now, &request, prompt_left, done)
    }

    /// A running request has been stopped, to be put back when the caller is ready.
    pub(crate) fn stopped(&mut self, id: RequestId) {
        self.started.remove(id, None);
    }
}
