//! How requests are sent: the schedule, an attempt over HTTP, an attempt at an engine in this process, and
//! what the client itself needed for it.

pub mod client_load;
pub mod drive;
pub mod engine;
pub mod http;
pub mod sse;
