//! The loop of the inference thread: take what has come, let the engine run one step, wait as long
//! as it says, hand on what happened.

use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use serve_core::{Backend, RequestId, Time};
use serve_sched::{Engine, Progress};
use tokio::sync::mpsc;
use tracing::{debug, warn};

use super::clock::Clock;
use super::inbox::{Command, Inbox};
use super::live::{Batch, Message, Update};
use super::reading::{Past, Reading};
use crate::metrics::Metrics;

pub(super) struct Drive {
    engine: Engine<Box<dyn Backend + Send>>,
    inbox: Arc<Inbox>,
    messages: mpsc::Sender<Message>,
    clock: Clock,
    reading: Arc<Mutex<Reading>>,
    /// What the next batch will hold.
    batch: Batch,
    /// Submissions that were taken from the inbox and whose answers are not handed on.
    unanswered: Vec<RequestId>,
    /// The latest time that the engine has been told.
    told: Time,
    /// When a step ended last, or since when there is work.
    progress_at: Time,
    /// What the engines before this one have counted.
    past: Past,
    metrics: Arc<Metrics>,
}

impl Drive {
    pub(super) fn new(
        engine: Engine<Box<dyn Backend + Send>>,
        inbox: Arc<Inbox>,
        messages: mpsc::Sender<Message>,
        clock: Clock,
        reading: Arc<Mutex<Reading>>,
        metrics: Arc<Metrics>,
    ) -> Self {
        Self {
            engine,
            inbox,
            messages,
            clock,
            reading,
            batch: Batch::default(),
            unanswered: Vec::new(),
            told: Time::ZERO,
            progress_at: Time::ZERO,
            past: Past::default(),
            metrics,
        }
    }

    /// Counts on from where the engines before this one have ended.
    pub(super) fn after(mut self, past: Past) -> Self {
        self.past = past;
        self
    }

    /// Submissions that a panic has kept from being answered.
    pub(super) fn unanswered(&self) -> &[RequestId] {
        &self.unanswered
    }

    /// Runs until the inbox is closed or nobody listens any more.
    pub(super) fn run(&mut self) {
        let mut commands = Vec::new();
        let mut patience = Some(Duration::ZERO);
        while self.inbox.take(&mut commands, patience) {
            self.unanswered
                .extend(commands.iter().filter_map(Command::submitted));
            for command in commands.drain(..) {
                self.obey(command);
            }
            // Answers to commands must not wait for the step.
            if !self.hand_on() {
                return;
            }
            self.unanswered.clear();
            patience = self.step();
            if !self.hand_on() {
                return;
            }
        }
    }

    fn obey(&mut self, command: Command) {
        let now = self.now();
        if self.engine.scheduler().is_idle() {
            self.progress_at = now;
        }
        let scheduler = self.engine.scheduler_mut();
        match command {
            Command::Submit(request) => {
                let id = request.id();
                let update = match scheduler.submit(now, request) {
                    Ok(()) => Update::Accepted,
                    Err(refusal) => Update::Refused(refusal),
                };
                self.batch.updates.push((id, update));
            }
            // A request that is gone already has had its last event.
            Command::Cancel {
                id,
                reason,
                noticed,
            } => {
                if scheduler.cancel(now, id, reason) {
                    self.batch.called_off.push(noticed);
                }
            }
            Command::Drain => scheduler.drain(now),
            Command::CancelAll(reason) => scheduler.cancel_all(now, reason),
        }
    }

    /// Lets the engine run one step. Returns how long the inbox may be waited for.
    fn step(&mut self) -> Option<Duration> {
        let now = self.now();
        match self.engine.step(now) {
            Progress::Ran {
                until, segments, ..
            } => {
                // A device has used this time up by itself; a mock has only computed it.
                if let Some(left) = self.left_until(until) {
                    thread::sleep(left);
                }
                self.told = self.told.max(until);
                self.progress_at = self.now();
                // One that runs nothing only lets the backend forget requests.
                if segments > 0 {
                    self.metrics.stepped(self.progress_at.since(now), segments);
                }
                Some(Duration::ZERO)
            }
            Progress::Idle { wake } => wake.map(|wake| self.left_until(wake).unwrap_or_default()),
            Progress::Failed { step, error } => {
                warn!(step = step.get(), %error, "a step failed");
                self.progress_at = self.now();
                Some(Duration::ZERO)
            }
        }
    }

    /// Hands on what has happened since the last time. Returns whether anybody still listens.
    fn hand_on(&mut self) -> bool {
        while let Some(event) = self.engine.scheduler_mut().poll_event() {
            let update = (event.request, Update::Happened(event));
            self.batch.updates.push(update);
        }
        // Before the batch, so that whoever learns of an end sees figures that hold it.
        let reading = Reading::of(self.engine.scheduler(), &self.past, self.progress_at);
        *self.reading.lock().unwrap_or_else(PoisonError::into_inner) = reading;
        if self.batch.is_empty() {
            return true;
        }
        let batch = std::mem::take(&mut self.batch);
        let sent = self.messages.blocking_send(Message::Batch(batch));
        if sent.is_err() {
            debug!("nobody listens to the inference thread any more");
        }
        sent.is_ok()
    }

    /// The present time, never before what the engine has been told.
    fn now(&mut self) -> Time {
        self.told = self.told.max(self.clock.now());
        self.told
    }

    fn left_until(&self, time: Time) -> Option<Duration> {
        let left = time.since(self.clock.now());
        (!left.is_zero()).then(|| left.into())
    }
}
