//! What the server promises, put to the test with real sockets and real time.
//!
//! [`campaign`] runs a server beyond its capacity while clients misbehave and the device fails, and
//! then looks for whatever was lost, counted twice or left behind. [`edge`] measures what a streamed
//! token costs the real binary. [`promise`] loads the real binary beyond its capacity and compares
//! what it promises with what it does. [`client`] is the HTTP client of all: it does on a connection
//! exactly what it is told, also what no proper client would.
//!
//! This is no load generator for other servers: that is `serve-bench`, which knows no server. This
//! crate knows this one, looks into it, and fails when a promise is broken.

pub mod campaign;
pub mod client;
pub mod edge;
pub mod figure;
mod percentile;
pub mod process;
pub mod promise;
pub mod provenance;
pub mod server;
