//! Who waits for which request: each event goes to its own request's sink as soon as it has happened.

use std::collections::BTreeMap;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use serve_core::{CancelReason, Event, Request, RequestId};

use super::runner::{Outlet, Stopped};
use super::shared::{NotTaken, SharedScheduler};

/// What is told of one request: its events, of which the last one is terminal, or that the engine is gone.
pub type Word = Result<Event, Stopped>;

type Sink = Box<dyn FnMut(Word) + Send>;

/// The sinks of the live requests. Its lock is taken before the scheduler's, and held while sinks are
/// called: so each hears its words in their order, whichever thread they come from.
#[derive(Default)]
pub(super) struct Tickets {
    live: Mutex<Live>,
    all_ended: Condvar,
}

#[derive(Default)]
struct Live {
    /// Of each id, the last one is the live request's. Before it there may be others that have had the id,
    /// and are yet to be told of their end.
    sinks: BTreeMap<RequestId, Vec<(u64, Sink)>>,
    /// Tells a request from another that has had its id.
    serial: u64,
    /// A buffer.
    events: Vec<Event>,
    /// To be dropped without the lock: what they hold may be a guard.
    gone: Vec<Sink>,
}

impl Tickets {
    pub(super) fn submit(
        self: &Arc<Self>,
        shared: &Arc<SharedScheduler>,
        request: Request,
        sink: Sink,
    ) -> Result<Guard, NotTaken> {
        let id = request.id();
        let mut live = self.lock();
        let taken = shared.submit(request);
        if taken.is_ok() {
            live.serial += 1;
            let entry = (live.serial, sink);
            live.sinks.entry(id).or_default().push(entry);
        }
        let serial = live.serial;
        // Others may have had to make room for it.
        self.hand_on(live, shared);
        taken?;
        Ok(Guard {
            id,
            serial,
            tickets: Arc::clone(self),
            shared: Arc::clone(shared),
        })
    }

    /// Waits until no request is live.
    pub(super) fn wait_all_ended(&self) {
        let left = |live: &mut Live| !live.sinks.is_empty();
        drop(self.all_ended.wait_while(self.lock(), left));
    }

    fn cancel(&self, shared: &SharedScheduler, id: RequestId, serial: u64) {
        let live = self.lock();
        let last = live.sinks.get(&id).and_then(|sinks| sinks.last());
        if last.is_some_and(|last| last.0 == serial) {
            shared.cancel(id, CancelReason::Client);
            self.hand_on(live, shared);
        }
    }

    fn hand_on(&self, mut live: MutexGuard<'_, Live>, shared: &SharedScheduler) {
        let mut events = std::mem::take(&mut live.events);
        shared.take_events(&mut events);
        for event in events.drain(..) {
            live.tell(event, shared);
        }
        live.events = events;
        self.let_go(live);
    }

    fn lose(&self, events: Vec<Event>, shared: &SharedScheduler, why: &Stopped) {
        let mut live = self.lock();
        for event in events {
            live.tell(event, shared);
        }
        let left = std::mem::take(&mut live.sinks);
        for (_, mut sink) in left.into_values().flatten() {
            heard(|| sink(Err(why.clone())));
            live.gone.push(sink);
        }
        self.let_go(live);
    }

    fn let_go(&self, mut live: MutexGuard<'_, Live>) {
        if live.sinks.is_empty() {
            self.all_ended.notify_all();
        }
        let gone = std::mem::take(&mut live.gone);
        drop(live);
        drop(gone);
    }

    fn lock(&self) -> MutexGuard<'_, Live> {
        // No panic leaves a change half done: those of sinks are caught.
        self.live.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Live {
    fn tell(&mut self, event: Event, shared: &SharedScheduler) {
        let (id, last) = (event.request, event.kind.is_terminal());
        let Some(sinks) = self.sinks.get_mut(&id) else {
            return;
        };
        // Who has panicked hears nothing more.
        if !heard(|| sinks[0].1(Ok(event))) {
            let deaf = Box::new(drop);
            self.gone.push(std::mem::replace(&mut sinks[0].1, deaf));
            if !last && sinks.len() == 1 {
                shared.cancel(id, CancelReason::Client);
            }
        }
        if last {
            self.gone.push(sinks.remove(0).1);
            if sinks.is_empty() {
                self.sinks.remove(&id);
            }
        }
    }
}

/// Whether a sink has not panicked, which is the fault of one client and no other's.
fn heard(tell: impl FnOnce()) -> bool {
    catch_unwind(AssertUnwindSafe(tell)).is_ok()
}

/// A request that somebody waits for. Dropping it before the request's end cancels the request.
#[must_use = "dropping it cancels the request"]
pub struct Guard {
    id: RequestId,
    serial: u64,
    tickets: Arc<Tickets>,
    shared: Arc<SharedScheduler>,
}

impl Drop for Guard {
    fn drop(&mut self) {
        self.tickets.cancel(&self.shared, self.id, self.serial);
    }
}

/// A request as its events: an iterator that blocks, and ends after a terminal event or [`Stopped`].
/// Dropping it before that cancels the request.
pub struct Ticket {
    words: Receiver<Word>,
    _guard: Guard,
}

impl Ticket {
    pub(super) fn submit(
        tickets: &Arc<Tickets>,
        shared: &Arc<SharedScheduler>,
        request: Request,
    ) -> Result<Self, NotTaken> {
        // At most a word for each token and two more.
        let (sender, words) = channel();
        // A ticket that is being dropped listens no more.
        let sink = Box::new(move |word| drop(sender.send(word)));
        let guard = tickets.submit(shared, request, sink)?;
        Ok(Self {
            words,
            _guard: guard,
        })
    }
}

impl Iterator for Ticket {
    type Item = Word;

    fn next(&mut self) -> Option<Word> {
        self.words.recv().ok()
    }
}

/// Tells tickets, on the loop's side.
pub struct TicketOutlet(pub(super) Arc<Tickets>);

impl Outlet for TicketOutlet {
    fn hand_on(&mut self, shared: &SharedScheduler, _step: bool) -> bool {
        self.0.hand_on(self.0.lock(), shared);
        true
    }

    fn lost(&mut self, shared: &SharedScheduler, events: Vec<Event>, why: &Stopped) -> bool {
        self.0.lose(events, shared, why);
        true
    }
}

impl fmt::Debug for Guard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Guard")
            .field("id", &self.id)
            .finish_non_exhaustive()
    }
}

impl fmt::Debug for Ticket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Ticket")
            .field("guard", &self._guard)
            .finish_non_exhaustive()
    }
}

impl fmt::Debug for TicketOutlet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TicketOutlet").finish_non_exhaustive()
    }
}
