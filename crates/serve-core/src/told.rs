//! What a code is: a name, an HTTP status and whose fault it is. Which end of a request has which,
//! `code.rs` says.

/// How the end of a request is told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
pub struct Code {
    /// The code to branch on; stable.
    pub name: &'static str,
    /// The HTTP status.
    pub status: u16,
    /// Whose fault it is.
    pub blame: Blame,
}

/// Whose fault it is that a request got no whole answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
pub enum Blame {
    /// The client's: the same request will never be answered.
    Client,
    /// The tenant's, which has used up what it is due for now.
    Tenant,
    /// The server lacks the capacity now and may have it later.
    Capacity,
    /// The server's, for another reason.
    Server,
}

impl Code {
    /// The backend failed under the request.
    pub const BACKEND_ERROR: Self = Self::new("backend_error", 500, Blame::Server);

    /// The request cannot mean anything.
    pub const INVALID_VALUE: Self = Self::new("invalid_value", 400, Blame::Client);

    pub(crate) const OVERLOADED: Self = Self::new("overloaded", 429, Blame::Capacity);
    pub(crate) const NEVER_SERVED: Self = Self::new("never_served", 400, Blame::Client);
    pub(crate) const SHUTTING_DOWN: Self = Self::new("shutting_down", 503, Blame::Server);
    pub(crate) const DEADLINE_UNREACHABLE: Self =
        Self::new("deadline_unreachable", 429, Blame::Capacity);
    pub(crate) const DEADLINE_EXCEEDED: Self = Self::new("deadline_exceeded", 504, Blame::Server);

    pub(crate) const fn new(name: &'static str, status: u16, blame: Blame) -> Self {
        Self {
            name,
            status,
            blame,
        }
    }

    /// With the status that goes with the blame.
    pub(crate) const fn of_blame(name: &'static str, blame: Blame) -> Self {
        let status = match blame {
            Blame::Client => 400,
            // 503 would say that another replica should be asked, and have a gateway's circuit breaker take
            // a busy one for a broken one.
            Blame::Tenant | Blame::Capacity => 429,
            Blame::Server => 500,
        };
        Self::new(name, status, blame)
    }
}
