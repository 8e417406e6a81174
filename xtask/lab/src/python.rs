//! Which Python runs the few things here that are Python, and with which packages.

use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus};

use thiserror::Error;

use crate::{TaskResult, exit_code};

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

/// An interpreter with packages: the one that `PYTHON` names, which must have them, or one in the virtual
/// environment `venv`, which is made and filled from PyPI.
pub(crate) fn with_packages(venv: &Path, requirements: &[&str]) -> Result<PathBuf, PythonError> {
    if let Some(python) = named() {
        return Ok(python.into());
    }
    environment(venv, requirements, &[])
}

/// The interpreter of the virtual environment `venv`, made where there is none, after `pip install` with
/// `args` in it. `variables` are for what pip builds.
pub(crate) fn environment(
    venv: &Path,
    args: &[&str],
    variables: &[(&str, &str)],
) -> Result<PathBuf, PythonError> {
    let python = venv.join("bin/python");
    if !python.exists() {
        prepare(Command::new(self::python()).args(["-m", "venv"]).arg(venv))?;
    }
    let pip = ["-m", "pip", "install", "--quiet"];
    let mut install = Command::new(&python);
    install.args(pip).arg("--disable-pip-version-check");
    prepare(install.args(args).envs(variables.iter().copied()))?;
    Ok(python)
}

/// Runs a script of this repository, whose exit code is that of the task. Nothing is written beside its modules.
pub(crate) fn play(script: &mut Command) -> TaskResult {
    let program = script.get_program().to_string_lossy().into_owned();
    script.env("PYTHONDONTWRITEBYTECODE", "1");
    let status = script.status();
    let status = status.map_err(|source| PythonError::Start { program, source })?;
    Ok(exit_code(status))
}

fn named() -> Option<String> {
    let set = std::env::var("PYTHON").ok();
    set.filter(|value| !value.is_empty())
}

fn prepare(command: &mut Command) -> Result<(), PythonError> {
    let program = command.get_program().to_string_lossy().into_owned();
    // What is printed here is not the answer of the task.
    let status = command
        .stdout(io::stderr())
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

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;
    use crate::place;

    const FAILS: &str = "import servers\n\
        started = servers.start(['sleep', '600'])\n\
        print(started.pid, flush=True)\n\
        servers.until('it is ready', lambda: False, 0.1)\n";

    #[test]
    fn a_script_that_fails_leaves_no_server_behind() {
        let mut script = Command::new(python());
        script.env("PYTHONDONTWRITEBYTECODE", "1");
        script.current_dir(place::repository().join("xtask/lab/src"));
        let Ok(ended) = script.args(["-c", FAILS]).output() else {
            println!("skipped: there is no {}", python());
            return;
        };
        let said = String::from_utf8_lossy(&ended.stderr);
        assert!(said.contains("it is ready: not within 0.1 s"), "{said}");
        assert!(!ended.status.success());
        let pid = String::from_utf8_lossy(&ended.stdout);
        let pid: u32 = pid.trim().parse().unwrap();
        assert!(!Path::new(&format!("/proc/{pid}")).exists(), "{pid}");
    }
}
