//! What the inference thread says to the requests' tasks.

use serve_core::Event;
use tokio::sync::oneshot;

/// What one request's task is told.
#[derive(Clone, Debug, PartialEq)]
pub enum Update {
    /// Something happened to it; after a terminal event nothing more comes.
    Happened(Event),
    /// The task fell this many updates behind and the request was cancelled. The last update.
    FellBehind(usize),
    /// The inference thread is gone. The last update.
    EngineStopped,
}

impl Update {
    /// Whether no other update follows.
    pub fn is_last(&self) -> bool {
        match self {
            Self::Happened(event) => event.kind.is_terminal(),
            Self::FellBehind(_) | Self::EngineStopped => true,
        }
    }
}

/// What the inference thread says.
#[derive(Debug)]
pub(super) enum Message {
    /// All that has happened in a step.
    Batch(Vec<Event>),
    /// The engine is lost, and everything that was in it is gone. To be answered when everybody has been told.
    EngineLost(oneshot::Sender<()>),
}
