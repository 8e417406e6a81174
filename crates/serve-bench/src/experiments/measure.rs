//! One run, from a workload and a server (or an engine in this process) to rows and a manifest. The
//! commands print; this does not.

use std::fs::File;
use std::io::{self, BufWriter};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use serve_core::Span;
use thiserror::Error;
use tokio::sync::watch;
use tokio::time::Instant;

use crate::analysis::definitions;
use crate::analysis::histograms::Histograms;
use crate::store::command::CommandLine;
use crate::store::folder::{FolderError, Run, RunFolder};
use crate::store::hardware::Hardware;
use crate::store::manifest::{
    self, Artifact, Manifest, ManifestError, Measurement, Source, WorkloadLayer,
};
use crate::store::record::{Outcome, Record};
use crate::store::timeline::{self, Poller, Sample, nanos_since};
use crate::transport::client_load::Watch;
use crate::transport::drive::{Driving, Timer, Transport, drive};
use crate::transport::engine::{CannotAsk, Engine};
use crate::transport::http::{Described, HttpClient, Target, TargetError};
use crate::workload::Workload;
use crate::workload::spec::SpecError;

/// What a run is besides its workload and its server.
#[derive(Clone, Debug)]
pub struct RunSettings {
    /// Where rows and manifest go; nowhere when absent.
    pub folder: Option<RunFolder>,
    /// How often the server's counters are asked for, if it shows any.
    pub poll: Duration,
    /// The command line, for the manifest.
    pub command: CommandLine,
    /// The command that started the server, when the caller did.
    pub server_command: Option<CommandLine>,
    /// Turns true when the run is to be stopped.
    pub stop: watch::Receiver<bool>,
}

impl RunSettings {
    /// A run that starts now and goes nowhere.
    pub fn new(stop: watch::Receiver<bool>) -> Self {
        Self {
            folder: None,
            poll: Duration::from_millis(500),
            command: CommandLine::of_this_process(),
            server_command: None,
            stop,
        }
    }
}

/// A run that could not be made.
#[derive(Debug, Error)]
pub enum MeasureError {
    /// The server cannot be asked.
    #[error(transparent)]
    Target(#[from] TargetError),
    /// The folder cannot be used.
    #[error(transparent)]
    Folder(#[from] FolderError),
    /// The manifest cannot be written.
    #[error(transparent)]
    Manifest(#[from] ManifestError),
    /// The specification cannot be written down.
    #[error(transparent)]
    Spec(#[from] SpecError),
    /// The engine cannot be asked this.
    #[error(transparent)]
    Engine(#[from] CannotAsk),
    /// The files cannot be written, or nothing can be polled.
    #[error("cannot keep the run: {0}")]
    Rows(#[from] io::Error),
    /// No warm-up request was answered: the server does not work, and a load would measure that.
    #[error("none of the {requests} warm-up requests got an answer; the first: {cause}")]
    Warmup {
        /// How many there were.
        requests: u64,
        /// What went wrong.
        cause: String,
    },
}

/// What a run leaves.
#[derive(Clone, Debug, PartialEq)]
pub struct Measured {
    /// Its manifest and its rows.
    pub run: Run,
    /// The server's counters meanwhile; empty where it shows none.
    pub timeline: Vec<Sample>,
}

/// How long before its first request a run's clock starts.
const AHEAD: Duration = Duration::from_millis(50);

/// Warms the server, sends the workload, and keeps a row for each attempt. `on_row` sees each as it
/// ends. The folder, if there is one, holds rows, manifest and timeline afterwards.
///
/// # Errors
///
/// [`MeasureError`] when the run cannot be made. A server that refuses or fails is no error: that is
/// what rows are for.
pub(crate) async fn measure(
    target: &Target,
    workload: &Workload,
    settings: RunSettings,
    on_row: impl FnMut(&Record),
) -> Result<Measured, MeasureError> {
    raise_open_files_limit();
    let client = HttpClient::new(target, workload.spec())?;
    let mut described = target.describe().await;
    described
        .runtime
        .command
        .clone_from(&settings.server_command);
    let hardware = Hardware::of_this_machine(target.is_local());
    let (polling, url) = (polling_client()?, target.url().to_owned());
    let poll = move |origin, every| {
        Poller::start(every, move || {
            let (polling, url) = (polling.clone(), url.clone());
            async move { timeline::sample(&polling, &url, origin).await }
        })
    };
    keep(
        client,
        (described, hardware),
        workload,
        settings,
        poll,
        on_row,
    )
    .await
}

/// The same with an engine in this process in the place of a server.
///
/// # Errors
///
/// [`MeasureError`] when the run cannot be made.
pub async fn measure_engine(
    engine: &Arc<Engine>,
    workload: &Workload,
    settings: RunSettings,
    on_row: impl FnMut(&Record),
) -> Result<Measured, MeasureError> {
    let client = engine.client(workload.spec())?;
    let described = Described {
        model: engine.model.clone(),
        runtime: engine.runtime.clone(),
    };
    let hardware = Hardware::of_this_machine(true);
    let engine = Arc::clone(engine);
    let poll = move |origin, every| {
        Poller::start(every, move || {
            let sample = engine.sample(nanos_since(origin));
            async move { Some(sample) }
        })
    };
    keep(
        client,
        (described, hardware),
        workload,
        settings,
        poll,
        on_row,
    )
    .await
}

/// Sends a workload over `client` and keeps what comes of it. `poll` starts to read the counters of who
/// is asked, from the start of the run.
async fn keep<T: Transport>(
    client: T,
    (described, hardware): (Described, Hardware),
    workload: &Workload,
    settings: RunSettings,
    poll: impl FnOnce(Instant, Duration) -> Poller,
    mut on_row: impl FnMut(&Record),
) -> Result<Measured, MeasureError> {
    let command = settings.command.clone();
    let mut manifest = manifest(T::SOURCE, described, hardware, workload, command)?;
    let mut writer = settings
        .folder
        .as_ref()
        .map(RunFolder::create)
        .transpose()?;
    warm_up(workload, &client, &settings).await?;

    // A moment ahead, so that the first request is not late.
    let origin = Instant::now() + AHEAD;
    manifest.artifact.started = utc(origin);
    let poller = poll(origin, settings.poll);
    let watch = Watch::start();
    let driving = Driving {
        origin,
        patience: workload.spec().measure.timeout_s.secs().into(),
        timer: Timer::Thread,
        stop: settings.stop.clone(),
    };
    let (mut records, mut written) = (Vec::new(), Ok(()));
    drive(workload, client, driving, |record| {
        if let (Some(writer), Ok(())) = (&mut writer, &written) {
            written = writer.write(&record);
        }
        on_row(&record);
        records.push(record);
    })
    .await;
    manifest.measurement.client = Some(watch.stop());
    let timeline = poller.stop().await;
    manifest.artifact.ended = utc(Instant::now());
    manifest.artifact.interrupted = *settings.stop.borrow();
    written?;
    if let Some(writer) = writer {
        (manifest.artifact.rows, manifest.artifact.rows_sha256) = writer.finish()?;
    }
    let run = Run { manifest, records };
    if let Some(folder) = &settings.folder {
        if !timeline.is_empty() {
            let file = File::create(folder.timeline())?;
            timeline::write(&timeline, &mut BufWriter::new(file))?;
        }
        run.manifest.write(&folder.manifest())?;
        Histograms::keep(&run, folder)?;
    }
    Ok(Measured { run, timeline })
}

fn polling_client() -> Result<reqwest::Client, MeasureError> {
    // A proxy between client and server would answer for it.
    let client = reqwest::Client::builder().no_proxy().build();
    client.map_err(|error| MeasureError::Rows(io::Error::other(error)))
}

/// A few requests, one after another, whose rows nobody sees.
async fn warm_up<T: Transport>(
    workload: &Workload,
    client: &T,
    settings: &RunSettings,
) -> Result<(), MeasureError> {
    let requests = workload.spec().measure.warmup_requests;
    let Some(workload) = workload.warm_up(requests) else {
        return Ok(());
    };
    let driving = Driving {
        origin: Instant::now(),
        patience: workload.spec().measure.timeout_s.secs().into(),
        timer: Timer::Runtime,
        stop: settings.stop.clone(),
    };
    let (mut ok, mut cause) = (0, None);
    drive(&workload, client.clone(), driving, |record| {
        match record.outcome {
            Outcome::Ok => ok += 1,
            _ => cause = cause.take().or(record.error),
        }
    })
    .await;
    match ok == 0 && !*settings.stop.borrow() {
        true => Err(MeasureError::Warmup {
            requests,
            cause: cause.unwrap_or_default(),
        }),
        false => Ok(()),
    }
}

/// What is known of a run before it begins, for simulations as well.
///
/// # Errors
///
/// [`SpecError`] where the specification has no TOML form.
pub(crate) fn manifest(
    source: Source,
    described: Described,
    hardware: Hardware,
    workload: &Workload,
    command: CommandLine,
) -> Result<Manifest, SpecError> {
    let spec = workload.spec();
    let classes = spec
        .classes
        .iter()
        .filter_map(|class| Some((class.name.clone(), class.slo?)));
    Ok(Manifest {
        format: manifest::FORMAT.to_owned(),
        version: manifest::VERSION,
        source,
        model: described.model,
        runtime: described.runtime,
        hardware,
        workload: layer(workload)?,
        measurement: Measurement {
            definitions: definitions::by_name(),
            warmup_requests: spec.measure.warmup_requests,
            warmup_ns: Span::from_secs_f64(spec.measure.warmup_s).as_nanos(),
            timeout_ms: spec.measure.timeout_s.secs().as_millis(),
            slo: spec.slo,
            slo_by_class: classes.collect(),
            delivery: spec.measure.delivery,
            client: None,
        },
        artifact: Artifact {
            bench_version: env!("CARGO_PKG_VERSION").to_owned(),
            bench_commit: option_env!("SERVE_BENCH_COMMIT").map(str::to_owned),
            command,
            ..Artifact::default()
        },
    })
}

/// Layer 4 of a manifest.
fn layer(workload: &Workload) -> Result<WorkloadLayer, SpecError> {
    let spec = workload.spec();
    Ok(WorkloadLayer {
        name: spec.name.clone(),
        spec: spec.to_toml()?,
        seed: spec.seed,
        requests: workload.requests(),
        requests_sha256: workload.sha256(),
        files_sha256: workload.files_sha256().clone(),
    })
}

/// An open loop without a cap needs a socket for each request under way.
fn raise_open_files_limit() {
    use rustix::process::{Resource, getrlimit, setrlimit};
    let mut limit = getrlimit(Resource::Nofile);
    limit.current = limit.maximum;
    // Where it cannot be raised, a connection that cannot be opened has a row that says so.
    let _ = setrlimit(Resource::Nofile, limit);
}

/// The wall clock at an instant, as RFC 3339.
fn utc(at: Instant) -> String {
    let ahead = at.saturating_duration_since(Instant::now());
    humantime::format_rfc3339_millis(SystemTime::now() + ahead).to_string()
}
