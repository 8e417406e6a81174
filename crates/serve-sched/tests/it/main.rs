//! The crate's integration tests, in one binary.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod allocation;
mod batching;
mod dispatcher;
mod documented;
mod engine;
mod field_bugs;
mod jump;
mod lecture;
mod model;
mod outside;
mod policies;
mod queueing;
mod quoted;
mod simulation;
mod support;
mod trace;
