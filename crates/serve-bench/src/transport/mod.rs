//! How requests are sent: the schedule, an attempt over HTTP, an attempt at an engine in this process, and
//! what the client itself needed for it.

pub(crate) mod client_load;
pub(crate) mod drive;
pub mod engine;
pub(crate) mod http;
pub(crate) mod sse;
