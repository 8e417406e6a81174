//! `cargo xtask openai-check`: the real server, and the client that most people use.
//!
//! The server is started on a free port with the embedded model, the client script talks to it, and
//! a SIGTERM ends it; its own exit code counts too.

use std::io::{self, BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, ExitStatus, Stdio};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::{Duration, Instant};

use thiserror::Error;

use crate::cargo::{self, TaskResult};

/// The client, relative to the workspace: takes the base URL, exits with 1 when an answer is wrong.
const SCRIPT: &str = "crates/serve-http/tests/openai_client.py";
/// The version of the client that the check was written against.
const CLIENT: &str = "openai==3.57.0";
/// How long the server may take to print its address, and to drain after the signal.
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
    /// The server ended or stayed silent.
    #[error("the server printed no address within {} s", PATIENCE.as_secs())]
    NoAddress,
    /// The server does not react to the signal.
    #[error("the server did not end within {} s of SIGTERM", PATIENCE.as_secs())]
    NoEnd,
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
    let server = Server::start(&target.join("release/serve"))?;
    let base = format!("{}/v1", server.address()?);
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

/// A running server, killed when dropped, so that no failed check leaves one behind.
struct Server {
    child: Child,
    addresses: mpsc::Receiver<String>,
}

impl Server {
    fn start(program: &Path) -> Result<Self, OpenAiError> {
        let mut command = Command::new(program);
        command.args(["--port", "0"]);
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().map_err(start_error(program))?;
        let (sender, addresses) = mpsc::channel();
        if let Some(stdout) = child.stdout.take() {
            relay(stdout, sender.clone());
        }
        if let Some(stderr) = child.stderr.take() {
            relay(stderr, sender);
        }
        Ok(Self { child, addresses })
    }

    /// The base address that the server prints when it is up.
    fn address(&self) -> Result<String, OpenAiError> {
        match self.addresses.recv_timeout(PATIENCE) {
            Ok(address) => Ok(address),
            Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => {
                Err(OpenAiError::NoAddress)
            }
        }
    }

    /// Asks the server to end and waits for it.
    fn stop(mut self) -> Result<ExitStatus, OpenAiError> {
        let pid = self.child.id().to_string();
        // The standard library can only kill; the shell's `kill` asks.
        prepare(Command::new("sh").args(["-c", "kill -TERM \"$0\"", &pid]))?;
        let start = Instant::now();
        while start.elapsed() < PATIENCE {
            let status = self
                .child
                .try_wait()
                .map_err(start_error(Path::new("wait")))?;
            if let Some(status) = status {
                return Ok(status);
            }
            thread::sleep(Duration::from_millis(20));
        }
        Err(OpenAiError::NoEnd)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // Both fail only when the child has ended, which is what is wanted.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Passes a stream on to our standard error, line by line, and reports each address in it.
fn relay<R: Read + Send + 'static>(stream: R, addresses: mpsc::Sender<String>) {
    thread::spawn(move || {
        for line in BufReader::new(stream).lines().map_while(Result::ok) {
            eprintln!("  | {line}");
            if let Some(address) = find_address(&line) {
                // Nobody listens after the first one.
                let _ = addresses.send(address.to_owned());
            }
        }
    });
}

/// `http://HOST:PORT` in a line of text.
fn find_address(line: &str) -> Option<&str> {
    let start = line.find("http://")?;
    let host = &line[start + "http://".len()..];
    let end = host.find(|c: char| !c.is_ascii_alphanumeric() && !".:[]-".contains(c));
    let host = host[..end.unwrap_or(host.len())].trim_end_matches(['.', ':']);
    let (_, port) = host.rsplit_once(':')?;
    port.parse::<u16>().ok()?;
    Some(&line[start..start + "http://".len() + host.len()])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_address_is_found_in_prose_and_in_a_command() {
        let found = |line| find_address(line);
        let address = Some("http://127.0.0.1:4312");
        assert_eq!(found("listening on http://127.0.0.1:4312"), address);
        assert_eq!(
            found("try: curl http://127.0.0.1:4312/v1/models -s"),
            address
        );
        assert_eq!(found("ready at http://127.0.0.1:4312."), address);
        assert_eq!(found("at http://[::1]:80/v1"), Some("http://[::1]:80"));
        assert_eq!(
            found("see https://example.org and http://example.org/x"),
            None
        );
    }

    #[test]
    fn a_server_that_says_nothing_and_ends_is_an_error_at_once() {
        let server = Server::start(Path::new("/bin/true")).unwrap();
        assert!(matches!(server.address(), Err(OpenAiError::NoAddress)));
    }
}
