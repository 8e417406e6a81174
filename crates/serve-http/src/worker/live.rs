//! The requests that are in the engine, and where what happens to them goes.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use serve_core::{CancelReason, EventKind, Request, RequestId, Time};
use tokio::sync::mpsc;

use super::clock::Clock;
use super::permits::Permit;
use super::shared::SharedScheduler;
use super::update::{Batch, EngineNumber, Message, Update};
use crate::metrics::Metrics;

#[derive(Debug)]
struct Entry {
    /// Holds one slot more than the updates that may lie in it, for the last update.
    updates: mpsc::Sender<Update>,
    engine: EngineNumber,
    deadline: Option<Time>,
    permit: Permit,
}

/// What is entered of a request.
#[derive(Clone, Copy, Debug)]
pub(super) struct Entered {
    pub(super) id: RequestId,
    pub(super) deadline: Option<Time>,
}

impl Entered {
    pub(super) fn of(request: &Request) -> Self {
        Self {
            id: request.id(),
            deadline: request.deadline(),
        }
    }
}

/// The table of live requests. An entry, and with it the request's permit, goes when the engine has
/// let go of the request, not when the client has.
#[derive(Debug, Default)]
pub(super) struct Live {
    entries: Mutex<HashMap<RequestId, Entry>>,
}

impl Live {
    /// Enters a request whose updates go to `updates`, a channel with one slot more than may lie
    /// unread in it.
    pub(super) fn enter(
        &self,
        request: Entered,
        engine: EngineNumber,
        permit: Permit,
        updates: mpsc::Sender<Update>,
    ) {
        let entry = Entry {
            updates,
            engine,
            deadline: request.deadline,
            permit,
        };
        self.lock().insert(request.id, entry);
    }

    /// Takes out a request that the engine has not taken.
    pub(super) fn leave(&self, id: RequestId) {
        self.lock().remove(&id);
    }

    pub(super) fn len(&self) -> usize {
        self.lock().len()
    }

    fn deliver(&self, batch: Batch, way: &WayOut) {
        let mut behind = Vec::new();
        let mut called_off = batch.called_off;
        let mut entries = self.lock();
        for (id, update) in batch.updates {
            let Some(entry) = entries.get(&id) else {
                continue;
            };
            let (last, displaced) = (update.is_last(), is_displaced(&update));
            if is_late(&update) {
                called_off.extend(entry.deadline);
            }
            if last || entry.updates.capacity() > 1 {
                // A closed channel means that the client is gone; its cancellation is on the way.
                let _ = entry.updates.try_send(update);
            } else {
                let unread = entry.updates.max_capacity() - 1;
                if entry.updates.try_send(Update::FellBehind(unread)).is_ok() {
                    behind.push(id);
                }
            }
            if last && let Some(gone) = entries.remove(&id) {
                match displaced {
                    true => drop(gone.permit),
                    false => gone.permit.ended(),
                }
            }
        }
        drop(entries);
        // Only now are the permits free as well.
        let now = way.clock.now();
        // Not before: a holder of its lock may enter a request here.
        for id in behind {
            way.shared.cancel(id, CancelReason::Client, now);
        }
        for noticed in called_off {
            way.metrics.released(now.since(noticed));
        }
    }

    /// This engine is gone, and with it the requests that were in it.
    fn fail_those_in(&self, engine: EngineNumber) {
        for (_, entry) in self.lock().extract_if(|_, entry| entry.engine == engine) {
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

/// Whether it says that the request had to make room for another.
fn is_displaced(update: &Update) -> bool {
    let Update::Happened(event) = update else {
        return false;
    };
    matches!(event.kind, EventKind::Displaced { .. })
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
pub(super) struct WayOut {
    pub(super) shared: Arc<SharedScheduler>,
    pub(super) clock: Clock,
    pub(super) metrics: Arc<Metrics>,
}

/// Hands each batch out to the requests' own tasks until the inference thread ends, then tells all
/// that are left that it has.
pub(super) async fn fan_out(live: Arc<Live>, way: WayOut, mut messages: mpsc::Receiver<Message>) {
    while let Some(message) = messages.recv().await {
        match message {
            Message::Batch(batch) => live.deliver(batch, &way),
            Message::EngineLost(engine) => live.fail_those_in(engine),
        }
    }
    live.fail_all();
}
