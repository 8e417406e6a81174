//! What the examples share, so that each can be about its policy alone: a device, requests made of
//! numbers, a run in virtual time, replicas behind a router, how many are inside of a service, a client's retries, percentiles, a table, and a command line.

mod fleet;
mod inside;
mod options;
mod retries;
mod stats;
mod table;
mod tiers;
mod world;

pub use fleet::{cached_part, route, routed_cells};
pub use inside::{Inside, Occupancy};
pub use options::Options;
pub use retries::attempts;
pub use stats::{mean, percentile};
pub use table::{Table, ms, secs};
pub use tiers::{Tier, Tiers, Told, tiers_table};
pub use world::{clients, l4, l4_with_blocks, request, simulate, simulate_preempting};
