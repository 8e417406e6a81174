//! First come, first served.
//!
//! Rule: the request that arrived first at the gate goes first, whatever its class, tenant, length
//! or deadline. Nobody is overtaken, so nobody starves; a long request delays all behind it.

use serve_core::Time;

use super::{Order, Place, Waiting};
use crate::settings::Named;

/// As its family lists it.
pub(super) const POLICY: Named<dyn Order> = Named {
    name: "fifo",
    settings: &[],
    build: |_| Box::new(Fifo),
};

/// First come, first served.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Fifo;

impl Order for Fifo {
    fn name(&self) -> &'static str {
        POLICY.name
    }

    fn place(&mut self, _waiting: &Waiting<'_>, _now: Time) -> Place {
        Place::default()
    }
}
