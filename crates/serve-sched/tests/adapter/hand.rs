//! A clock and an executor that go on by hand: nothing moves unless a test moves it.

use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Wake, Waker};

use serve_core::{Span, Time};
use serve_sched::adapter::{Clock, Sleep};

/// A clock that stands still until it is advanced.
#[derive(Default)]
pub(crate) struct HandClock(Mutex<(Time, Vec<Waker>)>);

impl HandClock {
    pub(crate) fn advance(&self, span: Span) {
        let mut inner = self.0.lock().unwrap();
        inner.0 += span;
        let sleeping = std::mem::take(&mut inner.1);
        drop(inner);
        sleeping.into_iter().for_each(Waker::wake);
    }
}

/// The clock, shared by a test and an adapter.
#[derive(Clone, Default)]
pub(crate) struct Hand(pub(crate) Arc<HandClock>);

impl Clock for Hand {
    fn now(&self) -> Time {
        self.0.0.lock().unwrap().0
    }

    fn sleep_until(&self, at: Time) -> Sleep {
        let clock = self.clone();
        Box::pin(std::future::poll_fn(move |context| {
            let mut inner = clock.0.0.lock().unwrap();
            if inner.0 >= at {
                return Poll::Ready(());
            }
            inner.1.push(context.waker().clone());
            Poll::Pending
        }))
    }
}

/// A future and whether it has been woken. It is polled by [`Task::poll`] and by nothing else.
pub(crate) struct Task<T> {
    future: Option<Pin<Box<dyn Future<Output = T> + Send>>>,
    woken: Arc<Flag>,
    pub(crate) output: Option<T>,
}

#[derive(Default)]
struct Flag(AtomicBool);

impl Wake for Flag {
    fn wake(self: Arc<Self>) {
        self.0.store(true, Ordering::Relaxed);
    }
}

impl<T> Task<T> {
    pub(crate) fn new(future: impl Future<Output = T> + Send + 'static) -> Self {
        Self {
            future: Some(Box::pin(future)),
            woken: Arc::new(Flag(AtomicBool::new(true))),
            output: None,
        }
    }

    /// Polls the future, woken or not, if it has not ended.
    pub(crate) fn poll(&mut self) {
        self.woken.0.store(false, Ordering::Relaxed);
        let waker = Waker::from(Arc::clone(&self.woken));
        if let Some(future) = &mut self.future
            && let Poll::Ready(output) = future.as_mut().poll(&mut Context::from_waker(&waker))
        {
            self.future = None;
            self.output = Some(output);
        }
    }

    /// Polls it if it has been woken; whether it has.
    pub(crate) fn poll_if_woken(&mut self) -> bool {
        let woken = self.woken.0.load(Ordering::Relaxed) && self.future.is_some();
        if woken {
            self.poll();
        }
        woken
    }

    pub(crate) fn cancel(&mut self) {
        self.future = None;
    }

    pub(crate) fn is_pending(&self) -> bool {
        self.future.is_some()
    }
}
