//! Which Python runs the few things here that are Python, and with which packages.

use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus};

use thiserror::Error;

/// A Python that cannot be had.
#[derive(Debug, Error)]
pub(crate) enum PythonError {
    /// A program cannot be started.
    #[error("cannot start {program}: {source}; PYTHON names another interpreter")]
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

/// The interpreter: what `PYTHON` says, or `python3`.
pub(crate) fn python() -> String {
    named().unwrap_or_else(|| "python3".to_owned())
}

/// An interpreter with a package: the one that `PYTHON` names, which must have it, or one in the virtual
/// environment `venv`, which is made and filled from PyPI.
pub(crate) fn with_package(venv: &Path, requirement: &str) -> Result<PathBuf, PythonError> {
    if let Some(python) = named() {
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
        requirement,
    ];
    prepare(Command::new(&python).args(pip))?;
    Ok(python)
}

fn named() -> Option<String> {
    let set = std::env::var("PYTHON").ok();
    set.filter(|value| !value.is_empty())
}

fn prepare(command: &mut Command) -> Result<(), PythonError> {
    let program = command.get_program().to_string_lossy().into_owned();
    let status = command
        .status()
        .map_err(|source| PythonError::Start { program, source })?;
    match status.success() {
        true => Ok(()),
        false => Err(PythonError::Prepare {
            command: format!("{command:?}"),
            status,
        }),
    }
}
