//! `cargo xtask verify-dashboards`: the queries of the Grafana dashboard, answered by a real Prometheus that scrapes a
//! real server under load, and compared with what the load client has seen.
//!
//! The Python script beside this file does it; it needs no package.

use std::process::Command;

use crate::cli::VerifyDashboards;
use crate::{TaskResult, place, python};

const SCRIPT: &str = "xtask/lab/src/dashboards/verify.py";
const DASHBOARD: &str = "deploy/grafana/dashboards/serve.json";

/// Runs the load and asks every query of the dashboard.
pub(crate) fn run(options: &VerifyDashboards) -> TaskResult {
    let root = place::repository();
    let python = python::python();
    let mut script = Command::new(&python);
    script.arg(root.join(SCRIPT));
    script.args([place::beside("serve")?, place::beside("serve-bench")?]);
    script.arg(root.join(DASHBOARD));
    if options.fault {
        script.args(["--fault", "buckets"]);
    }
    python::play(&mut script)
}
