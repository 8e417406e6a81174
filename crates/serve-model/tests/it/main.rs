//! The crate's integration tests, in one binary.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod allocation;
mod asked;
mod commands;
mod conformance;
mod damaged;
mod devices;
mod fixtures;
mod golden;
mod hub;
mod kernels;
mod plans;
mod quantized;
mod random;
mod stand_in_hub;
mod text;
mod text_template;
