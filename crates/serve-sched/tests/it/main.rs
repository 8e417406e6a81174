//! The crate's integration tests, in one binary.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod ahead;
mod allocation;
mod batching;
mod changeable;
mod changes;
mod dispatcher;
mod documented;
mod engine;
mod field_bugs;
mod ids;
mod jump;
mod lecture;
mod limits;
mod model;
mod of_lengths;
mod orders;
mod outside;
mod own_policies;
mod policies;
mod preemption;
mod promises;
mod queueing;
mod quoted;
mod route;
mod simulation;
mod support;
mod trace;
mod traps;
