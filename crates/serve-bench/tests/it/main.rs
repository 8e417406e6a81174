//! The client and the binary against a server that does exactly what a script says.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod binary;
mod calibrate;
mod client;
mod exact;
mod example;
mod matrix;
mod series;
mod server;
mod servers;
mod simulate;
mod sweep;
