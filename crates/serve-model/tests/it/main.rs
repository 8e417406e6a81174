//! The crate's integration tests, in one binary.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod asked;
mod conformance;
mod damaged;
mod devices;
mod fixtures;
mod found;
mod golden;
mod hub;
mod launches;
mod paths;
mod plans;
mod quantized;
mod random;
mod rope;
mod rounded;
mod rounding;
mod stand_in_hub;
mod text;
mod text_template;
mod widened;
