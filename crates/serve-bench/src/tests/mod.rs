//! The client against a server that does exactly what a script says, and experiments as a whole.

mod calibrate;
mod client;
mod dial;
mod exact;
mod kept;
mod matrix;
mod series;
pub(crate) mod server;
mod servers;
mod simulate;
mod sweep;

use std::path::PathBuf;

/// A path for one test's output, which no other test or process has.
fn scratch(name: &str) -> PathBuf {
    std::env::temp_dir().join(format!("serve-bench-{}-{name}", std::process::id()))
}
