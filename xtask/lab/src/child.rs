//! A server of any kind of command as a child process: its lines are read, its address among them, and it is asked to
//! end with SIGTERM.

use std::io::{self, BufRead, BufReader, Read};
use std::path::Path;
use std::process::{Command, ExitStatus, Stdio};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use serve_bench::experiments::servers::{Child, Signal, address_in};
use thiserror::Error;

/// How long the server may take to drain after the signal.
const DRAIN: Duration = Duration::from_secs(120);

/// The server does not do what it should.
#[derive(Debug, Error)]
pub(crate) enum ServerError {
    /// It cannot be started, asked to end or waited for.
    #[error("{program}: {source}")]
    Process {
        /// The program.
        program: String,
        /// The operating system's answer.
        source: io::Error,
    },
    /// It ended; what it printed says why.
    #[error("the server ended before it was ready")]
    Ended,
    /// It stayed silent.
    #[error("the server printed no {what} within {} s", after.as_secs())]
    Silent {
        /// What was waited for.
        what: &'static str,
        /// How long it was given.
        after: Duration,
    },
    /// It does not react to the signal.
    #[error("the server did not end within {} s of SIGTERM", DRAIN.as_secs())]
    NoEnd,
}

/// A running server, killed when dropped, so that no failed check leaves one behind.
#[derive(Debug)]
pub(crate) struct Server {
    child: Child,
    /// Under a lock, so that threads can share the server; one at a time waits for a line.
    lines: Mutex<mpsc::Receiver<String>>,
}

impl Server {
    /// Starts `command`, a server and its settings, on a port that is free, and shows what it prints.
    pub(crate) fn start(command: &mut Command) -> Result<Self, ServerError> {
        Self::spawn(command, Stdio::piped(), true)
    }

    /// The same with a standard error of one's own, and nothing shown.
    pub(crate) fn start_logging_to(
        command: &mut Command,
        stderr: Stdio,
    ) -> Result<Self, ServerError> {
        Self::spawn(command, stderr, false)
    }

    fn spawn(command: &mut Command, stderr: Stdio, shown: bool) -> Result<Self, ServerError> {
        command.args(["--port", "0"]);
        command.stdout(Stdio::piped()).stderr(stderr);
        let program = Path::new(command.get_program()).to_owned();
        let mut child = Child::start(command).map_err(process_error(&program))?;
        let (sender, lines) = mpsc::channel();
        let (stdout, stderr) = child.output();
        if let Some(stdout) = stdout {
            relay(stdout, sender.clone(), shown);
        }
        if let Some(stderr) = stderr {
            relay(stderr, sender, shown);
        }
        let lines = Mutex::new(lines);
        Ok(Self { child, lines })
    }

    /// The base address that the server prints when it is up.
    pub(crate) fn address(&self, patience: Duration) -> Result<String, ServerError> {
        self.printed("address", patience, |line| {
            address_in(line).map(str::to_owned)
        })
    }

    /// What `find` makes of the first line that it can use. Lines before it are gone.
    pub(crate) fn printed<T>(
        &self,
        what: &'static str,
        patience: Duration,
        find: impl Fn(&str) -> Option<T>,
    ) -> Result<T, ServerError> {
        let start = Instant::now();
        let lines = self.lines.lock().unwrap_or_else(PoisonError::into_inner);
        loop {
            let left = patience.saturating_sub(start.elapsed());
            match lines.recv_timeout(left) {
                Ok(line) => {
                    if let Some(found) = find(&line) {
                        return Ok(found);
                    }
                }
                Err(RecvTimeoutError::Disconnected) => return Err(ServerError::Ended),
                Err(RecvTimeoutError::Timeout) => {
                    let after = patience;
                    return Err(ServerError::Silent { what, after });
                }
            }
        }
    }

    /// The number of its process.
    pub(crate) fn pid(&self) -> u32 {
        self.child.pid()
    }

    /// Sends it a signal.
    pub(crate) fn signal(&self, signal: Signal) {
        self.child.signal(signal);
    }

    /// Asks the server to end and waits for it.
    pub(crate) fn stop(mut self) -> Result<ExitStatus, ServerError> {
        self.signal(Signal::TERM);
        self.wait()
    }

    /// Waits for its end.
    pub(crate) fn wait(&mut self) -> Result<ExitStatus, ServerError> {
        let ended = self.child.wait(DRAIN);
        let ended = ended.map_err(process_error(Path::new("wait")))?;
        ended.ok_or(ServerError::NoEnd)
    }
}

fn process_error(program: &Path) -> impl FnOnce(io::Error) -> ServerError + use<> {
    let program = program.display().to_string();
    move |source| ServerError::Process { program, source }
}

/// Passes a stream on to the one that waits for a line, and to our standard error where it is to be shown.
fn relay<R: Read + Send + 'static>(stream: R, lines: mpsc::Sender<String>, shown: bool) {
    thread::spawn(move || {
        for line in BufReader::new(stream).lines().map_while(Result::ok) {
            if shown {
                eprintln!("  | {line}");
            }
            // Nobody waits any more when the server is being stopped.
            let _ = lines.send(line);
        }
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_that_says_nothing_and_ends_is_an_error_at_once() {
        let server = Server::start(&mut Command::new("/bin/true")).unwrap();
        let address = server.address(Duration::from_secs(60));
        assert!(matches!(address, Err(ServerError::Ended)));
    }
}
