//! The requests that are in the engine, and where what happens to them goes.

use std::collections::BTreeMap;
use std::mem;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use serve_core::{CancelReason, Class, Event, EventKind, Request, RequestId, Span, Time};
use serve_sched::driver::{NotTaken, SharedScheduler};
use tokio::sync::mpsc;

use super::permits::Permit;
use super::update::{Message, Update};
use crate::metrics::Metrics;

#[derive(Debug)]
struct Entry {
    /// Holds one slot more than the updates that may lie in it, for the last update.
    updates: mpsc::Sender<Update>,
    deadline: Option<Time>,
    class: Class,
    arrival: Time,
    /// Whether it has left the queue for the first time.
    started: bool,
    /// When it was noticed that the client is gone.
    gone_at: Option<Time>,
    permit: Permit,
}

/// The table of live requests. An entry, and with it the request's permit, goes when the engine has
/// let go of the request, not when the client has. Its lock is taken before the scheduler's.
pub(super) struct Live {
    entries: Mutex<BTreeMap<RequestId, Entry>>,
    shared: Arc<SharedScheduler>,
    metrics: Arc<Metrics>,
}

impl Live {
    pub(super) fn new(shared: Arc<SharedScheduler>, metrics: Arc<Metrics>) -> Self {
        Self {
            entries: Mutex::default(),
            shared,
            metrics,
        }
    }

    /// Puts in a request whose updates go to `updates`, a channel with one slot more than may lie
    /// unread in it.
    pub(super) fn submit(
        &self,
        request: Request,
        permit: Permit,
        updates: mpsc::Sender<Update>,
    ) -> Result<(), NotTaken> {
        let (id, deadline) = (request.id(), request.deadline());
        let (class, arrival) = (request.class(), request.arrival());
        let mut entries = self.lock();
        self.shared.submit(request)?;
        let entry = Entry {
            updates,
            deadline,
            class,
            arrival,
            started: false,
            gone_at: None,
            permit,
        };
        entries.insert(id, entry);
        Ok(())
    }

    /// Cancels a request because its client is gone. One that is gone already has had its last event.
    pub(super) fn cancel(&self, id: RequestId) {
        let now = self.shared.now();
        if let Some(entry) = self.lock().get_mut(&id) {
            entry.gone_at.get_or_insert(now);
        }
        self.shared.cancel(id, CancelReason::Client);
    }

    /// How long the request of each class that has waited longest for its first step has waited. O(live).
    pub(super) fn oldest_waits(&self, now: Time) -> Vec<(Class, Span)> {
        let mut oldest = BTreeMap::new();
        for entry in self.lock().values().filter(|entry| !entry.started) {
            let wait = now.since(entry.arrival);
            let longest = oldest.entry(entry.class).or_insert(wait);
            *longest = wait.max(*longest);
        }
        oldest.into_iter().collect()
    }

    pub(super) fn len(&self) -> usize {
        self.lock().len()
    }

    fn deliver(&self, events: Vec<Event>) {
        let (mut behind, mut noticed) = (Vec::new(), Vec::new());
        let mut entries = self.lock();
        for event in events {
            let id = event.request;
            let Some(entry) = entries.get_mut(&id) else {
                continue;
            };
            entry.started |= matches!(event.kind, EventKind::Started);
            let last = event.kind.is_terminal();
            let displaced = matches!(event.kind, EventKind::Displaced { .. });
            if let EventKind::Cancelled { reason, .. } = event.kind {
                noticed.extend(entry.noticed(reason));
            }
            if last || entry.updates.capacity() > 1 {
                // A closed channel means that the client is gone; its cancellation is on the way.
                let _ = entry.updates.try_send(Update::Happened(event));
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
        let now = self.shared.now();
        for id in behind {
            self.cancel(id);
        }
        for noticed in noticed {
            self.metrics.released(now.since(noticed));
        }
    }

    fn fail_all(&self) {
        for entry in mem::take(&mut *self.lock()).into_values() {
            let _ = entry.updates.try_send(Update::EngineStopped);
        }
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<RequestId, Entry>> {
        // Nothing here panics half-way through a change, so a poisoned table is a sound one.
        self.entries.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Entry {
    /// When it was noticed that the request had to be cancelled.
    fn noticed(&self, reason: CancelReason) -> Option<Time> {
        match reason {
            CancelReason::Client => self.gone_at,
            CancelReason::Deadline => self.deadline,
            _ => None,
        }
    }
}

/// Hands each batch out to the requests' own tasks until the inference thread ends. Those in an
/// engine that is lost are told that.
pub(super) async fn fan_out(live: Arc<Live>, mut messages: mpsc::Receiver<Message>) {
    while let Some(message) = messages.recv().await {
        match message {
            Message::Batch(events) => live.deliver(events),
            Message::EngineLost(told) => {
                live.fail_all();
                let _ = told.send(());
            }
        }
    }
    live.fail_all();
}
