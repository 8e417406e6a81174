//! The archive that is carried to a rented machine: programs built for CUDA, stripped, and fixtures.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use thiserror::Error;

use super::programs::PROGRAMS;
use crate::{TaskResult, exit_code, place, provenance};

/// Features of the carried programs.
const FEATURES: &str = "serve-http/cuda";
/// The CUDA version whose interface is linked; later drivers keep it.
const CUDA_VERSION: &str = "13000";
/// Golden models, relative to the workspace.
const FIXTURES: &str = "crates/serve-model/tests/fixtures";
/// Where the archive says which commit it is.
const COMMIT: &str = "COMMIT";

/// A preparing command failed.
#[derive(Debug, Error)]
#[error("`{command}` failed: {cause}")]
struct PackError {
    command: String,
    cause: String,
}

/// Builds for CUDA, which takes about half an hour on two cores the first time, and packs.
pub(super) fn run(archive: &Path) -> TaskResult {
    let root = &place::repository();
    let target = &place::target()?;
    let args = [
        "build",
        "--release",
        "--workspace",
        "--bins",
        "--features",
        FEATURES,
    ];
    let mut build = Command::new("cargo");
    build.args(args);
    if std::env::var_os("CUDARC_CUDA_VERSION").is_none() {
        build.env("CUDARC_CUDA_VERSION", CUDA_VERSION);
    }
    let built = build.status()?;
    if !built.success() {
        return Ok(exit_code(built));
    }
    let folder = target.join("gpu-bench");
    if folder.exists() {
        fs::remove_dir_all(&folder)?;
    }
    fs::create_dir_all(&folder)?;
    for program in PROGRAMS {
        let copy = folder.join(program);
        fs::copy(target.join("release").join(program), &copy)?;
        done(Command::new("strip").arg(&copy))?;
    }
    let fixtures = root.join(FIXTURES);
    done(
        Command::new("cp")
            .arg("-r")
            .arg(fixtures)
            .arg(folder.join("fixtures")),
    )?;
    fs::write(folder.join(COMMIT), commit(root))?;
    let mut tar = Command::new("tar");
    tar.arg("-czf")
        .arg(archive)
        .arg("-C")
        .arg(target)
        .arg("gpu-bench");
    done(&mut tar)?;
    let mib = fs::metadata(archive)?.len() as f64 / (1024.0 * 1024.0);
    println!("{}: {mib:.1} MiB", archive.display());
    println!(
        "there: tar -xzf {0} && gpu-bench/lab gpu-bench --smoke",
        name(archive).display()
    );
    Ok(ExitCode::SUCCESS)
}

/// The commit of an archive's programs, or of the repository that this is run in.
pub(super) fn commit(folder: &Path) -> String {
    if let Ok(text) = fs::read_to_string(folder.join(COMMIT)) {
        return text.trim().to_owned();
    }
    provenance::commit().unwrap_or_else(|| "unknown".to_owned())
}

fn done(command: &mut Command) -> Result<(), PackError> {
    let failed = |command: &Command, cause| PackError {
        command: format!("{command:?}"),
        cause,
    };
    match command.status() {
        Ok(status) if status.success() => Ok(()),
        Ok(status) => Err(failed(command, status.to_string())),
        Err(error) => Err(failed(command, error.to_string())),
    }
}

fn name(path: &Path) -> PathBuf {
    path.file_name().unwrap_or_default().into()
}
