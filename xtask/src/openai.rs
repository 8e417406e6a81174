//! `cargo xtask openai-check`: the real server, and the client that most people use.
//!
//! The server is started on a free port with the embedded model, the client script talks to it, and
//! a SIGTERM ends it; its own exit code counts too.

use std::process::{Command, ExitCode};
use std::time::Duration;

use crate::cargo::{self, TaskResult};
use crate::python::{self, PythonError};
use crate::server::Server;

/// The client, relative to the workspace: takes the base URL, exits with 1 when an answer is wrong.
const SCRIPT: &str = "crates/serve-http/tests/openai_client.py";
/// The version of the client that the check was written against.
const CLIENT: &str = "openai==3.57.0";
/// How long the server may take to print its address.
const PATIENCE: Duration = Duration::from_secs(120);

/// Builds, starts, talks, stops.
pub(crate) fn run() -> TaskResult {
    let metadata = match cargo::build(&["serve"])? {
        Ok(metadata) => metadata,
        Err(code) => return Ok(code),
    };
    let root = metadata.workspace_root.as_std_path();
    let target = metadata.target_directory.as_std_path();
    let python = python::with_package(&target.join("openai-venv"), CLIENT)?;
    let server = Server::start(&mut Command::new(target.join("release/serve")))?;
    let base = format!("{}/v1", server.address(PATIENCE)?);
    println!("{SCRIPT} {base}");
    let mut client = Command::new(&python);
    let client = client.arg(root.join(SCRIPT)).arg(&base).status();
    let client = client.map_err(|source| PythonError::Start {
        program: python.display().to_string(),
        source,
    })?;
    let server = server.stop()?;
    if !server.success() {
        eprintln!("the server ended with {server} after SIGTERM; 0 was expected");
        return Ok(ExitCode::FAILURE);
    }
    Ok(cargo::exit_code(client))
}
