//! The requests that are in the engine, and where what happens to them goes.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use serve_core::{CancelReason, Event, EventKind, Refusal, Request, RequestId, Time};
use tokio::sync::{OwnedSemaphorePermit, mpsc};

use super::clock::Clock;
use super::inbox::{Command, Inbox};
use crate::metrics::Metrics;

/// What one request's task is told.
#[derive(Clone, Debug, PartialEq)]
pub enum Update {
    /// The scheduler has taken the request.
    Accepted,
    /// The scheduler has not taken it. The last update.
    Refused(Refusal),
    /// Something happened to it; after a terminal event nothing more comes.
    Happened(Event),
    /// The task fell this many updates behind and the request was cancelled. The last update.
    FellBehind(usize),
    /// The inference thread is gone. The last update.
    EngineStopped,
}

impl Update {
    /// Whether no other update follows.
    pub fn is_last(&self) -> bool {
        match self {
            Self::Accepted => false,
            Self::Happened(event) => event.kind.is_terminal(),
            Self::Refused(_) | Self::FellBehind(_) | Self::EngineStopped => true,
        }
    }
}

/// All updates of one step, on their way from the inference thread.
#[derive(Debug, Default)]
pub(super) struct Batch {
    pub(super) updates: Vec<(RequestId, Update)>,
    /// When it was noticed that the requests had to be called off which now have been.
    pub(super) called_off: Vec<Time>,
}

impl Batch {
    pub(super) fn is_empty(&self) -> bool {
        self.updates.is_empty() && self.called_off.is_empty()
    }
}

/// What the inference thread says.
#[derive(Debug)]
pub(super) enum Message {
    /// What happened in a step.
    Batch(Batch),
    /// The engine has panicked, and everything that it had accepted is gone.
    EngineLost,
}

/// A place among the requests that may be in the server at once. Dropping it gives it back.
#[derive(Debug)]
pub struct Place(#[expect(dead_code, reason = "held for its drop")] OwnedSemaphorePermit);

impl Place {
    pub(super) fn new(permit: OwnedSemaphorePermit) -> Self {
        Self(permit)
    }
}

#[derive(Debug)]
struct Entry {
    /// Holds one slot more than the updates that may lie in it, for the last update.
    updates: mpsc::Sender<Update>,
    /// Whether the present engine has it. Until then it lies in the inbox, which outlives engines.
    accepted: bool,
    deadline: Option<Time>,
    _place: Place,
}

/// The table of live requests. An entry, and with it the request's place, goes when the engine has
/// let go of the request, not when the client has.
#[derive(Debug, Default)]
pub(super) struct Live {
    entries: Mutex<HashMap<RequestId, Entry>>,
}

impl Live {
    /// Enters a request of which at most `buffer` updates may lie unread.
    pub(super) fn enter(
        &self,
        request: &Request,
        place: Place,
        buffer: usize,
    ) -> mpsc::Receiver<Update> {
        let (updates, receiver) = mpsc::channel(buffer + 1);
        let entry = Entry {
            updates,
            accepted: false,
            deadline: request.deadline(),
            _place: place,
        };
        self.lock().insert(request.id(), entry);
        receiver
    }

    /// Takes out a request that never reached the engine.
    pub(super) fn leave(&self, id: RequestId) {
        self.lock().remove(&id);
    }

    pub(super) fn len(&self) -> usize {
        self.lock().len()
    }

    fn deliver(&self, batch: Batch, way: &WayOut) {
        let call_off = |id| {
            let _ = way.inbox.push(Command::Cancel {
                id,
                reason: CancelReason::Client,
                noticed: way.clock.now(),
            });
        };
        let mut called_off = batch.called_off;
        let mut entries = self.lock();
        for (id, update) in batch.updates {
            let Some(entry) = entries.get_mut(&id) else {
                continue;
            };
            entry.accepted |= update == Update::Accepted;
            let last = update.is_last();
            if is_late(&update) {
                called_off.extend(entry.deadline);
            }
            if last || entry.updates.capacity() > 1 {
                // A closed channel means that the client is gone; its cancellation is on the way.
                let _ = entry.updates.try_send(update);
            } else {
                let unread = entry.updates.max_capacity() - 1;
                if entry.updates.try_send(Update::FellBehind(unread)).is_ok() {
                    call_off(id);
                }
            }
            if last {
                entries.remove(&id);
            }
        }
        drop(entries);
        // Only now are the places free as well.
        let now = way.clock.now();
        for noticed in called_off {
            way.metrics.released(now.since(noticed));
        }
    }

    /// The engine is gone, and with it the requests that it had accepted.
    fn fail_accepted(&self) {
        for (_, entry) in self.lock().extract_if(|_, entry| entry.accepted) {
            let _ = entry.updates.try_send(Update::EngineStopped);
        }
    }

    fn fail_all(&self) {
        for (_, entry) in self.lock().drain() {
            let _ = entry.updates.try_send(Update::EngineStopped);
        }
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<RequestId, Entry>> {
        // Nothing here panics half-way through a change, so a poisoned table is a sound one.
        self.entries.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Whether it says that the request's time was up.
fn is_late(update: &Update) -> bool {
    let Update::Happened(event) = update else {
        return false;
    };
    let EventKind::Cancelled { reason, .. } = event.kind else {
        return false;
    };
    reason == CancelReason::Deadline
}

/// What handing out needs beside the table.
#[derive(Debug)]
pub(super) struct WayOut {
    pub(super) inbox: Arc<Inbox>,
    pub(super) clock: Clock,
    pub(super) metrics: Arc<Metrics>,
}

/// Hands each batch out to the requests' own tasks until the inference thread ends, then tells all
/// that are left that it has.
pub(super) async fn fan_out(live: Arc<Live>, way: WayOut, mut messages: mpsc::Receiver<Message>) {
    while let Some(message) = messages.recv().await {
        match message {
            Message::Batch(batch) => live.deliver(batch, &way),
            Message::EngineLost => live.fail_accepted(),
        }
    }
    live.fail_all();
}
