//! An engine that this server starts: started, watched, started anew, ended.
//!
//! Its end is noticed at once and goes before any time-out. It is started anew after a pause that doubles, and given up
//! when it has ended too often with no request answered in between. Whatever it is that ends, nothing of it stays
//! behind (`monitor`).

mod monitor;
mod output;
mod port;
mod processes;

use std::io::{self, Write};
use std::process::{Child, ChildStdin, ExitStatus};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use futures::FutureExt;
use thiserror::Error;
use tokio::sync::{Notify, watch};
use tokio::time::timeout;
use tracing::{error, info, warn};

pub use monitor::engine_role;
use port::ReservedPort;

/// What stands for the port in a command.
const PORT: &str = "{port}";

/// Ends in a row, with no request answered in between, after which it is not started again.
const RESTARTS_MAX: u32 = 5;

/// Before it is started again: the first pause and the longest.
const PAUSE: Duration = Duration::from_millis(200);
const PAUSE_MAX: Duration = Duration::from_secs(30);

/// How long it may take to end once it is told to, before it is killed.
const END_TIMEOUT: Duration = Duration::from_secs(8);

/// How an engine is started.
#[derive(Clone, Debug)]
pub struct EngineCommand {
    words: Vec<String>,
    /// How long it may take until it has made a token.
    start_timeout: Duration,
}

/// A command that starts no engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum InvalidCommand {
    /// Nothing to run.
    #[error("it must be a command, such as 'llama-server -m model.gguf --port {{port}}'")]
    Empty,
    /// A quote without its other one.
    #[error("a quote is not closed")]
    Quotes,
    /// The engine would not know where to listen.
    #[error("it must hold {{port}}, for which the port stands that the engine is to listen on")]
    NoPort,
}

impl EngineCommand {
    /// Reads a command line as a shell splits it into words; nothing else of a shell is done.
    ///
    /// # Errors
    ///
    /// [`InvalidCommand`].
    pub fn new(text: &str, start_timeout: Duration) -> Result<Self, InvalidCommand> {
        let words = shlex::split(text).ok_or(InvalidCommand::Quotes)?;
        if words.is_empty() {
            return Err(InvalidCommand::Empty);
        }
        if !words.iter().any(|word| word.contains(PORT)) {
            return Err(InvalidCommand::NoPort);
        }
        Ok(Self {
            words,
            start_timeout,
        })
    }

    fn on(&self, port: u16) -> Vec<String> {
        let words = self.words.iter();
        words
            .map(|word| word.replace(PORT, &port.to_string()))
            .collect()
    }
}

/// An engine that is started here, and its port; a clone is the same one.
#[derive(Clone)]
pub(super) struct Supervisor(Arc<Shared>);

struct Shared {
    command: EngineCommand,
    port: ReservedPort,
    /// The process of its monitor, 0 where there is none.
    monitor: AtomicU32,
    /// The server's word to the monitor.
    word: Mutex<Option<ChildStdin>>,
    stage: watch::Sender<Stage>,
    serves: Notify,
    end: watch::Sender<bool>,
}

/// Where an engine that is started here is in its life.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    /// It has not been started.
    Planned,
    Alive,
    /// It has ended too often.
    GivenUp,
    /// It has been ended, and nothing is left.
    Ended,
}

/// How one life of an engine ended.
enum Death {
    Exit(ExitStatus),
    /// It took too long to make a token.
    TooSlow,
    /// The server ends.
    Told,
}

impl Supervisor {
    /// Reserves a port.
    ///
    /// # Errors
    ///
    /// Where the system has none.
    pub(super) fn new(command: EngineCommand) -> io::Result<Self> {
        Ok(Self(Arc::new(Shared {
            command,
            port: ReservedPort::any()?,
            monitor: AtomicU32::new(0),
            word: Mutex::default(),
            stage: watch::Sender::new(Stage::Planned),
            serves: Notify::new(),
            end: watch::Sender::new(false),
        })))
    }

    pub(super) fn port(&self) -> u16 {
        self.0.port.get()
    }

    /// Whether it is this engine that listens on the port, and not another one, left behind by whatever was before.
    ///
    /// # Errors
    ///
    /// Why not, in words.
    pub(super) fn is_ours(&self) -> Result<(), String> {
        match self.0.monitor.load(Ordering::SeqCst) {
            0 => Err("it does not run".to_owned()),
            monitor => processes::listens(monitor, self.port()),
        }
    }

    /// It has made a token.
    pub(super) fn serves(&self) {
        self.0.serves.notify_one();
    }

    /// Starts it, and starts it again when it ends, until it is told to end or is given up. `answered` counts the
    /// requests that it has answered; `ended` is called after each of its ends but the one that was asked for.
    pub(super) async fn run(self, answered: impl Fn() -> u64, ended: impl Fn()) {
        self.0.stage.send_replace(Stage::Alive);
        let mut in_a_row = 0;
        let mut answered_before = answered();
        let last = loop {
            let death = self.live().await;
            let told = match death {
                Ok(Death::Told) => break Stage::Ended,
                Ok(Death::Exit(status)) => format!("the engine has ended: {status}"),
                Ok(Death::TooSlow) => {
                    let seconds = self.0.command.start_timeout.as_secs_f64();
                    format!("the engine has made no token within {seconds} s, and was killed")
                }
                Err(error) => format!("the engine cannot be started: {error}"),
            };
            let count = answered();
            in_a_row = match count > answered_before {
                true => 1,
                false => in_a_row + 1,
            };
            answered_before = count;
            if in_a_row > RESTARTS_MAX {
                error!(
                    "{told}; it is given up after {RESTARTS_MAX} restarts in a row without an answer"
                );
                break Stage::GivenUp;
            }
            let pause = (PAUSE * (1 << (in_a_row - 1).min(16))).min(PAUSE_MAX);
            warn!("{told}; it is started again in {} ms", pause.as_millis());
            ended();
            if timeout(pause, self.told_to_end()).await.is_ok() {
                break Stage::Ended;
            }
        };
        self.0.stage.send_replace(last);
    }

    /// Waits until it is given up.
    pub(super) async fn given_up(&self) {
        let mut stage = self.0.stage.subscribe();
        // The sender is `self`, so it outlives this borrow.
        let _ = stage.wait_for(|stage| *stage == Stage::GivenUp).await;
    }

    /// Ends it: it is told to end by itself, and killed if that takes too long. Returns when nothing of it is left.
    pub(super) async fn end(&self) {
        self.0.end.send_replace(true);
        let mut stage = self.0.stage.subscribe();
        let _ = stage.wait_for(|stage| *stage != Stage::Alive).await;
    }

    /// One life, from its start until nothing of it is left.
    async fn live(&self) -> io::Result<Death> {
        // That the one before served, and served again, says nothing of this one.
        let _ = self.0.serves.notified().now_or_never();
        let words = self.0.command.on(self.port());
        let mut command = monitor::monitored(&words)?;
        command.stdout(std::process::Stdio::piped());
        command.stderr(std::process::Stdio::piped());
        let mut child = command.spawn()?;
        info!(program = %words[0], port = self.port(), process = child.id(), "the engine is started");
        self.0.monitor.store(child.id(), Ordering::SeqCst);
        *self.word() = child.stdin.take();
        if let Some(pipe) = child.stdout.take() {
            output::log("stdout", pipe)?;
        }
        if let Some(pipe) = child.stderr.take() {
            output::log("stderr", pipe)?;
        }
        let mut exited = waited_for(child)?;
        let death = self.death(&mut exited).await;
        // Whatever is left of it is killed when the pipe closes; its monitor ends last.
        drop(self.word().take());
        exit_of(&mut exited).await;
        self.0.monitor.store(0, Ordering::SeqCst);
        Ok(death)
    }

    async fn death(&self, exited: &mut Exited) -> Death {
        let start = self.0.command.start_timeout;
        tokio::select! {
            biased;
            // Of one that has ended nobody waits for the time-out.
            status = exit_of(exited) => return Death::Exit(status),
            () = self.told_to_end() => return self.ended(exited).await,
            served = timeout(start, self.0.serves.notified()) => if served.is_err() {
                return Death::TooSlow;
            },
        }
        tokio::select! {
            biased;
            status = exit_of(exited) => Death::Exit(status),
            () = self.told_to_end() => self.ended(exited).await,
        }
    }

    async fn told_to_end(&self) {
        let mut end = self.0.end.subscribe();
        // The sender is `self`, so it outlives this borrow.
        let _ = end.wait_for(|told| *told).await;
    }

    /// Has it end by itself, for as long as it may take.
    async fn ended(&self, exited: &mut Exited) -> Death {
        if let Some(word) = &mut *self.word() {
            // One that has just ended reads nothing.
            let _ = word.write_all(&[monitor::END]);
        }
        match timeout(END_TIMEOUT, exit_of(exited)).await {
            Ok(_) => info!("the engine has ended"),
            Err(_) => warn!("the engine has not ended in time, and is killed"),
        }
        Death::Told
    }

    fn word(&self) -> std::sync::MutexGuard<'_, Option<ChildStdin>> {
        self.0.word.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// How a process has ended, once it has.
type Exited = watch::Receiver<Option<ExitStatus>>;

/// Waits for a process on a thread.
fn waited_for(mut child: Child) -> io::Result<Exited> {
    let (told, exited) = watch::channel(None);
    let wait = move || {
        let status = child.wait();
        // Nobody asks any more when the server ends.
        let _ = told.send(Some(status.unwrap_or_default()));
    };
    thread::Builder::new()
        .name("engine".to_owned())
        .spawn(wait)?;
    Ok(exited)
}

async fn exit_of(exited: &mut Exited) -> ExitStatus {
    let status = exited.wait_for(Option::is_some).await;
    status.ok().and_then(|status| *status).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_is_split_into_words_and_told_its_port() {
        let command = |text| EngineCommand::new(text, Duration::ZERO);
        let words = command("llama-server -m 'a model.gguf' --port={port} \"x\\\"y\"").unwrap();
        assert_eq!(
            words.on(80),
            ["llama-server", "-m", "a model.gguf", "--port=80", "x\"y"]
        );
        assert_eq!(command("").unwrap_err(), InvalidCommand::Empty);
        assert_eq!(command("a 'b {port}").unwrap_err(), InvalidCommand::Quotes);
        assert_eq!(command("vllm serve x").unwrap_err(), InvalidCommand::NoPort);
        assert!(InvalidCommand::NoPort.to_string().contains("{port}"));
    }

    #[tokio::test]
    async fn what_has_not_been_started_need_not_be_waited_for() {
        let command = EngineCommand::new("a {port}", Duration::ZERO).unwrap();
        let supervisor = Supervisor::new(command).unwrap();
        let watchdog = Duration::from_secs(10);
        assert!(timeout(watchdog, supervisor.end()).await.is_ok());
    }
}
