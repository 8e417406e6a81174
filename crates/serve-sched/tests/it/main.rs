//! The crate's integration tests, in one binary.

mod allocation;
mod field_bugs;
mod jump;
mod model;
mod policies;
mod queueing;
mod support;
mod trace;
