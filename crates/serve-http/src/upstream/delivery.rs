//! An engine's answer on its way to the client, who may read slowly, or leave.

use axum::body::{Body, Bytes};
use axum::response::Response;
use futures::stream;
use tokio::sync::mpsc;

use super::call::Part;
use crate::error::Problem;
use crate::metrics::Arrived;
use crate::stream::{event_stream, problem_event};

/// An answer that has begun.
#[derive(Debug)]
pub(crate) enum Answer {
    Whole(Bytes),
    Stream(Parts),
}

/// The parts of a stream. Dropped, its request is cancelled.
#[derive(Debug)]
pub(crate) struct Parts(mpsc::Receiver<Part>);

impl Answer {
    /// What there is of an answer when it begins.
    ///
    /// # Errors
    ///
    /// The [`Problem`] that ended it before.
    pub(super) async fn begun(mut parts: mpsc::Receiver<Part>) -> Result<Self, Problem> {
        match parts.recv().await {
            Some(Part::Begins) => Ok(Self::Stream(Parts(parts))),
            Some(Part::Data(bytes)) => Ok(Self::Whole(bytes)),
            Some(Part::Failed(problem) | Part::Told(problem)) => Err(problem),
            Some(Part::End) | None => Err(Problem::EngineStopped),
        }
    }
}

/// The events of a stream as they come; their end is that of the request that has `arrived`.
pub(crate) fn events(parts: Parts, arrived: Arrived) -> Response {
    let Parts(parts) = parts;
    let frames = stream::unfold((parts, Some(arrived)), |(mut parts, mut arrived)| async {
        let part = parts.recv().await.unwrap_or_else(|| {
            Part::Failed(Problem::Backend {
                cause: "its answer was lost".to_owned(),
            })
        });
        let frame = match part {
            Part::Data(bytes) => bytes,
            Part::End | Part::Begins => {
                if let Some(arrived) = arrived.take() {
                    arrived.finished();
                }
                return None;
            }
            Part::Failed(problem) => {
                let event = problem_event(&problem);
                arrived.take()?.failed(&problem);
                event
            }
            Part::Told(problem) => {
                arrived.take()?.failed(&problem);
                return None;
            }
        };
        Some((Ok::<_, std::convert::Infallible>(frame), (parts, arrived)))
    });
    event_stream(Body::from_stream(frames))
}
