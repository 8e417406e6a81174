//! What limits that adapt have in common: their bounds, the round of requests that a decision is
//! taken about, and what requests of different sizes take beside each other.

mod bounds;
mod round;
mod shape;

pub use bounds::InvalidLimit;
pub(super) use bounds::{check_bounds, check_range};
pub(super) use round::Round;
pub(super) use shape::Shape;
