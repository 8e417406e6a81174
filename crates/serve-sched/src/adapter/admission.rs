//! The wait for a permit, as a future.

use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use serve_core::RequestId;

use super::ask::Ask;
use super::permit::Permit;
use super::rejection::Rejection;
use super::shared::Shared;

/// Waits for a [`Permit`]; made by [`AsyncDispatcher::admit`](super::AsyncDispatcher::admit).
///
/// The request [arrives](Self::arrive) when this is first polled. Dropped before that, it has never been; dropped
/// while it waits, or when its slot has been granted and not yet taken, the request is cancelled and the
/// slot goes to the next.
#[must_use = "a request arrives when its future is first polled"]
pub struct Admission {
    shared: Arc<Shared>,
    ask: Ask,
    stage: Stage,
}

#[derive(Clone, Copy, Debug)]
enum Stage {
    NotArrived,
    Arrived(RequestId),
    Over,
}

impl Admission {
    pub(super) fn new(shared: Arc<Shared>, ask: Ask) -> Self {
        Self {
            shared,
            ask,
            stage: Stage::NotArrived,
        }
    }

    /// Has the request arrive now, for a caller who has to know its id while it waits, as to
    /// [cancel](super::AsyncDispatcher::cancel) it. Of one that has arrived, the id.
    ///
    /// # Errors
    ///
    /// The [`Rejection`] of a request that is not taken; then there is nothing to wait for any more.
    ///
    /// # Panics
    ///
    /// When it has been waited for to its end.
    pub fn arrive(&mut self) -> Result<RequestId, Rejection> {
        match self.stage {
            Stage::NotArrived => self.submit(),
            Stage::Arrived(id) => Ok(id),
            Stage::Over => panic!("an admission is asked after it was ready"),
        }
    }

    fn submit(&mut self) -> Result<RequestId, Rejection> {
        let ask = &self.ask;
        let arrived = self.shared.input(|state, now| state.submit(now, ask));
        self.stage = match arrived {
            Ok(id) => Stage::Arrived(id),
            Err(_) => Stage::Over,
        };
        arrived
    }
}

impl Future for Admission {
    type Output = Result<Permit, Rejection>;

    /// # Panics
    ///
    /// When polled again after it was ready.
    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let id = self.arrive()?;
        let (granted, _before) = self.shared.read(|state| state.poll_granted(id, context));
        granted.map(|granted| {
            self.stage = Stage::Over;
            let shared = Arc::clone(&self.shared);
            granted.map(|()| Permit::new(shared, id, self.ask.clone()))
        })
    }
}

impl Drop for Admission {
    fn drop(&mut self) {
        if let Stage::Arrived(id) = self.stage {
            let waker = self.shared.input(|state, now| state.let_go(now, id, None));
            drop(waker);
        }
    }
}

impl fmt::Debug for Admission {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut debug = f.debug_struct("Admission");
        debug.field("ask", &self.ask).field("stage", &self.stage);
        debug.finish_non_exhaustive()
    }
}
