//! Reads the bodies of requests within three bounds: bytes of one body, bytes of all bodies that are
//! being read, and time.
//!
//! The second bound is what makes thousands of clients that each begin a long body cost what one
//! server can spare. A body that does not fit is refused at once, as it would be for want of a place.

use std::sync::Arc;

use axum::body::{Body, Bytes, HttpBody};
use axum::extract::Request;
use axum::http::{HeaderValue, header};
use http_body_util::BodyExt;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, TryAcquireError};
use tokio::time::{Instant, timeout_at};

use crate::error::Problem;
use crate::settings::ConnectionSettings;

/// Memory is counted in pieces of so many bytes, because a semaphore counts to 2^29 on small
/// platforms.
const PIECE_BYTES: usize = 1 << 10;

/// The memory for bodies, and the limits that each of them has.
#[derive(Debug)]
pub(crate) struct Bodies {
    pieces: Arc<Semaphore>,
    settings: ConnectionSettings,
}

/// A body, which takes its part of the memory while it is held.
#[derive(Debug)]
pub(crate) struct Read {
    pub(crate) bytes: Bytes,
    _pieces: Option<OwnedSemaphorePermit>,
}

impl Bodies {
    pub(crate) fn new(settings: ConnectionSettings) -> Self {
        let pieces = settings.bodies_bytes_max.div_ceil(PIECE_BYTES);
        Self {
            pieces: Arc::new(Semaphore::new(pieces.min(Semaphore::MAX_PERMITS))),
            settings,
        }
    }

    /// Reads a body that is declared as JSON. The declaration is required because it is what keeps a
    /// foreign web page from sending requests to a server on its visitor's own machine.
    ///
    /// # Errors
    ///
    /// The [`Problem`] with the declaration, the length, the time, the memory or the connection.
    pub(crate) async fn read_json(&self, request: Request) -> Result<Read, Problem> {
        let content_type = request.headers().get(header::CONTENT_TYPE);
        if !content_type.is_some_and(is_json) {
            let given = content_type.map(|value| String::from_utf8_lossy(value.as_bytes()));
            return Err(Problem::MediaType {
                given: given.map_or_else(|| "absent".to_owned(), |given| format!("{given:?}")),
            });
        }
        self.read(request.into_body()).await
    }

    async fn read(&self, mut body: Body) -> Result<Read, Problem> {
        let max = self.settings.body_bytes_max;
        if body.size_hint().lower() > max as u64 {
            return Err(Problem::TooLarge { max });
        }
        let limit = self.settings.body_timeout;
        let deadline = limit.map(|limit| (limit, Instant::now() + limit));
        let mut parts = Vec::new();
        let mut length = 0;
        let mut pieces: Option<OwnedSemaphorePermit> = None;
        loop {
            let next = match deadline {
                None => body.frame().await,
                Some((limit, deadline)) => {
                    timeout_at(deadline, body.frame())
                        .await
                        .map_err(|_| Problem::SlowBody {
                            seconds: limit.as_secs_f64(),
                        })?
                }
            };
            let Some(frame) = next else { break };
            let frame = frame.map_err(|_| Problem::Body)?;
            // What is no data are trailers, which say nothing here.
            let Ok(part) = frame.into_data() else {
                continue;
            };
            length += part.len();
            if length > max {
                return Err(Problem::TooLarge { max });
            }
            self.take(&mut pieces, length)?;
            parts.push(part);
        }
        let bytes = match parts.len() {
            1 => parts.remove(0),
            _ => parts.concat().into(),
        };
        Ok(Read {
            bytes,
            _pieces: pieces,
        })
    }

    /// Takes memory until there is enough for `length` bytes.
    fn take(&self, taken: &mut Option<OwnedSemaphorePermit>, length: usize) -> Result<(), Problem> {
        let held = taken.as_ref().map_or(0, OwnedSemaphorePermit::num_permits);
        let missing = length.div_ceil(PIECE_BYTES).saturating_sub(held);
        let missing = u32::try_from(missing).unwrap_or(u32::MAX);
        match Arc::clone(&self.pieces).try_acquire_many_owned(missing) {
            Ok(more) => {
                match taken {
                    Some(taken) => taken.merge(more),
                    None => *taken = Some(more),
                }
                Ok(())
            }
            // It is never closed.
            Err(TryAcquireError::NoPermits | TryAcquireError::Closed) => Err(Problem::BodiesFull {
                max: self.settings.bodies_bytes_max,
            }),
        }
    }
}

fn is_json(value: &HeaderValue) -> bool {
    let Ok(value) = value.to_str() else {
        return false;
    };
    let essence = value.split(';').next().unwrap_or_default().trim();
    essence.eq_ignore_ascii_case("application/json")
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use futures::stream;

    use super::*;

    fn bodies(bodies_bytes_max: usize) -> Bodies {
        Bodies::new(ConnectionSettings {
            bodies_bytes_max,
            body_bytes_max: 10_000,
            ..ConnectionSettings::default()
        })
    }

    /// A body of some parts, each a while after the one before.
    fn slow(parts: usize, bytes: usize, pause: Duration) -> Body {
        Body::from_stream(stream::unfold(0, move |n| async move {
            tokio::time::sleep(pause).await;
            let part = Bytes::from(vec![b'x'; bytes]);
            (n < parts).then_some((Ok::<_, std::convert::Infallible>(part), n + 1))
        }))
    }

    #[tokio::test(start_paused = true)]
    async fn a_body_that_trickles_in_is_given_up_in_time() {
        let bodies = bodies(1 << 20);
        let started = Instant::now();
        let problem = bodies.read(slow(100, 1, Duration::from_secs(1))).await;
        assert_eq!(problem.unwrap_err(), Problem::SlowBody { seconds: 30.0 });
        assert_eq!(started.elapsed(), Duration::from_secs(30));
        let read = bodies.read(slow(20, 3, Duration::from_secs(1))).await;
        assert_eq!(read.unwrap().bytes.len(), 60);
    }

    #[tokio::test(start_paused = true)]
    async fn all_bodies_together_stay_within_their_memory() {
        let bodies = bodies(8 << 10);
        let pause = Duration::from_millis(1);
        let first = bodies.read(slow(3, 2_000, pause)).await.unwrap();
        let full = bodies.read(slow(3, 2_000, pause)).await;
        assert_eq!(full.unwrap_err(), Problem::BodiesFull { max: 8 << 10 });
        assert!(bodies.read(slow(1, 2_000, pause)).await.is_ok());
        drop(first);
        assert!(bodies.read(slow(3, 2_000, pause)).await.is_ok());
    }

    #[tokio::test(start_paused = true)]
    async fn a_body_without_a_length_is_given_up_when_it_is_too_long() {
        let bodies = bodies(1 << 20);
        let long = bodies.read(slow(100, 2_000, Duration::ZERO)).await;
        assert_eq!(long.unwrap_err(), Problem::TooLarge { max: 10_000 });
    }
}
