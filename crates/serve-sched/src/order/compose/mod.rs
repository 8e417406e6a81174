//! Orders made of orders: an inner one in each lane of an outer one.

mod aging;
mod instances;
mod path;
mod tiers;

pub use aging::Aging;
pub(super) use instances::Instances;
pub use path::{LEVELS_MAX, Path};
pub use tiers::Tiers;

use std::sync::Arc;

use super::Order;

/// Makes an order, always the same one, with nothing in its memory.
pub type Factory = Arc<dyn Fn() -> Box<dyn Order> + Send + Sync>;
