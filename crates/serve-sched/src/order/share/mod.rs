//! What the fair orders share: who belongs to which group with which share, and the counters of who
//! has been given how much.

mod ledger;
mod members;

pub(super) use ledger::{Account, Ledger};
pub use members::Members;
pub(super) use members::{Seat, Weights};

use std::num::NonZeroU32;

use crate::demand::Demand;

/// What of `others`, which waits in other lanes, goes before a newcomer to `lane`, which has `own`
/// before it there.
pub(super) fn ahead(
    ledger: &mut Ledger,
    weights: Weights,
    lane: (u32, NonZeroU32),
    own: &Demand,
    others: &Demand,
) -> Demand {
    const WHOLE: u64 = 1 << 32;
    let (own, work) = (weights.work(own), weights.work(others));
    let part = ledger.others_ahead(lane, own, work, others.requests);
    // Rounded up: the part of three requests in seven is to be three of them, not two.
    others.part((part * WHOLE as f64).ceil() as u64, WHOLE)
}
