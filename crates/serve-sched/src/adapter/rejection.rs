//! Why a request got no permit, or lost it: what its client is told.

use serve_core::{CancelReason, Code, InvalidRequest, Refusal};
use thiserror::Error;

/// A request that got no permit, or that is not to be worked at any more.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
pub enum Rejection {
    /// It was not taken, or gave its place in a full queue up.
    #[error(transparent)]
    Refused(#[from] Refusal),
    /// It was cancelled while it waited or while it was worked at: its deadline, a drain.
    #[error("the request was cancelled: {0}")]
    Cancelled(CancelReason),
    /// It asks for nothing, or for too much.
    #[error(transparent)]
    Invalid(#[from] InvalidRequest),
}

impl Rejection {
    /// Its code, its HTTP status and whose fault it is.
    pub const fn code(&self) -> Code {
        match self {
            Self::Refused(refusal) => refusal.code(),
            Self::Cancelled(reason) => reason.code(),
            Self::Invalid(invalid) => invalid.code(),
        }
    }

    /// What the header `Retry-After` says, if anything: whole seconds, rounded up.
    pub fn retry_after_s(&self) -> Option<u64> {
        match self {
            Self::Refused(refusal) => refusal.retry_after_s(),
            Self::Cancelled(_) | Self::Invalid(_) => None,
        }
    }
}
