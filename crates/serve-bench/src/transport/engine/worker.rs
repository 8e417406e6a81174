//! The loop of the engine's thread: plan a step, have the backend run it, book what came of it, wait as
//! long as there is nothing to do.

use std::sync::Arc;

use serve_core::{Backend, StepOutcome, StepPlan, Time};

use super::desk::{Desk, Planned};
use crate::transport::drive::Timer;

pub(super) struct Worker<B> {
    pub(super) backend: B,
    pub(super) desk: Arc<Desk>,
    pub(super) timer: Timer,
}

impl<B: Backend> Worker<B> {
    /// Runs until the desk is closed.
    pub(super) async fn run(mut self) {
        // Also after a panic of the backend.
        let _last = LastWord(Arc::clone(&self.desk));
        let (mut plan, mut outcome) = (StepPlan::new(), StepOutcome::new());
        loop {
            let now = self.desk.now();
            match self.desk.plan(now, &mut plan) {
                Planned::Step => self.step(now, &plan, &mut outcome).await,
                Planned::Nothing(wake) => self.desk.wait(wake).await,
                Planned::Closed => return,
            }
        }
    }

    async fn step(&mut self, begun: Time, plan: &StepPlan, outcome: &mut StepOutcome) {
        let ran = self.backend.execute(plan, outcome);
        let until = match &ran {
            Ok(()) => begun + outcome.elapsed,
            Err(_) => self.desk.now(),
        };
        // A device has used this time up by itself; a mock has only computed it.
        self.timer.sleep_until(self.desk.at(until)).await;
        let ended = ran.as_ref().map(|()| &*outcome);
        self.desk.book(until, plan, ended);
    }
}

struct LastWord(Arc<Desk>);

impl Drop for LastWord {
    fn drop(&mut self) {
        self.0.give_up();
    }
}
