//! A higher class always goes first; within a class, first come, first served.
//!
//! Rule: lane = class. Optimises the wait of the highest class, which sees the lower ones only as
//! the request in service when it arrives. There is no wait bound for the others: while the classes
//! above use the whole engine, a lower class waits for ever. Use
//! [`AgingTiers`](super::AgingTiers) unless that is what you want.

use serve_core::Time;

use super::{Order, Place, Waiting};
use crate::settings::Named;

/// As its family lists it.
pub(super) const POLICY: Named<dyn Order> = Named {
    name: "strict-tiers",
    settings: &[],
    build: |_| Box::new(StrictTiers),
};

/// A higher class always goes first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StrictTiers;

impl Order for StrictTiers {
    fn name(&self) -> &'static str {
        POLICY.name
    }

    fn place(&mut self, waiting: &Waiting<'_>, _now: Time) -> Place {
        Place::in_lane(u32::from(waiting.request.class().rank()))
    }
}
