//! The programs that the benchmark runs, and running one of them under a deadline.

use std::ffi::{OsStr, OsString};
use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use serve_bench::experiments::servers::Child;
use thiserror::Error;

/// What a folder of programs holds, this one among them.
pub(crate) const PROGRAMS: [&str; 3] = ["serve", "serve-bench", "lab"];

/// A program could not do its part.
#[derive(Debug, Error)]
pub(crate) enum ProgramError {
    /// The folder is not whole.
    #[error(
        "{} holds no {name}; build all programs with `cargo build --release --workspace --features serve-http/cuda` \
         or unpack a whole `cargo xtask gpu-bench --pack` archive", folder.display()
    )]
    Absent {
        /// The program.
        name: &'static str,
        /// Where it was looked for.
        folder: PathBuf,
    },
    /// It cannot be started.
    #[error("cannot start {program}: {source}")]
    Start {
        /// The program.
        program: String,
        /// The operating system's answer.
        source: io::Error,
    },
    /// Its output cannot be kept.
    #[error("{}: {source}", path.display())]
    Log {
        /// The log.
        path: PathBuf,
        /// The operating system's answer.
        source: io::Error,
    },
    /// It ended badly.
    #[error("{program} ended with {status}: {last}")]
    Failed {
        /// The program.
        program: String,
        /// How it ended.
        status: ExitStatus,
        /// The last line that it printed.
        last: String,
    },
    /// It was killed.
    #[error("{program} was stopped after {} s", after.as_secs())]
    TooLong {
        /// The program.
        program: String,
        /// How long it ran.
        after: Duration,
    },
}

/// Where the programs are, and what they need to know of the machine.
#[derive(Clone, Debug)]
pub(crate) struct Programs {
    folder: PathBuf,
    environment: Vec<(&'static str, OsString)>,
}

impl Programs {
    /// The programs of a folder; all must be there.
    pub(crate) fn in_folder(
        folder: &Path,
        environment: Vec<(&'static str, OsString)>,
    ) -> Result<Self, ProgramError> {
        if let Some(name) = PROGRAMS
            .into_iter()
            .find(|name| !folder.join(name).exists())
        {
            let folder = folder.to_owned();
            return Err(ProgramError::Absent { name, folder });
        }
        let folder = folder.to_owned();
        Ok(Self {
            folder,
            environment,
        })
    }

    /// Where a program is.
    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.folder.join(name)
    }

    /// A command that runs `program`, one of ours or any other, with this machine's variables.
    pub(crate) fn command(&self, program: &OsStr) -> Command {
        let mut command = Command::new(program);
        let variables = self.environment.iter();
        command.envs(variables.map(|(name, value)| (*name, value)));
        command
    }

    /// Runs one of ours to its end and gives back what it printed. What it prints, errors included,
    /// is added to `log`.
    pub(crate) fn run<S: AsRef<OsStr>>(
        &self,
        name: &str,
        args: impl IntoIterator<Item = S>,
        log: &Path,
        patience: Duration,
    ) -> Result<String, ProgramError> {
        let mut command = self.command(self.path(name).as_os_str());
        command.args(args);
        run(&mut command, log, patience)
    }

    /// The same, for a program whose other exit codes say what came of its measurement. Gives back the
    /// code as well.
    pub(crate) fn run_accepting<S: AsRef<OsStr>>(
        &self,
        name: &str,
        args: impl IntoIterator<Item = S>,
        log: &Path,
        patience: Duration,
        accepted: &[i32],
    ) -> Result<(String, i32), ProgramError> {
        let mut command = self.command(self.path(name).as_os_str());
        command.args(args);
        run_to_end(&mut command, log, patience, accepted)
    }
}

/// Runs a command to its end, or for as long as `patience` lasts.
pub(crate) fn run(
    command: &mut Command,
    log: &Path,
    patience: Duration,
) -> Result<String, ProgramError> {
    run_to_end(command, log, patience, &[]).map(|(printed, _)| printed)
}

fn run_to_end(
    command: &mut Command,
    log: &Path,
    patience: Duration,
    accepted: &[i32],
) -> Result<(String, i32), ProgramError> {
    let program = Path::new(command.get_program());
    let program = program
        .file_name()
        .unwrap_or_default()
        .to_string_lossy()
        .into_owned();
    let log_error = |source| ProgramError::Log {
        path: log.to_owned(),
        source,
    };
    let mut file = append(log).map_err(log_error)?;
    writeln!(file, "$ {command:?}").map_err(log_error)?;
    let printed = log.with_extension("stdout");
    let out = File::create(&printed).map_err(log_error)?;
    let begin = Instant::now();
    command.stdin(Stdio::null()).stdout(out).stderr(file);
    let child = Child::start(command).map_err(|source| ProgramError::Start {
        program: program.clone(),
        source,
    });
    // One that has not ended is killed before what it printed is read.
    let status = child?.wait(patience).map_err(log_error)?;
    let text = std::fs::read(&printed).map_err(log_error)?;
    let text = String::from_utf8_lossy(&text).into_owned();
    append(log)
        .and_then(|mut file| file.write_all(text.as_bytes()))
        .map_err(log_error)?;
    std::fs::remove_file(&printed).map_err(log_error)?;
    match status {
        Some(status) if status.success() => Ok((text, 0)),
        Some(status) if status.code().is_some_and(|code| accepted.contains(&code)) => {
            Ok((text, status.code().unwrap_or_default()))
        }
        Some(status) => {
            let whole = std::fs::read_to_string(log).map_err(log_error)?;
            let last = whole.lines().rfind(|line| !line.trim().is_empty());
            let last = last.unwrap_or("it printed nothing").to_owned();
            Err(ProgramError::Failed {
                program,
                status,
                last,
            })
        }
        None => Err(ProgramError::TooLong {
            program,
            after: begin.elapsed(),
        }),
    }
}

fn append(path: &Path) -> io::Result<File> {
    OpenOptions::new().create(true).append(true).open(path)
}

#[cfg(test)]
mod tests {
    use super::super::folder::tests::Scratch;
    use super::*;

    fn shell(
        script: &str,
        name: &str,
        patience: Duration,
    ) -> (Result<String, ProgramError>, String) {
        let scratch = Scratch::new(name);
        std::fs::create_dir_all(&scratch.0).unwrap();
        let log = scratch.0.join("stage.log");
        let result = run(Command::new("sh").args(["-c", script]), &log, patience);
        (result, std::fs::read_to_string(log).unwrap())
    }

    #[test]
    fn output_comes_back_and_the_log_has_both_streams() {
        let (result, log) = shell("echo out; echo err >&2", "both", Duration::from_secs(60));
        assert_eq!(result.unwrap(), "out\n");
        assert!(log.contains("out") && log.contains("err"), "{log}");
    }

    #[test]
    fn a_failure_says_how_and_with_which_last_words() {
        let (result, _) = shell(
            "echo no such device >&2; exit 4",
            "fails",
            Duration::from_secs(60),
        );
        let error = result.unwrap_err().to_string();
        assert!(
            error.contains("exit status: 4") && error.contains("no such device"),
            "{error}"
        );
    }

    #[test]
    fn an_accepted_exit_code_comes_back_with_what_was_printed() {
        let scratch = Scratch::new("accepted");
        std::fs::create_dir_all(&scratch.0).unwrap();
        let log = scratch.0.join("stage.log");
        let end = |accepted: &[i32]| {
            let mut command = Command::new("sh");
            command.args(["-c", "echo rows; exit 5"]);
            run_to_end(&mut command, &log, Duration::from_secs(60), accepted)
        };
        assert_eq!(end(&[3, 5]).unwrap(), ("rows\n".to_owned(), 5));
        assert!(matches!(end(&[3]), Err(ProgramError::Failed { .. })));
    }

    #[test]
    fn a_program_that_does_not_end_is_killed() {
        let (result, _) = shell("sleep 600", "endless", Duration::from_millis(50));
        assert!(matches!(result, Err(ProgramError::TooLong { .. })));
    }

    #[test]
    fn a_folder_without_all_programs_names_the_first_that_is_missing() {
        let error = Programs::in_folder(Path::new("/nowhere"), Vec::new()).unwrap_err();
        assert!(
            error.to_string().contains("/nowhere holds no serve"),
            "{error}"
        );
    }
}
