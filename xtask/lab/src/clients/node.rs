//! Packages of npm, and the program that runs a script with them.

use std::fs;
use std::io;
use std::path::Path;
use std::process::{Command, Stdio};

use thiserror::Error;

/// A Node that cannot be had.
#[derive(Debug, Error)]
pub(crate) enum NodeError {
    /// npm failed.
    #[error("`npm install {packages}` failed")]
    Install {
        /// What was to be installed.
        packages: String,
    },
    /// The system refuses.
    #[error(transparent)]
    System(#[from] io::Error),
}

/// Whether there is a Node.
pub(super) fn is_there() -> bool {
    ["node", "npm"].iter().all(|program| {
        let mut version = Command::new(program);
        version.arg("--version").stdout(Stdio::null());
        version.status().is_ok_and(|status| status.success())
    })
}

/// A script to be run with `packages`, which are installed in `folder`.
pub(super) fn command(
    folder: &Path,
    packages: &[&str],
    script: &Path,
) -> Result<Command, NodeError> {
    fs::create_dir_all(folder)?;
    let mut install = Command::new("npm");
    install.args(["install", "--silent", "--no-audit", "--no-fund"]);
    install.arg("--prefix").arg(folder).args(packages);
    // What is printed here is not the answer of the task.
    if !install.stdout(io::stderr()).status()?.success() {
        return Err(NodeError::Install {
            packages: packages.join(" "),
        });
    }
    // A script finds packages in the folders above its own, and nowhere else.
    let mut command = Command::new("node");
    for file in [script, &script.with_file_name("check.mjs")] {
        let copy = folder.join(file.file_name().unwrap_or_default());
        fs::copy(file, &copy)?;
        if file == script {
            command.arg(copy);
        }
    }
    Ok(command)
}
