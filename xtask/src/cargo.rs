//! Starting cargo from inside a program that cargo started.

use std::io;
use std::process::{Command, ExitCode, ExitStatus};

use cargo_metadata::{Metadata, MetadataCommand};
use thiserror::Error;

/// What a task comes to.
pub(crate) type TaskResult = Result<ExitCode, Box<dyn std::error::Error>>;

/// cargo cannot be started.
#[derive(Debug, Error)]
#[error("cannot start cargo: {0}")]
pub(crate) struct NoCargo(io::Error);

/// A cargo command line that sees the same environment as one typed by hand.
///
/// `cargo run` describes the package that it runs in variables of the form `CARGO_PKG_NAME`; a build
/// script that watches one of them would run again, and with it everything that depends on it.
pub(crate) fn command(args: &[&str]) -> Command {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut command = Command::new(cargo);
    command.args(args);
    forget_package(&mut command);
    command
}

/// Takes what describes the package of this program from the environment of another.
pub(crate) fn forget_package(command: &mut Command) {
    for (key, _) in std::env::vars_os() {
        if key.to_str().is_some_and(describes_a_package) {
            command.env_remove(key);
        }
    }
}

/// Runs a command to its end, with this program's own standard streams.
pub(crate) fn status(command: &mut Command) -> Result<ExitStatus, NoCargo> {
    command.status().map_err(NoCargo)
}

/// Builds binaries with the features of the whole workspace, so that nothing is compiled twice, and gives
/// back where they are. If they do not build, cargo has said why, and its exit code is what is left.
pub(crate) fn build(
    bins: &[&str],
) -> Result<Result<Metadata, ExitCode>, Box<dyn std::error::Error>> {
    let metadata = MetadataCommand::new().no_deps().exec()?;
    let mut build = command(&["build", "--release", "--quiet", "--workspace"]);
    build.args(bins.iter().flat_map(|bin| ["--bin", bin]));
    let built = status(&mut build)?;
    Ok(match built.success() {
        true => Ok(metadata),
        false => Err(exit_code(built)),
    })
}

/// The exit code of a child, to be passed on. A child that a signal ended counts as failed.
pub(crate) fn exit_code(status: ExitStatus) -> ExitCode {
    let code = status.code().and_then(|code| u8::try_from(code).ok());
    code.map_or(ExitCode::FAILURE, ExitCode::from)
}

fn describes_a_package(key: &str) -> bool {
    let prefixes = [
        "CARGO_PKG_",
        "CARGO_MANIFEST_",
        "CARGO_BIN_",
        "CARGO_CRATE_",
    ];
    prefixes.iter().any(|prefix| key.starts_with(prefix)) || key == "CARGO_PRIMARY_PACKAGE"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_of_the_user_are_kept() {
        assert!(describes_a_package("CARGO_PKG_VERSION"));
        assert!(describes_a_package("CARGO_MANIFEST_DIR"));
        for key in [
            "CARGO_HOME",
            "CARGO_TARGET_DIR",
            "CARGO_BUILD_JOBS",
            "RUSTFLAGS",
            "PATH",
        ] {
            assert!(!describes_a_package(key), "{key}");
        }
    }

    #[test]
    fn exit_codes_pass_through() {
        let status = |script| Command::new("sh").args(["-c", script]).status().unwrap();
        assert_eq!(exit_code(status("exit 0")), ExitCode::SUCCESS);
        assert_eq!(exit_code(status("exit 3")), ExitCode::from(3));
        assert_eq!(exit_code(status("kill -9 $$")), ExitCode::FAILURE);
    }
}
