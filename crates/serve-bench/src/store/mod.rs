//! What stays of a run: its rows, its manifest, what the server and the machine said of themselves, and
//! the folder in which they lie.

pub mod command;
pub mod folder;
pub mod hardware;
pub mod manifest;
pub(crate) mod metrics;
pub mod record;
pub mod timeline;
