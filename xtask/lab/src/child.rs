//! A server as a child process: started on a free port, asked to end with SIGTERM, killed when dropped.

use std::io::{self, BufRead, BufReader, Read};
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

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
        let mut child = command.spawn().map_err(process_error(&program))?;
        let (sender, lines) = mpsc::channel();
        if let Some(stdout) = child.stdout.take() {
            relay(stdout, sender.clone(), shown);
        }
        if let Some(stderr) = child.stderr.take() {
            relay(stderr, sender, shown);
        }
        let lines = Mutex::new(lines);
        Ok(Self { child, lines })
    }

    /// The base address that the server prints when it is up.
    pub(crate) fn address(&self, patience: Duration) -> Result<String, ServerError> {
        self.printed("address", patience, |line| {
            find_address(line).map(str::to_owned)
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
        self.child.id()
    }

    /// Asks the server to end and waits for it.
    pub(crate) fn stop(mut self) -> Result<ExitStatus, ServerError> {
        let pid = self.child.id().to_string();
        // The standard library can only kill; the shell's `kill` asks.
        let kill = Command::new("sh")
            .args(["-c", "kill -TERM \"$0\"", &pid])
            .status();
        kill.map_err(process_error(Path::new("kill")))?;
        self.wait()
    }

    /// Waits for its end.
    pub(crate) fn wait(&mut self) -> Result<ExitStatus, ServerError> {
        let start = Instant::now();
        while start.elapsed() < DRAIN {
            let status = self.child.try_wait();
            if let Some(status) = status.map_err(process_error(Path::new("wait")))? {
                return Ok(status);
            }
            thread::sleep(Duration::from_millis(20));
        }
        Err(ServerError::NoEnd)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // Both fail only when the child has ended, which is what is wanted.
        let _ = self.child.kill();
        let _ = self.child.wait();
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
        let server = Server::start(&mut Command::new("/bin/true")).unwrap();
        let address = server.address(Duration::from_secs(60));
        assert!(matches!(address, Err(ServerError::Ended)));
    }
}
