//! `cargo xtask openai-check`: the real server, and the client that most people use.
//!
//! The server is started on a free port with the embedded model, the client script talks to it, and
//! a SIGTERM ends it; its own exit code counts too.

use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, ExitStatus};
use std::time::Duration;

use thiserror::Error;

use crate::cargo::{self, TaskResult};
use crate::server::Server;

/// The client, relative to the workspace: takes the base URL, exits with 1 when an answer is wrong.
const SCRIPT: &str = "crates/serve-http/tests/openai_client.py";
/// The version of the client that the check was written against.
const CLIENT: &str = "openai==3.57.0";
/// How long the server may take to print its address.
const PATIENCE: Duration = Duration::from_secs(120);

/// Why the check could not be made.
#[derive(Debug, Error)]
enum OpenAiError {
    /// A program cannot be started.
    #[error("cannot start {program}: {source}")]
    Start {
        /// The program.
        program: String,
        /// The operating system's answer.
        source: io::Error,
    },
    /// A preparing command failed.
    #[error("`{command}` failed ({status})")]
    Prepare {
        /// The command.
        command: String,
        /// How it ended.
        status: ExitStatus,
    },
}

/// Builds, starts, talks, stops.
pub(crate) fn run() -> TaskResult {
    let metadata = cargo_metadata::MetadataCommand::new().no_deps().exec()?;
    let root = metadata.workspace_root.as_std_path();
    let target = metadata.target_directory.as_std_path();
    let mut build = cargo::command(&["build", "--release", "--workspace", "--bin", "serve"]);
    let built = cargo::status(&mut build)?;
    if !built.success() {
        return Ok(cargo::exit_code(built));
    }
    let python = interpreter(&target.join("openai-venv"))?;
    let server = Server::start(&mut Command::new(target.join("release/serve")))?;
    let base = format!("{}/v1", server.address(PATIENCE)?);
    println!("{SCRIPT} {base}");
    let mut client = Command::new(&python);
    let client = client.arg(root.join(SCRIPT)).arg(&base).status();
    let client = client.map_err(start_error(&python))?;
    let server = server.stop()?;
    if !server.success() {
        eprintln!("the server ended with {server} after SIGTERM; 0 was expected");
        return Ok(ExitCode::FAILURE);
    }
    Ok(cargo::exit_code(client))
}

/// The interpreter that `PYTHON` names, or one in a virtual environment with the client.
fn interpreter(venv: &Path) -> Result<PathBuf, OpenAiError> {
    if let Some(python) = std::env::var_os("PYTHON").filter(|value| !value.is_empty()) {
        return Ok(python.into());
    }
    let python = venv.join("bin/python");
    if !python.exists() {
        prepare(Command::new("python3").args(["-m", "venv"]).arg(venv))?;
    }
    let pip = [
        "-m",
        "pip",
        "install",
        "--quiet",
        "--disable-pip-version-check",
        CLIENT,
    ];
    prepare(Command::new(&python).args(pip))?;
    Ok(python)
}

fn prepare(command: &mut Command) -> Result<(), OpenAiError> {
    let program = PathBuf::from(command.get_program());
    let status = command.status().map_err(start_error(&program))?;
    match status.success() {
        true => Ok(()),
        false => Err(OpenAiError::Prepare {
            command: format!("{command:?}"),
            status,
        }),
    }
}

fn start_error(program: &Path) -> impl FnOnce(io::Error) -> OpenAiError + use<> {
    let program = program.display().to_string();
    move |source| OpenAiError::Start { program, source }
}
