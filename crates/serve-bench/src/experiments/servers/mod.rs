//! Servers under measurement: one that is started here with given settings and stopped again, or one
//! that runs already.
//!
//! What a server says of itself at `GET /v1/config` is read back and compared with what was asked. A
//! server that has no such path can be driven, and proves nothing.

mod child;
mod keys;
pub(crate) mod ours;
mod settings;

pub use child::{Child, Signal, address_in};
pub use keys::key_of;
pub(crate) use keys::{any_key, key_in};
pub use settings::{Difference, Effective, NoSetting, NotAsAsked, NotOneApart, ServerSettings};

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use reqwest::{Client, StatusCode};
use thiserror::Error;
use tokio::time::sleep;

/// How a server is started.
#[derive(Clone, Debug)]
pub struct Program {
    /// The binary.
    pub path: PathBuf,
    /// How long it may load before it is ready.
    pub load_timeout: Duration,
}

/// A server that cannot be measured.
#[derive(Debug, Error)]
pub enum ServerError {
    /// There is no binary.
    #[error(
        "there is no `serve` beside this program nor on PATH; build it (cargo build --release --bin \
         serve), or say where it is with --serve PATH"
    )]
    NoProgram,
    /// It does not start.
    #[error("{path}: {cause}", path = path.display())]
    Start {
        /// The binary or the log.
        path: PathBuf,
        /// What the system says.
        cause: io::Error,
    },
    /// It started and ended.
    #[error("the server ({settings}) ended with {status}; its last words in {log}:\n{words}", log = log.display())]
    Ended {
        /// What it was started with.
        settings: ServerSettings,
        /// How it ended.
        status: ExitStatus,
        /// Its log.
        log: PathBuf,
        /// The log's last lines.
        words: String,
    },
    /// It does not get ready.
    #[error("the server ({settings}) was not ready within {waited_s} s; its log is {log}", log = log.display())]
    NotReady {
        /// What it was started with.
        settings: ServerSettings,
        /// How long it was waited for.
        waited_s: u64,
        /// Its log.
        log: PathBuf,
    },
    /// Its settings are not what was asked.
    #[error(transparent)]
    NotAsAsked(#[from] NotAsAsked),
    /// It does not show its settings.
    #[error("GET {url} does not show the server's settings ({cause})")]
    NoConfig {
        /// What was asked.
        url: String,
        /// What came of it.
        cause: String,
    },
}

impl Program {
    /// The binary at `path`; without one the `serve` beside this executable, or else on PATH.
    ///
    /// # Errors
    ///
    /// [`ServerError::NoProgram`] when there is none.
    pub fn find(path: Option<PathBuf>, load_timeout: Duration) -> Result<Self, ServerError> {
        let found = path.or_else(|| {
            let beside = std::env::current_exe().ok();
            let beside = beside.and_then(|own| Some(own.parent()?.to_owned()));
            let on_path = std::env::var_os("PATH").unwrap_or_default();
            let folders = beside.into_iter().chain(std::env::split_paths(&on_path));
            let candidates = folders.map(|folder| folder.join(ours::PROGRAM));
            candidates.into_iter().find(|candidate| candidate.is_file())
        });
        let path = found.ok_or(ServerError::NoProgram)?;
        Ok(Self { path, load_timeout })
    }
}

/// A server that runs, its address and what it says of itself.
#[derive(Debug)]
pub struct Server {
    url: String,
    settings: ServerSettings,
    effective: Option<Effective>,
    ready_after: Option<Duration>,
    process: Option<Process>,
}

impl Server {
    /// Starts `program` on a free port with `settings`, waits until it is ready, and checks that it
    /// has what was asked. Its output goes to `log`, which is written anew.
    ///
    /// # Errors
    ///
    /// [`ServerError`] when it does not start, ends (with its last words), does not get ready in
    /// time, or has other settings.
    pub async fn start(
        program: &Program,
        settings: &ServerSettings,
        log: &Path,
    ) -> Result<Self, ServerError> {
        let mut process = Process::spawn(program, settings, log)?;
        let began = Instant::now();
        let url = process.ready(program, settings).await?;
        let mut server = Self {
            url,
            settings: settings.clone(),
            effective: None,
            ready_after: Some(began.elapsed()),
            process: Some(process),
        };
        let effective = server.read_config().await?;
        settings.check(&effective)?;
        server.effective = Some(effective);
        Ok(server)
    }

    /// A server that runs already, at `url`. If it does not show its settings, nothing is known of
    /// them.
    pub async fn attach(url: &str) -> Self {
        let base = url.trim_end_matches('/');
        let mut server = Self {
            url: base.strip_suffix("/v1").unwrap_or(base).to_owned(),
            settings: ServerSettings::default(),
            effective: None,
            ready_after: None,
            process: None,
        };
        server.effective = server.read_config().await.ok();
        server
    }

    /// Where it listens.
    pub fn url(&self) -> &str {
        &self.url
    }

    /// What it was started with.
    pub fn settings(&self) -> &ServerSettings {
        &self.settings
    }

    /// What it says that it has.
    pub fn effective(&self) -> Option<&Effective> {
        self.effective.as_ref()
    }

    /// How long it took from its start to being ready, loading included; `None` if it was there.
    pub fn ready_after(&self) -> Option<Duration> {
        self.ready_after
    }

    /// The process of a server that was started here.
    pub fn pid(&self) -> Option<u32> {
        let process = self.process.as_ref();
        process.map(|process| process.child.pid())
    }

    /// An error with the server's last words if it has ended by itself.
    ///
    /// # Errors
    ///
    /// [`ServerError::Ended`].
    pub fn alive(&mut self) -> Result<(), ServerError> {
        match &mut self.process {
            Some(process) => process.alive(&self.settings),
            None => Ok(()),
        }
    }

    /// Tells a server that was started here to end, and waits until it has; one that takes longer
    /// than `patience` is ended at once. Others are left alone.
    pub async fn stop(mut self, patience: Duration) {
        let Some(process) = &mut self.process else {
            return;
        };
        process.child.signal(Signal::TERM);
        let deadline = Instant::now() + patience;
        while process.child.ended().is_ok_and(|status| status.is_none()) {
            if Instant::now() >= deadline {
                return; // dropping ends it
            }
            sleep(child::LOOK).await;
        }
    }

    async fn read_config(&self) -> Result<Effective, ServerError> {
        let url = format!("{}{}", self.url, ours::CONFIG);
        let answer = async {
            let asked = client()?.get(&url);
            let asked = match any_key(&self.settings) {
                Some(key) => asked.bearer_auth(key),
                None => asked,
            };
            let answer = asked.send().await?.error_for_status()?;
            answer.json::<Effective>().await
        };
        answer
            .await
            .map_err(|cause: reqwest::Error| ServerError::NoConfig {
                url: url.clone(),
                cause: cause.to_string(),
            })
    }
}

/// A client for the paths beside the API.
pub(crate) fn client() -> Result<Client, reqwest::Error> {
    Client::builder()
        .no_proxy()
        .timeout(Duration::from_secs(5))
        .build()
}

fn start_error(path: &Path, cause: io::Error) -> ServerError {
    ServerError::Start {
        path: path.to_owned(),
        cause,
    }
}

/// A child and its log, from which its address is read.
#[derive(Debug)]
struct Process {
    child: Child,
    log: PathBuf,
}

impl Process {
    fn spawn(
        program: &Program,
        settings: &ServerSettings,
        log: &Path,
    ) -> Result<Self, ServerError> {
        let logged = |cause| start_error(log, cause);
        if let Some(folder) = log.parent() {
            fs::create_dir_all(folder).map_err(logged)?;
        }
        let file = File::create(log).map_err(logged)?;
        let given = keys::in_file(settings, log).map_err(logged)?;
        let mut command = Command::new(&program.path);
        // Variables of the shell that measures must not reach the server unseen.
        let names = std::env::vars_os().map(|(name, _)| name);
        for name in names.filter(|name| name.to_string_lossy().starts_with(ours::VARIABLES)) {
            command.env_remove(name);
        }
        let quiet = ServerSettings::default().with(ours::QUIET.0, ours::QUIET.1);
        command
            .args(quiet.and(&given).with(ours::PORT.0, ours::PORT.1).flags())
            .stdin(Stdio::null())
            .stdout(file.try_clone().map_err(logged)?)
            .stderr(file);
        let child =
            Child::start(&mut command).map_err(|cause| start_error(&program.path, cause))?;
        Ok(Self {
            child,
            log: log.to_owned(),
        })
    }

    /// Its address, once it answers there that it is ready.
    async fn ready(
        &mut self,
        program: &Program,
        settings: &ServerSettings,
    ) -> Result<String, ServerError> {
        let client =
            client().map_err(|error| start_error(&program.path, io::Error::other(error)))?;
        let deadline = Instant::now() + program.load_timeout;
        loop {
            self.alive(settings)?;
            if let Some(url) = self.address() {
                let answer = client.get(format!("{url}{}", ours::READY)).send().await;
                if answer.is_ok_and(|answer| answer.status() == StatusCode::OK) {
                    return Ok(url);
                }
            }
            if Instant::now() >= deadline {
                return Err(ServerError::NotReady {
                    settings: settings.clone(),
                    waited_s: program.load_timeout.as_secs(),
                    log: self.log.clone(),
                });
            }
            sleep(Duration::from_millis(30)).await;
        }
    }

    /// What it has printed of where it listens, in a line that is whole.
    fn address(&self) -> Option<String> {
        let text = fs::read_to_string(&self.log).ok()?;
        let mut lines = text
            .split_inclusive('\n')
            .filter(|line| line.ends_with('\n'));
        lines.find_map(address_in).map(str::to_owned)
    }

    fn alive(&mut self, settings: &ServerSettings) -> Result<(), ServerError> {
        match self.child.ended() {
            Ok(Some(status)) => Err(ServerError::Ended {
                settings: settings.clone(),
                status,
                log: self.log.clone(),
                words: last_words(&self.log),
            }),
            Ok(None) => Ok(()),
            Err(cause) => Err(start_error(&self.log, cause)),
        }
    }
}

fn last_words(log: &Path) -> String {
    const LINES: usize = 12;
    let text = fs::read_to_string(log).unwrap_or_default();
    let lines = text.lines().collect::<Vec<_>>();
    lines[lines.len().saturating_sub(LINES)..].join("\n")
}
