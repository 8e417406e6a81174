//! The earliest deadline goes first (Liu and Layland, *Scheduling Algorithms for
//! Multiprogramming in a Hard-Real-Time Environment*, JACM 1973).
//!
//! Rule: key = deadline; requests without one come last, in the order of arrival. A request whose
//! deadline passes while it waits leaves the queue and is answered; that is the mechanism's doing,
//! whatever the order.
//!
//! Optimal on one server when all deadlines can be met: if any order meets those of requests that are
//! all there, this one does (Jackson, 1955). Overloaded, it is among the worst: it spends its time on
//! requests that are about to be late anyway. Put
//! [`DeadlinePrediction`](crate::admit::DeadlinePrediction) in front of it where overload is to be
//! expected; below capacity that refuses a few whose deadline would have been met, as it takes a
//! newcomer to go last. There is no wait bound for requests without a deadline.

use serve_core::Time;

use super::{Order, Place, Waiting};
use crate::settings::Named;

/// As its family lists it.
pub(super) const POLICY: Named<dyn Order> = Named {
    name: "earliest-deadline",
    settings: &[],
    build: |_| Box::new(EarliestDeadline),
};

/// The earliest deadline first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EarliestDeadline;

impl Order for EarliestDeadline {
    fn name(&self) -> &'static str {
        POLICY.name
    }

    fn place(&mut self, waiting: &Waiting<'_>, _now: Time) -> Place {
        let deadline = waiting.request.deadline().unwrap_or(Time::MAX);
        Place::by_key(deadline.as_nanos())
    }
}
