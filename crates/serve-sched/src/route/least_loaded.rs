//! The fewest requests in flight: the control of every other routing policy.

use super::{Candidate, Route, Work};

/// Where the fewest requests are in flight, of equals the one that was given the least. It looks neither at lengths nor at
/// prefixes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LeastLoaded;

impl Route for LeastLoaded {
    fn name(&self) -> &'static str {
        "least-loaded"
    }

    fn cost(&self, _: &Work<'_>, candidate: &Candidate) -> f64 {
        f64::from(candidate.in_flight)
    }
}
