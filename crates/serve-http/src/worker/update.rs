//! What the inference thread says to the requests' tasks.

use serve_core::{Event, RequestId, Time};

/// Which of the engines in a row a request is with.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct EngineNumber(pub(super) u64);

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

/// All updates of one step, on their way from the inference thread.
#[derive(Debug, Default)]
pub(super) struct Batch {
    pub(super) updates: Vec<(RequestId, Update)>,
    /// When it was noticed that the requests had to be cancelled which now have been.
    pub(super) called_off: Vec<Time>,
}

impl Batch {
    pub(super) fn is_empty(&self) -> bool {
        self.updates.is_empty() && self.called_off.is_empty()
    }
}

/// What the inference thread says.
#[derive(Debug)]
pub(super) enum Message {
    /// What happened in a step.
    Batch(Batch),
    /// This engine has panicked, and everything that was in it is gone.
    EngineLost(EngineNumber),
}
