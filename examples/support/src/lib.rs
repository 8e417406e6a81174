//! What the examples share, so that each can be about its policy alone: a device, requests made of
//! numbers, a run in virtual time, percentiles, and a table.

mod stats;
mod table;
mod world;

pub use stats::{mean, percentile};
pub use table::{Table, ms, secs, show};
pub use world::{clients, l4, l4_with_blocks, request, simulate, simulate_preempting};
