//! The edge, first through its router without a socket, then the real binary with a real client.

#![expect(
    clippy::unwrap_used,
    reason = "a test fails by panicking, its helpers too"
)]

mod abort;
mod answers;
mod bad_input;
mod binary;
mod cancel;
mod connections;
mod deadlines;
mod displaced;
mod drain;
mod faults;
#[cfg(feature = "model")]
mod folder;
mod fuzz;
#[cfg(feature = "model")]
mod golden;
#[cfg(feature = "model")]
mod hub;
mod idempotency;
mod log;
mod logprobs;
#[cfg(target_os = "linux")]
mod memory;
mod metrics;
mod process;
mod proxy;
mod rates;
mod refusals;
mod settings;
mod support;
mod tenants;
mod upstream;
