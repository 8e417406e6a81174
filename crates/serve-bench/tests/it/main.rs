//! The binary against a server that does exactly what a script says.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod binary;
mod example;
#[path = "../../src/tests/server.rs"]
mod server;
