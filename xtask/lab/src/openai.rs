//! `cargo xtask openai-check`: the real server, and the client that most people use.
//!
//! The server is started on a free port with the embedded model, the client script talks to it, and
//! a SIGTERM ends it; its own exit code counts too.

use std::process::{Command, ExitCode};
use std::time::Duration;

use crate::TaskResult;
use crate::child::Server;
use crate::place;
use crate::python::{self, PythonError};

/// The client, relative to the workspace: takes the base URL, exits with 1 when an answer is wrong.
const SCRIPT: &str = "crates/serve-http/tests/openai_client.py";
/// The version of the client that the check was written against.
const CLIENT: &str = "openai==3.57.0";
/// How long the server may take to print its address.
const PATIENCE: Duration = Duration::from_secs(120);

/// Starts, talks, stops.
pub(crate) fn run() -> TaskResult {
    let python = python::with_packages(&place::target()?.join("openai-venv"), &[CLIENT])?;
    let server = Server::start(&mut Command::new(place::beside("serve")?))?;
    let base = format!("{}/v1", server.address(PATIENCE)?);
    println!("{SCRIPT} {base}");
    let mut client = Command::new(&python);
    let client = client
        .arg(place::repository().join(SCRIPT))
        .arg(&base)
        .status();
    let client = client.map_err(|source| PythonError::Start {
        program: python.display().to_string(),
        source,
    })?;
    let server = server.stop()?;
    if !server.success() {
        eprintln!("the server ended with {server} after SIGTERM; 0 was expected");
        return Ok(ExitCode::FAILURE);
    }
    Ok(crate::exit_code(client))
}
