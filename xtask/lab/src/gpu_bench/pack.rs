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
pub(super) const FIXTURES: &str = "crates/serve-model/tests/fixtures";
/// The folder that the archive unpacks to.
const FOLDER: &str = "gpu-bench";
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
    let (root, target) = (place::repository(), place::target()?);
    let mut build = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    build.args(["build", "--release", "--workspace", "--features", FEATURES]);
    build.args(PROGRAMS.iter().flat_map(|name| ["--bin", name]));
    // Where `cargo xtask` was typed may be another folder, and have another target.
    build.arg("--target-dir").arg(&target).current_dir(&root);
    if std::env::var_os("CUDARC_CUDA_VERSION").is_none() {
        build.env("CUDARC_CUDA_VERSION", CUDA_VERSION);
    }
    let built = build.status()?;
    if !built.success() {
        return Ok(exit_code(built));
    }
    pack(&target.join("release"), &root, &target, archive)?;
    let mib = fs::metadata(archive)?.len() as f64 / (1024.0 * 1024.0);
    println!("{}: {mib:.1} MiB", archive.display());
    println!(
        "there: tar -xzf {0} && gpu-bench/lab gpu-bench --smoke",
        name(archive).display()
    );
    Ok(ExitCode::SUCCESS)
}

/// Packs the programs of a folder and what of `root` they need where they run; `scratch` is a folder to do it in.
fn pack(
    programs: &Path,
    root: &Path,
    scratch: &Path,
    archive: &Path,
) -> Result<(), Box<dyn std::error::Error>> {
    let folder = scratch.join(FOLDER);
    if folder.exists() {
        fs::remove_dir_all(&folder)?;
    }
    fs::create_dir_all(&folder)?;
    for program in PROGRAMS {
        let copy = folder.join(program);
        fs::copy(programs.join(program), &copy)?;
        done(Command::new("strip").arg(&copy))?;
    }
    let mut fixtures = Command::new("cp");
    fixtures.arg("-r").arg(root.join(FIXTURES));
    done(fixtures.arg(folder.join("fixtures")))?;
    fs::write(folder.join(COMMIT), commit(root))?;
    let mut tar = Command::new("tar");
    tar.arg("-czf").arg(archive).arg("-C").arg(scratch);
    done(tar.arg(FOLDER))?;
    Ok(())
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

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::super::find_fixtures;
    use super::super::folder::tests::Scratch;
    use super::super::programs::Programs;
    use super::*;

    #[test]
    fn an_archive_unpacks_to_what_a_run_looks_for() {
        let scratch = Scratch::new("pack");
        let (built, there) = (scratch.0.join("release"), scratch.0.join("there"));
        for folder in [&built, &there] {
            fs::create_dir_all(folder).unwrap();
        }
        for program in PROGRAMS {
            fs::copy("/bin/true", built.join(program)).unwrap();
        }
        let archive = scratch.0.join("gpu-bench.tar.gz");
        pack(&built, &place::repository(), &scratch.0, &archive).unwrap();
        let mut tar = Command::new("tar");
        done(tar.arg("-xzf").arg(&archive).arg("-C").arg(&there)).unwrap();

        let unpacked = there.join(FOLDER);
        let programs = Programs::in_folder(&unpacked, Vec::new()).unwrap();
        for program in PROGRAMS {
            done(&mut Command::new(programs.path(program))).unwrap();
        }
        let fixtures = find_fixtures(&unpacked).unwrap();
        assert_eq!(fixtures, unpacked.join("fixtures"));
        let count = |folder: &Path| {
            let entries = folder.read_dir().unwrap();
            let models = entries.map(|entry| entry.unwrap().path().join("golden.json"));
            models.filter(|golden| golden.exists()).count()
        };
        let here = place::repository().join(FIXTURES);
        assert!(count(&here) > 0);
        assert_eq!(count(&fixtures), count(&here));
        let here = provenance::commit().unwrap_or_else(|| "unknown".to_owned());
        assert_eq!(commit(&unpacked), here);
        // What another run packs has nothing of this one.
        fs::write(scratch.0.join(FOLDER).join("stray"), "").unwrap();
        pack(&built, &place::repository(), &scratch.0, &archive).unwrap();
        assert!(!scratch.0.join(FOLDER).join("stray").exists());
    }

    #[test]
    fn without_its_programs_nothing_is_packed() {
        let scratch = Scratch::new("pack-nothing");
        fs::create_dir_all(&scratch.0).unwrap();
        let archive = scratch.0.join("gpu-bench.tar.gz");
        assert!(pack(&scratch.0, &place::repository(), &scratch.0, &archive).is_err());
        assert!(!archive.exists());
    }
}
