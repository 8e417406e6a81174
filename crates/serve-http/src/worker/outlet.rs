//! How events leave the inference thread: in one message for each step.

use std::mem;

use serve_core::Event;
use serve_sched::driver::{Outlet, SharedScheduler, Stopped};
use tokio::sync::{mpsc, oneshot};
use tracing::debug;

use super::update::Message;

pub(super) struct Messages {
    messages: mpsc::Sender<Message>,
    /// What goes with the next message.
    events: Vec<Event>,
}

impl Messages {
    pub(super) fn new(messages: mpsc::Sender<Message>) -> Self {
        Self {
            messages,
            events: Vec::new(),
        }
    }

    fn send(&self, message: Message) -> bool {
        let sent = self.messages.blocking_send(message).is_ok();
        if !sent {
            debug!("nobody listens to the inference thread any more");
        }
        sent
    }
}

impl Outlet for Messages {
    fn hand_on(&mut self, shared: &SharedScheduler, step: bool) -> bool {
        shared.take_events(&mut self.events);
        // What has come of a cancellation must not wait for the step; that somebody starts goes with its token.
        let urgent = |event: &Event| event.kind.is_terminal();
        if self.events.is_empty() || step && !self.events.iter().any(urgent) {
            return true;
        }
        let events = mem::take(&mut self.events);
        self.send(Message::Batch(events))
    }

    fn lost(&mut self, _shared: &SharedScheduler, events: Vec<Event>, _why: &Stopped) -> bool {
        let mut last_words = mem::take(&mut self.events);
        last_words.extend(events);
        let (told, all_told) = oneshot::channel();
        self.send(Message::Batch(last_words))
            && self.send(Message::EngineLost(told))
            && all_told.blocking_recv().is_ok()
    }
}
