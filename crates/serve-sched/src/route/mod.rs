//! Which of several engines gets a request?
//!
//! A [`Router`] keeps the book: what it has sent to each upstream and what has come of it, how fast each has been, which
//! prefixes lie where, who is ejected, drained, on trial. A [`Route`] policy prices the candidates, and the cheapest gets the
//! request. Neither reads a clock, opens a connection or draws anything that is not seeded. What the upstreams are is not known
//! here: an address, a health check and a stream belong to the caller.

mod least_loaded;
mod parts;
mod predicted_end;
mod router;

pub use least_loaded::LeastLoaded;
pub use parts::{Attempt, Candidate, Speed, Work, chain};
pub use predicted_end::PredictedEnd;
pub use router::{
    Doubt, End, NoUpstream, Retry, Router, RouterSettings, Sent, Standing, Terms, View, Why,
};

use std::fmt;

use crate::settings::Named;

/// Every routing policy with its default parameters, by its name.
pub const ROUTES: &[Named<dyn Route>] = &[
    Named {
        name: "predicted-end",
        settings: &[],
        build: |_| Box::new(PredictedEnd),
    },
    Named {
        name: "least-loaded",
        settings: &[],
        build: |_| Box::new(LeastLoaded),
    },
];

/// A rule for which upstream gets a request.
///
/// ```
/// use serve_sched::route::{Candidate, Route, Work};
///
/// /// Where most of the prompt is cached, whatever waits there.
/// struct Warmest;
///
/// impl Route for Warmest {
///     fn name(&self) -> &'static str {
///         "warmest"
///     }
///
///     fn cost(&self, _: &Work<'_>, candidate: &Candidate) -> f64 {
///         -f64::from(candidate.cached_tokens)
///     }
/// }
/// ```
pub trait Route: Send {
    /// The name in settings.
    fn name(&self) -> &'static str;

    /// What it costs to send the request there, in a unit of one's own: the lowest is chosen. Of equal ones it is the one
    /// that has been given the least, so that no tie sends everything to one place. A cost that is no number is the highest.
    fn cost(&self, work: &Work<'_>, candidate: &Candidate) -> f64;
}

/// One upstream of a [`Router`], chosen by the caller: an index into its list of addresses. Another process that is started in
/// the place of one that is gone is another upstream.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct UpstreamId(u32);

impl UpstreamId {
    /// Wraps a raw number.
    pub const fn new(raw: u32) -> Self {
        Self(raw)
    }

    /// The raw number.
    pub const fn get(self) -> u32 {
        self.0
    }
}

impl fmt::Display for UpstreamId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "u{}", self.0)
    }
}
