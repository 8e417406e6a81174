//! What the examples share, so that each can be about its policy alone: a device, requests made of
//! numbers, a run in virtual time, how many are inside of a service, percentiles, and a table.

mod inside;
mod stats;
mod table;
mod world;

pub use inside::{Inside, Occupancy};
pub use stats::{mean, percentile};
pub use table::{Table, ms, secs, show};
pub use world::{clients, l4, l4_with_blocks, request, simulate, simulate_preempting};
