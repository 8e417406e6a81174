//! Runs of runs: one point after another, each a workload against a server with given settings, each
//! in a folder of its own below one folder. What is there already is not measured again, so a series
//! that was stopped goes on where it was.
//!
//! Servers are started here, kept for as long as the next point asks for the same settings, and asked
//! for their settings before anything is sent.

use std::fs;
use std::io::{self, BufReader};
use std::path::{Path, PathBuf};
use std::time::Duration;

use thiserror::Error;
use tokio::sync::watch;

use crate::analysis::delivered::Delivered;
use crate::experiments::measure::{self, MeasureError, measure};
use crate::experiments::progress::Live;
use crate::experiments::servers::{
    Effective, Program, Server, ServerError, ServerSettings, any_key, key_in,
};
use crate::store::command::{CommandLine, without_secrets};
use crate::store::folder::{FolderError, Run, RunFolder};
use crate::store::record::Outcome;
use crate::store::timeline::{self, Sample};
use crate::transport::http::{Target, TargetError};
use crate::workload::spec::{Spec, SpecError};
use crate::workload::{Workload, WorkloadError};

/// Whose servers a series measures.
#[derive(Clone, Debug)]
pub(crate) enum Servers {
    /// Started for each point, with these settings beside the point's own.
    Started {
        /// The binary.
        program: Program,
        /// Settings of every point.
        base: ServerSettings,
    },
    /// One that runs already, whose settings nobody here can change.
    Running {
        /// Its address.
        url: String,
        /// The model to ask for.
        model: Option<String>,
        /// Sent as a bearer token.
        api_key: Option<String>,
    },
}

/// A series under way.
#[derive(Debug)]
pub(crate) struct Series {
    servers: Servers,
    /// Where the folders of the points are.
    out: PathBuf,
    /// Below which folder the files that workloads name are.
    files: PathBuf,
    live: Live,
    stop: watch::Receiver<bool>,
    server: Option<Server>,
}

/// A point that was measured, now or before.
#[derive(Clone, Debug)]
pub(crate) struct Point {
    /// Rows and manifest.
    pub run: Run,
    /// The server's counters meanwhile.
    pub timeline: Vec<Sample>,
    /// Why its load counts as not delivered, if it does.
    pub void: Vec<String>,
}

/// A point that could not be measured.
#[derive(Debug, Error)]
pub(crate) enum PointError {
    /// Somebody said stop. What was measured is kept.
    #[error("stopped")]
    Stopped,
    /// There is no such server.
    #[error(transparent)]
    Server(#[from] ServerError),
    /// The server does not answer.
    #[error(transparent)]
    Target(#[from] TargetError),
    /// A point asks for settings, and the server was started by somebody else.
    #[error(
        "{url} runs already and cannot be given {settings}; let serve-bench start it (--serve)"
    )]
    NotOurs {
        /// The server.
        url: String,
        /// What was asked.
        settings: ServerSettings,
    },
    /// The workload cannot be made.
    #[error(transparent)]
    Workload(#[from] WorkloadError),
    /// The workload cannot be written down.
    #[error(transparent)]
    Spec(#[from] SpecError),
    /// It cannot be measured.
    #[error(transparent)]
    Measure(#[from] MeasureError),
    /// Its folder cannot be used.
    #[error(transparent)]
    Folder(#[from] FolderError),
    /// Another series has been here.
    #[error("{} holds a finished run of another workload or other settings; name another folder with --out, or remove it", .0.display())]
    OtherPoint(PathBuf),
    /// A file cannot be read or written.
    #[error("{path}: {cause}", path = path.display())]
    Io {
        /// The file or folder.
        path: PathBuf,
        /// What the system says.
        cause: io::Error,
    },
}

/// How often the server's counters are asked for.
const POLL: Duration = Duration::from_millis(200);
/// How long a server may take to end.
const END_PATIENCE: Duration = Duration::from_secs(10);

impl Series {
    /// A series in the folder `out`, which is made when the first point is. Files that workloads name
    /// are below `files`. It stops when `stop` turns true.
    pub(crate) fn new(
        servers: Servers,
        out: &Path,
        files: &Path,
        stop: watch::Receiver<bool>,
    ) -> Self {
        Self {
            servers,
            out: out.to_owned(),
            files: files.to_owned(),
            live: Live::new(),
            stop,
            server: None,
        }
    }

    /// What goes to the terminal.
    pub(crate) fn live(&self) -> &Live {
        &self.live
    }

    /// The folder.
    pub(crate) fn out(&self) -> &Path {
        &self.out
    }

    /// Whether somebody said stop.
    pub(crate) fn stopped(&self) -> bool {
        *self.stop.borrow()
    }

    /// What every point's server has beside the point's own settings.
    pub(crate) fn base(&self) -> ServerSettings {
        match &self.servers {
            Servers::Started { base, .. } => base.clone(),
            Servers::Running { .. } => ServerSettings::default(),
        }
    }

    /// The point `id`, a folder's name: read if it was measured before with the same workload and the
    /// same settings, measured otherwise. What is left of one that was not finished is removed.
    ///
    /// # Errors
    ///
    /// [`PointError`] when it cannot be measured; [`PointError::Stopped`] also when it was stopped
    /// half-way, which leaves its rows.
    pub(crate) async fn point(
        &mut self,
        id: &str,
        settings: &ServerSettings,
        spec: Spec,
    ) -> Result<Point, PointError> {
        let workload = Workload::new(spec, &self.files)?;
        let folder = RunFolder::at(self.out.join(id));
        if let Some(point) = self.measured_before(settings, &workload, &folder)? {
            return Ok(point);
        }
        if self.stopped() {
            return Err(PointError::Stopped);
        }
        let (target, command) = self.server(settings).await?;
        let target = self.with_keys(target, settings, workload.spec())?;
        // Only what is no finished run of this program is ever removed.
        remove(folder.path())?;
        let mut options = measure::RunSettings::new(self.stop.clone());
        options.folder = Some(folder.clone());
        options.server_command = command;
        options.poll = POLL;
        let bar = self.live.requests(id, workload.requests());
        let measured = measure(&target, &workload, options, |row| {
            bar.ended(row.outcome == Outcome::Ok);
        });
        let measured = measured.await;
        drop(bar);
        if let Some(server) = &mut self.server {
            server.alive()?;
        }
        let measured = measured?;
        if measured.run.manifest.artifact.interrupted {
            return Err(PointError::Stopped);
        }
        Ok(Self::put_together(measured.run, measured.timeline))
    }

    /// How long the server that runs took to be ready, if it was started here.
    pub(crate) fn ready_after(&self) -> Option<Duration> {
        self.server.as_ref().and_then(Server::ready_after)
    }

    /// Ends the server, if one was started.
    pub(crate) async fn end_server(&mut self) {
        if let Some(server) = self.server.take() {
            server.stop(END_PATIENCE).await;
        }
    }

    /// What the server of these settings says of itself, without measuring anything.
    ///
    /// # Errors
    ///
    /// [`PointError`] when there is no such server.
    pub(crate) async fn effective(
        &mut self,
        settings: &ServerSettings,
    ) -> Result<Option<Effective>, PointError> {
        self.server(settings).await?;
        Ok(self
            .server
            .as_ref()
            .and_then(|server| server.effective().cloned()))
    }

    /// Tokens of a prompt and its answer together that the server of these settings takes, where it says
    /// so.
    ///
    /// # Errors
    ///
    /// [`PointError`] when there is no such server.
    pub(crate) async fn context_max(
        &mut self,
        settings: &ServerSettings,
    ) -> Result<Option<u32>, PointError> {
        let (target, _) = self.server(settings).await?;
        Ok(target.context_max())
    }

    fn measured_before(
        &self,
        settings: &ServerSettings,
        workload: &Workload,
        folder: &RunFolder,
    ) -> Result<Option<Point>, PointError> {
        if !folder.manifest().exists() {
            return Ok(None);
        }
        let run = folder.open()?;
        let manifest = &run.manifest;
        let same_work = manifest.workload.spec == workload.spec().to_toml()?
            && manifest.workload.requests_sha256 == workload.sha256();
        let effective = effective(&run);
        let asked = self.base().and(settings);
        let same_server = effective
            .as_ref()
            .map_or(asked == ServerSettings::default(), |effective| {
                asked.check(effective).is_ok()
            });
        if manifest.artifact.interrupted {
            return Ok(None);
        }
        if !same_work || !same_server {
            return Err(PointError::OtherPoint(folder.path().to_owned()));
        }
        let samples = read_timeline(folder)?;
        Ok(Some(Self::put_together(run, samples)))
    }

    fn put_together(run: Run, timeline: Vec<Sample>) -> Point {
        let void = Delivered::of_run(&run).void;
        Point {
            void: void.iter().map(ToString::to_string).collect(),
            run,
            timeline,
        }
    }

    /// The server of these settings, and the command that started it.
    async fn server(
        &mut self,
        settings: &ServerSettings,
    ) -> Result<(Target, Option<CommandLine>), PointError> {
        match &self.servers {
            Servers::Running {
                url,
                model,
                api_key,
            } => {
                if *settings != ServerSettings::default() {
                    let (url, settings) = (without_secrets(url), settings.clone());
                    return Err(PointError::NotOurs { url, settings });
                }
                if self.server.is_none() {
                    self.server = Some(Server::attach(url).await);
                }
                Ok((
                    Target::new(url, model.clone(), api_key.clone()).await?,
                    None,
                ))
            }
            Servers::Started { program, base } => {
                let all = base.clone().and(settings);
                let program = program.clone();
                let has = self
                    .server
                    .as_mut()
                    .is_some_and(|server| *server.settings() == all && server.alive().is_ok());
                if !has {
                    self.end_server().await;
                    let log = self.out.join("server.log");
                    self.server = Some(Server::start(&program, &all, &log).await?);
                }
                let url = self
                    .server
                    .as_ref()
                    .map_or_else(String::new, |server| server.url().to_owned());
                let command = std::iter::once(program.path.display().to_string());
                let command = command.chain(all.flags()).collect();
                let target = Target::new(&url, None, any_key(&all)).await?;
                Ok((target, Some(command)))
            }
        }
    }

    /// The server, which knows the tenants of a workload by their keys where it was started with such.
    fn with_keys(
        &self,
        target: Target,
        settings: &ServerSettings,
        spec: &Spec,
    ) -> Result<Target, TargetError> {
        let all = self.base().and(settings);
        let tenants = spec.tenants.iter().map(|tenant| &tenant.name);
        let keys = tenants.filter_map(|name| Some((name.clone(), key_in(&all, name)?)));
        target.with_keys(keys)
    }
}

fn effective(run: &Run) -> Option<Effective> {
    let config = run.manifest.runtime.config.clone()?;
    serde_json::from_value(config).ok()
}

fn io_error(path: &Path, cause: io::Error) -> PointError {
    PointError::Io {
        path: path.to_owned(),
        cause,
    }
}

fn remove(folder: &Path) -> Result<(), PointError> {
    match fs::remove_dir_all(folder) {
        Err(cause) if cause.kind() != io::ErrorKind::NotFound => Err(io_error(folder, cause)),
        _ => Ok(()),
    }
}

fn read_timeline(folder: &RunFolder) -> Result<Vec<Sample>, PointError> {
    let path = folder.timeline();
    match fs::File::open(&path) {
        Ok(file) => timeline::read(BufReader::new(file)).map_err(|cause| io_error(&path, cause)),
        Err(cause) if cause.kind() == io::ErrorKind::NotFound => Ok(Vec::new()),
        Err(cause) => Err(io_error(&path, cause)),
    }
}
