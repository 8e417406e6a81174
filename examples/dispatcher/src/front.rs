//! The driver that a dispatcher needs in an async program: one task owns it, is its clock, and does
//! what it says. About all there is to embedding one.

use std::collections::BTreeMap;
use std::sync::Arc;

use serve_core::{Event, EventKind, Refusal, Request, RequestId, Span, Time};
use serve_sched::{Dispatcher, Outcome};
use tokio::sync::{mpsc, oneshot};
use tokio::task::{AbortHandle, JoinSet};
use tokio::time::{Instant, sleep_until};

use crate::service::Service;

/// How a request ended, or why it was not taken.
pub(crate) type Answer = Result<EventKind, Refusal>;

/// A handle to the front: share it among the tasks that have requests.
#[derive(Clone)]
pub(crate) struct Front {
    submissions: mpsc::UnboundedSender<(Request, oneshot::Sender<Answer>)>,
    origin: Instant,
}

impl Front {
    /// Puts `dispatcher` in front of `service`, in a task of its own that ends with the last handle.
    pub(crate) fn start(dispatcher: Dispatcher, service: Service) -> Self {
        let (submissions, incoming) = mpsc::unbounded_channel();
        let origin = Instant::now();
        let driver = Driver {
            dispatcher,
            service,
            origin,
            replies: BTreeMap::new(),
            sent: BTreeMap::new(),
            working: JoinSet::new(),
        };
        tokio::spawn(driver.run(incoming));
        Self {
            submissions,
            origin,
        }
    }

    /// The time on the front's clock.
    pub(crate) fn now(&self) -> Time {
        time_since(self.origin)
    }

    /// Waits for a request's end. `None` if the front is gone.
    pub(crate) async fn answer(&self, request: Request) -> Option<Answer> {
        let (reply, answer) = oneshot::channel();
        self.submissions.send((request, reply)).ok()?;
        answer.await.ok()
    }
}

struct Driver {
    dispatcher: Dispatcher,
    service: Service,
    origin: Instant,
    replies: BTreeMap<RequestId, oneshot::Sender<Answer>>,
    sent: BTreeMap<RequestId, AbortHandle>,
    working: JoinSet<(RequestId, Outcome)>,
}

impl Driver {
    async fn run(
        mut self,
        mut incoming: mpsc::UnboundedReceiver<(Request, oneshot::Sender<Answer>)>,
    ) {
        loop {
            // After every input: send what may be sent, hand out what has happened.
            self.send_next();
            self.hand_out_events();
            let timeout = self.dispatcher.next_timeout();
            let at = timeout.map(|at| self.origin + at.since(Time::ZERO).into());
            tokio::select! {
                submission = incoming.recv() => match submission {
                    Some((request, reply)) => self.submit(request, reply),
                    None => return,
                },
                Some(Ok((id, outcome))) = self.working.join_next() => {
                    self.sent.remove(&id);
                    self.dispatcher.done(time_since(self.origin), id, outcome);
                }
                () = sleep_until(at.unwrap_or(self.origin)), if at.is_some() => {
                    self.dispatcher.handle_timeout(time_since(self.origin));
                }
            }
        }
    }

    fn submit(&mut self, request: Request, reply: oneshot::Sender<Answer>) {
        let id = request.id();
        match self.dispatcher.submit(time_since(self.origin), request) {
            Ok(()) => {
                self.replies.insert(id, reply);
            }
            // Whoever asked may be gone; then nobody wants the refusal.
            Err(refusal) => drop(reply.send(Err(refusal))),
        }
    }

    fn send_next(&mut self) {
        while let Some(request) = self.dispatcher.next(time_since(self.origin)) {
            let (id, service) = (request.id(), self.service.clone());
            let work = async move { (id, service.complete(Arc::clone(&request)).await) };
            let handle = self.working.spawn(work);
            self.sent.insert(id, handle);
        }
    }

    fn hand_out_events(&mut self) {
        while let Some(Event { request, kind, .. }) = self.dispatcher.poll_event() {
            if !kind.is_terminal() {
                continue;
            }
            // Cancelled while the service works at it: an aborted call lets go of its slot at once.
            if let Some(handle) = self.sent.remove(&request) {
                handle.abort();
                let cause = Arc::from("aborted");
                let outcome = Outcome::Ignored { cause };
                self.dispatcher
                    .done(time_since(self.origin), request, outcome);
                self.send_next();
            }
            if let Some(reply) = self.replies.remove(&request) {
                drop(reply.send(Ok(kind)));
            }
        }
    }
}

fn time_since(origin: Instant) -> Time {
    Time::ZERO + Span::from(origin.elapsed())
}
