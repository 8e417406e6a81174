//! The loop of the inference thread: plan a step, have the device run it, book what came of it, hand
//! on what happened, wait as long as there is nothing to do.

use std::sync::Arc;
use std::thread;
use std::time::Duration;

use serve_core::{Backend, StepOutcome, StepPlan, Time};
use tokio::sync::mpsc;
use tracing::{debug, warn};

use super::clock::Clock;
use super::shared::{Planned, SharedScheduler};
use super::update::{Batch, Message};
use crate::metrics::Metrics;

pub(super) struct Drive {
    pub(super) backend: Box<dyn Backend + Send>,
    pub(super) shared: Arc<SharedScheduler>,
    pub(super) messages: mpsc::Sender<Message>,
    pub(super) clock: Clock,
    pub(super) metrics: Arc<Metrics>,
}

/// Why the loop has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Over {
    /// The scheduler is closed, or nobody listens any more.
    Closed,
    /// The scheduler is broken.
    Broken,
}

/// How a look at the work ended.
enum Went {
    /// Look again, after this long at the latest.
    On(Option<Duration>),
    Broken,
}

impl Drive {
    pub(super) fn run(mut self) -> Over {
        let mut plan = StepPlan::new();
        let mut outcome = StepOutcome::new();
        let mut patience = Some(Duration::ZERO);
        while self.shared.wait(patience) {
            // What has come of a cancellation must not wait for the step.
            if !self.hand_on() {
                return Over::Closed;
            }
            match self.step(&mut plan, &mut outcome) {
                Went::On(next) => patience = next,
                Went::Broken => return Over::Broken,
            }
            if !self.hand_on() {
                return Over::Closed;
            }
        }
        Over::Closed
    }

    /// Runs one step, if there is one to run.
    fn step(&mut self, plan: &mut StepPlan, outcome: &mut StepOutcome) -> Went {
        let begun = self.clock.now();
        match self.shared.plan(begun, plan) {
            Planned::Step => {}
            Planned::Nothing(wake) => {
                let left = |wake| self.left_until(wake).unwrap_or_default();
                return Went::On(wake.map(left));
            }
            Planned::Broken => return Went::Broken,
        }
        match self.backend.execute(plan, outcome) {
            Ok(()) => {
                let until = begun + outcome.elapsed;
                // A device has used this time up by itself; a mock has only computed it.
                if let Some(left) = self.left_until(until) {
                    thread::sleep(left);
                }
                self.shared.booked(until, plan, Ok(outcome));
                let sequences = plan.segments().len() as u32;
                // One that runs nothing only lets the backend forget requests.
                if sequences > 0 {
                    let took = self.clock.now().since(begun);
                    self.metrics.stepped(took, sequences);
                }
            }
            Err(error) => {
                warn!(step = plan.step().get(), %error, "a step failed");
                self.shared.booked(self.clock.now(), plan, Err(&error));
            }
        }
        Went::On(Some(Duration::ZERO))
    }

    /// Hands on what has happened since the last time. Returns whether anybody still listens.
    fn hand_on(&self) -> bool {
        let mut batch = Batch::default();
        self.shared.take_events(&mut batch);
        if batch.is_empty() {
            return true;
        }
        let sent = self.messages.blocking_send(Message::Batch(batch));
        if sent.is_err() {
            debug!("nobody listens to the inference thread any more");
        }
        sent.is_ok()
    }

    fn left_until(&self, time: Time) -> Option<Duration> {
        let left = time.since(self.clock.now());
        (!left.is_zero()).then(|| left.into())
    }
}
