//! What an answer over HTTP says of the load of the service that gave it.

use http::{HeaderMap, StatusCode, header};
use serve_core::Span;

/// What the head of an answer says of the load: what a [`DispatchLayer`](super::DispatchLayer) ends a
/// permit with, for those who call a service themselves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Below 400: it is answered, and how long that takes is a measure.
    Answered,
    /// It failed for a reason that says nothing of the load.
    Ignored,
    /// 408, 429, 503, 504 or 529: the service has too much to do. For how long, if it says so in seconds.
    Overloaded(Option<Span>),
}

impl Verdict {
    /// Of an answer with this status and these headers.
    pub fn of(status: StatusCode, headers: &HeaderMap) -> Self {
        match status.as_u16() {
            ..400 => Self::Answered,
            408 | 429 | 503 | 504 | 529 => Self::Overloaded(retry_after(headers)),
            _ => Self::Ignored,
        }
    }
}

/// The hint, if it is given in seconds. A date would need a calendar's clock.
fn retry_after(headers: &HeaderMap) -> Option<Span> {
    let seconds = headers.get(header::RETRY_AFTER)?.to_str().ok()?;
    let seconds: u64 = seconds.trim().parse().ok()?;
    Some(Span::from_secs(1) * seconds)
}
