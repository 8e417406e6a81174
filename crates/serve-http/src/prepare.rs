//! Work that is done for a request before the engine knows of it: reading its JSON, rendering its chat
//! template, turning its text into tokens.
//!
//! A template and the rules of a tokenizer belong to a model, and both can take any time; so none of it runs
//! on the threads that move bytes. As many pieces of work run at once as there are cores, those of long texts
//! on half of them, so that short ones do not wait behind. A piece that has not begun when its client leaves
//! is not begun; one that runs holds what it was given, such as its body's part of the memory for bodies,
//! until it ends.

use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::thread::{self, available_parallelism};

use axum::body::Bytes;
use crossbeam_channel::{Sender, unbounded};
use tokio::sync::{Semaphore, oneshot};

use crate::error::Problem;

/// Texts of more bytes are long.
const LONG_BYTES: usize = 64 << 10;

/// JSON of at most so many bytes is read where it came in: that takes some ten microseconds.
pub(crate) const INLINE_JSON_BYTES_MAX: usize = 4 << 10;

type Work = Box<dyn FnOnce() + Send>;

/// The threads for such work. They end with the last clone.
#[derive(Clone, Debug)]
pub(crate) struct Preparation {
    queue: Sender<Work>,
    long: Arc<Semaphore>,
}

/// The work has panicked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Panicked;

impl Preparation {
    /// A thread for each core.
    ///
    /// # Errors
    ///
    /// Where the system gives no thread.
    pub(crate) fn start() -> io::Result<Self> {
        Self::on(available_parallelism().map_or(2, usize::from))
    }

    fn on(cores: usize) -> io::Result<Self> {
        // Two at least, one of which is not for long texts.
        let cores = cores.max(2);
        // Threads of their own, not the runtime's for what blocks: in a queue that is never empty they do not
        // fall asleep, and no piece costs a wake-up.
        let (queue, works) = unbounded::<Work>();
        for core in 0..cores {
            let works = works.clone();
            let work = move || {
                for work in works {
                    // Its client is told by what it waits for.
                    let _ = catch_unwind(AssertUnwindSafe(work));
                }
            };
            // Where one is refused, those before it end with their queue.
            thread::Builder::new()
                .name(format!("prepare-{core}"))
                .spawn(work)?;
        }
        Ok(Self {
            queue,
            long: Arc::new(Semaphore::new(cores / 2)),
        })
    }

    /// Runs `work` on `bytes` of text on a thread where it may take its time.
    ///
    /// # Errors
    ///
    /// [`Panicked`].
    pub(crate) async fn run<T: Send + 'static>(
        &self,
        bytes: usize,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, Panicked> {
        let long = match bytes > LONG_BYTES {
            // Never closed.
            true => Some(
                Arc::clone(&self.long)
                    .acquire_owned()
                    .await
                    .map_err(|_| Panicked)?,
            ),
            false => None,
        };
        let (done, result) = oneshot::channel();
        let work = Box::new(move || {
            if !done.is_closed() {
                // Sent to nobody if the client has left meanwhile.
                let _ = done.send(work());
            }
            drop(long);
        });
        self.queue.send(work).map_err(|_| Panicked)?;
        result.await.map_err(|_| Panicked)
    }

    /// What `read` makes of a body: at once of a small one, on a thread of a large one.
    ///
    /// # Errors
    ///
    /// Those of `read`.
    pub(crate) async fn read<T: Send + 'static>(
        &self,
        body: &Bytes,
        read: impl FnOnce(&[u8]) -> Result<T, Problem> + Send + 'static,
    ) -> Result<T, Problem> {
        if body.len() <= INLINE_JSON_BYTES_MAX {
            return read(body);
        }
        let bytes = body.clone();
        let done = self.run(body.len(), move || read(&bytes)).await;
        done.map_err(|_| Problem::Body)?
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};
    use std::sync::mpsc;
    use std::time::Duration;

    use super::*;

    #[tokio::test]
    async fn a_short_text_does_not_wait_behind_long_ones() {
        let preparation = Preparation::on(2).unwrap();
        let (release, held) = mpsc::channel::<()>();
        let held = Arc::new(std::sync::Mutex::new(held));
        let long: Vec<_> = (0..8)
            .map(|_| {
                let (preparation, held) = (preparation.clone(), Arc::clone(&held));
                tokio::spawn(async move {
                    let work = move || held.lock().unwrap().recv().is_ok();
                    preparation.run(LONG_BYTES + 1, work).await
                })
            })
            .collect();
        tokio::time::sleep(Duration::from_millis(20)).await;
        assert_eq!(preparation.run(3, || 5).await, Ok(5));
        for _ in 0..8 {
            release.send(()).unwrap();
        }
        for long in long {
            assert_eq!(long.await.unwrap(), Ok(true));
        }
    }

    /// The client of what waits leaves.
    #[tokio::test]
    async fn what_has_not_begun_when_nobody_waits_for_it_is_not_begun() {
        let preparation = Preparation::on(2).unwrap();
        let begun = Arc::new(AtomicU32::new(0));
        let (release, held) = mpsc::channel::<()>();
        let first = {
            let preparation = preparation.clone();
            tokio::spawn(async move {
                preparation
                    .run(LONG_BYTES + 1, move || held.recv().is_ok())
                    .await
            })
        };
        tokio::time::sleep(Duration::from_millis(20)).await;
        let left: Vec<_> = (0..20)
            .map(|_| {
                let (preparation, begun) = (preparation.clone(), Arc::clone(&begun));
                tokio::spawn(async move {
                    let work = move || begun.fetch_add(1, Ordering::Relaxed);
                    preparation.run(LONG_BYTES + 1, work).await
                })
            })
            .collect();
        tokio::time::sleep(Duration::from_millis(20)).await;
        left.iter().for_each(tokio::task::JoinHandle::abort);
        release.send(()).unwrap();
        assert_eq!(first.await.unwrap(), Ok(true));
        assert_eq!(preparation.run(LONG_BYTES + 1, || ()).await, Ok(()));
        assert_eq!(begun.load(Ordering::Relaxed), 0);
    }

    #[tokio::test]
    async fn a_panic_costs_its_own_request_alone() {
        let preparation = Preparation::on(2).unwrap();
        for _ in 0..5 {
            let panicked = preparation.run(1, || panic!("a template")).await;
            assert_eq!(panicked, Err::<(), _>(Panicked));
        }
        assert_eq!(preparation.run(1, || 1).await, Ok(1));
    }
}
