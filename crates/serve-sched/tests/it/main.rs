//! The crate's integration tests, in one binary.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod allocation;
mod batching;
mod field_bugs;
mod jump;
mod dispatcher;
mod lecture;
mod model;
mod outside;
mod policies;
mod queueing;
mod support;
mod trace;
