//! What all requests to one engine share: its connections, the gate in front of it, the budget of retries, and the
//! signs of its life.

use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use axum::body::Bytes;
use axum::http::{HeaderMap, HeaderValue, Response};
use http_body_util::BodyExt;
use hyper::body::{Body, Incoming};
use serve_core::{Span, Time};
use serve_sched::Dispatcher;
use serve_sched::adapter::AsyncDispatcher;
use serve_sched::{FailedAttempt, RetryBudget, RetrySettings};
use tokio::sync::Notify;

use super::client::{Client, SendError};
use crate::metrics::UpstreamCounts;
use crate::terms::TIMEOUT_HEADER;

/// One engine and the gate in front of it; a clone is the same one.
#[derive(Clone)]
pub(super) struct Engine(Arc<Shared>);

struct Shared {
    client: Client,
    gate: AsyncDispatcher,
    counts: UpstreamCounts,
    retries: Mutex<RetryBudget>,
    /// Told when a request has found the engine gone.
    suspect: Notify,
    /// When something last came from the engine, or it was given something to do, in nanoseconds.
    progress: AtomicU64,
    /// Requests whose clients do not take what the engine has said.
    unread: AtomicU32,
    finishes_cancelled: bool,
}

/// A request on its way out.
pub(super) struct Outgoing {
    pub(super) path: &'static str,
    pub(super) headers: HeaderMap,
    pub(super) body: Bytes,
    pub(super) deadline: Option<Time>,
}

impl Engine {
    /// Must be called inside a tokio runtime.
    pub(super) fn new(client: Client, dispatcher: Dispatcher, finishes_cancelled: bool) -> Self {
        let seed = RandomState::new().hash_one("retries");
        Self(Arc::new(Shared {
            client,
            gate: AsyncDispatcher::spawn(dispatcher),
            counts: UpstreamCounts::default(),
            retries: Mutex::new(RetryBudget::new(RetrySettings::default(), seed)),
            suspect: Notify::new(),
            progress: AtomicU64::new(0),
            unread: AtomicU32::new(0),
            finishes_cancelled,
        }))
    }

    pub(super) fn gate(&self) -> &AsyncDispatcher {
        &self.0.gate
    }

    pub(super) fn client(&self) -> &Client {
        &self.0.client
    }

    pub(super) fn counts(&self) -> &UpstreamCounts {
        &self.0.counts
    }

    pub(super) fn now(&self) -> Time {
        self.0.gate.now()
    }

    /// Whether the answers to cancelled requests are read to their end.
    pub(super) fn finishes_cancelled(&self) -> bool {
        self.0.finishes_cancelled
    }

    /// A request has found the engine gone.
    pub(super) fn suspect(&self) {
        self.0.suspect.notify_one();
    }

    /// Waits until a request has found the engine gone.
    pub(super) async fn suspected(&self) {
        self.0.suspect.notified().await;
    }

    /// The engine has something to do; the first request after a rest begins the time that it may be silent.
    pub(super) fn begins(&self) {
        if self.0.gate.stats().running <= 1 {
            self.made_progress();
        }
    }

    /// Something has come from the engine.
    pub(super) fn made_progress(&self) {
        self.0
            .progress
            .store(self.now().as_nanos(), Ordering::Relaxed);
    }

    /// An answer, each part of which is a sign of the engine's life, however it is read.
    pub(super) fn heard<'a>(
        &'a self,
        body: &'a mut Incoming,
    ) -> impl Body<Data = Bytes, Error = hyper::Error> + Unpin + 'a {
        body.map_frame(|frame| {
            self.made_progress();
            frame
        })
    }

    /// Waits for a client to take something: that it takes its time is no silence of the engine.
    pub(super) async fn unread<T>(&self, taken: impl Future<Output = T>) -> T {
        let _unread = Unread::of(self);
        taken.await
    }

    /// For how long nothing has come from the engine though it has something to do.
    pub(super) fn without_progress(&self) -> Span {
        let last = Time::from_nanos(self.0.progress.load(Ordering::Relaxed));
        let unread = self.0.unread.load(Ordering::Relaxed);
        match self.0.gate.stats().running.saturating_sub(unread) {
            0 => Span::ZERO,
            _ => self.now().since(last),
        }
    }

    /// Sends a request; if that has not reached the engine, once more, where the budget has a retry left and
    /// the request the time.
    ///
    /// # Errors
    ///
    /// [`SendError`] of the last attempt.
    pub(super) async fn send(self, out: Outgoing) -> Result<Response<Incoming>, SendError> {
        self.retries(|budget, _| budget.original());
        let first = self.attempt(&out).await;
        let Err(SendError::Unsent(_)) = &first else {
            return first;
        };
        let failed = FailedAttempt {
            number: 1,
            deadline: out.deadline,
            refusal: None,
        };
        let Some(wait) = self.retries(|budget, now| Some(budget.retry(now, &failed)?.since(now)))
        else {
            return first;
        };
        self.counts().retried();
        tokio::time::sleep(wait.into()).await;
        self.attempt(&out).await
    }

    async fn attempt(&self, out: &Outgoing) -> Result<Response<Incoming>, SendError> {
        let mut headers = out.headers.clone();
        if let Some(deadline) = out.deadline {
            let left = HeaderValue::from(left_ms(self.now(), deadline));
            headers.insert(TIMEOUT_HEADER, left);
        }
        self.client()
            .post(out.path, headers, out.body.clone())
            .await
    }

    fn retries<T>(&self, with: impl FnOnce(&mut RetryBudget, Time) -> T) -> T {
        let now = self.now();
        // Nothing here panics half-way through a change.
        let mut budget = self
            .0
            .retries
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        with(&mut budget, now)
    }
}

/// A request whose client does not take what there is for it, while this is held.
struct Unread<'a>(&'a Engine);

impl<'a> Unread<'a> {
    fn of(engine: &'a Engine) -> Self {
        engine.0.unread.fetch_add(1, Ordering::Relaxed);
        Self(engine)
    }
}

impl Drop for Unread<'_> {
    fn drop(&mut self) {
        self.0.made_progress();
        self.0.0.unread.fetch_sub(1, Ordering::Relaxed);
    }
}

/// What is left until a deadline, in whole milliseconds and at least one.
fn left_ms(now: Time, deadline: Time) -> u64 {
    deadline.since(now).max(Span::from_millis(1)).as_millis()
}
