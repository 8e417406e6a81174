//! A workload through the scheduler in virtual time, on a pretended device: the same rows as of a
//! measured run, marked as simulated, for as many requests as one has patience for.
//!
//! There is no network, no tokenizer and no edge here: what a simulation says of a server that works
//! on a device is as good as the device's [step times](crate::calibrate). A prompt has the tokens that
//! the workload planned, and an answer always has all that it may.

mod requests;
mod server;

pub use server::{ModelError, ServerModel};

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;

use serde_json::Value;
use serve_core::{CancelReason, Event, EventKind, Refusal, RequestId, Span};
use serve_sched::sim::{self, Row, Terminal};
use thiserror::Error;

use crate::definitions;
use crate::folder::{FolderError, Run, RunFolder};
use crate::hardware::Hardware;
use crate::manifest::{self, Artifact, Manifest, ManifestError, Measurement, Source};
use crate::measure;
use crate::record::{Chunk, Outcome, Record, Timings};
use crate::spec::SpecError;
use crate::workload::Workload;
use requests::{Ended, Requests};

/// A workload that cannot be simulated.
#[derive(Debug, Error)]
pub enum SimulateError {
    /// The server cannot be.
    #[error(transparent)]
    Model(#[from] ModelError),
    /// The workload has a class that the server does not.
    #[error("classes: the server has no class {name:?}; it has {}", known.join(", "))]
    Class {
        /// The class.
        name: String,
        /// Those that there are.
        known: Vec<String>,
    },
    /// The workload asks for something that only a measurement has.
    #[error("{0}: this is measured and not simulated; leave it out")]
    NotSimulated(&'static str),
    /// The folder cannot be used.
    #[error(transparent)]
    Folder(#[from] FolderError),
    /// The manifest cannot be written.
    #[error(transparent)]
    Manifest(#[from] ManifestError),
    /// The specification cannot be written down.
    #[error(transparent)]
    Spec(#[from] SpecError),
    /// The rows cannot be written.
    #[error("cannot write rows: {0}")]
    Rows(#[from] std::io::Error),
}

/// How long a simulation was and what was done in it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Simulated {
    /// When the last request had ended.
    pub end: Span,
    /// For how long of that a step ran.
    pub busy: Span,
    /// Requests that were made to yield.
    pub preemptions: u64,
}

/// Up to so many requests each token has its time; beyond, the first and the last, and what lies
/// between is one chunk.
pub const TOKEN_TIMES_MAX: u64 = 20_000;

/// Runs `workload` on `server` and gives each row to `each_row` as its request ends.
///
/// # Errors
///
/// [`SimulateError`] before anything runs.
pub fn simulate(
    workload: &Workload,
    server: &ServerModel,
    mut each_row: impl FnMut(Record),
) -> Result<Simulated, SimulateError> {
    let mut requests = Requests::new(workload, server)?;
    let mut simulation = sim::Simulation::new(server.scheduler()?, server.device()?);
    let times = Rc::new(RefCell::new(BTreeMap::<RequestId, Vec<u64>>::new()));
    if workload.requests() <= TOKEN_TIMES_MAX {
        let times = Rc::clone(&times);
        simulation = simulation.with_observer(move |event: &Event| {
            if let EventKind::Token { .. } = event.kind {
                let mut times = times.borrow_mut();
                times
                    .entry(event.request)
                    .or_default()
                    .push(event.at.as_nanos());
            }
        });
    }
    // Rows come out of the inputs, which know what was asked; what a row of the scheduler adds is
    // given to them.
    let mut end_ns = 0;
    let report = {
        let mut each = |row: Record| {
            end_ns = end_ns.max(row.end_ns.unwrap_or(0));
            each_row(row);
        };
        let mut feed = Feed {
            requests: &mut requests,
            times: &times,
            each_row: &mut each,
        };
        simulation.run_with(&mut feed, |_| {})
    };
    Ok(Simulated {
        end: Span::from_nanos(end_ns),
        busy: report.busy,
        preemptions: report.stats.counters.preempted,
    })
}

/// What a simulated run is besides its workload and its server.
#[derive(Clone, Debug, Default)]
pub struct Simulation {
    /// What the way through a server's edge adds to each answer.
    pub edge: Span,
    /// Where rows and manifest go; nowhere when absent.
    pub folder: Option<RunFolder>,
}

/// A simulated run as rows and manifest, like a measured one.
///
/// # Errors
///
/// [`SimulateError`] when it cannot be made or written.
pub fn run(
    workload: &Workload,
    server: &ServerModel,
    options: &Simulation,
) -> Result<(Run, Simulated), SimulateError> {
    let mut manifest = manifest(workload, server)?;
    let mut writer = options.folder.as_ref().map(RunFolder::create).transpose()?;
    let (mut records, mut written) = (Vec::new(), Ok(()));
    let simulated = simulate(workload, server, |mut row| {
        later(&mut row, options.edge.as_nanos());
        if let (Some(writer), Ok(())) = (&mut writer, &written) {
            written = writer.write(&row);
        }
        records.push(row);
    })?;
    written?;
    if let (Some(writer), Some(folder)) = (writer, &options.folder) {
        (manifest.artifact.rows, manifest.artifact.rows_sha256) = writer.finish()?;
        manifest.write(&folder.manifest())?;
    }
    Ok((Run { manifest, records }, simulated))
}

/// Moves whatever came back by what the edge takes.
fn later(row: &mut Record, edge_ns: u64) {
    let back = [&mut row.headers_ns, &mut row.end_ns].into_iter().flatten();
    let chunks = row.chunks.iter_mut().map(|chunk| &mut chunk.at_ns);
    for at_ns in back.chain(chunks) {
        *at_ns += edge_ns;
    }
}

fn manifest(workload: &Workload, server: &ServerModel) -> Result<Manifest, SimulateError> {
    let spec = workload.spec();
    let classes = spec
        .classes
        .iter()
        .filter_map(|class| Some((class.name.clone(), class.slo?)));
    let config = server.settings.iter();
    let config = config.map(|(name, value)| (name.to_owned(), Value::from(value)));
    Ok(Manifest {
        format: manifest::FORMAT.to_owned(),
        version: manifest::VERSION,
        source: Source::Simulated,
        model: manifest::Model {
            name: "simulated".to_owned(),
            ..manifest::Model::default()
        },
        runtime: manifest::Runtime {
            server: Some("serve-sched, in virtual time".to_owned()),
            version: Some(env!("CARGO_PKG_VERSION").to_owned()),
            config: Some(Value::Object(config.collect())),
            ..manifest::Runtime::default()
        },
        hardware: Hardware::default(),
        workload: measure::layer(workload)?,
        measurement: Measurement {
            definitions: definitions::by_name(),
            warmup_ns: Span::from_secs_f64(spec.measure.warmup_s).as_nanos(),
            timeout_ms: spec.measure.timeout_s.secs().as_millis(),
            slo: spec.slo,
            slo_by_class: classes.collect(),
            delivery: spec.measure.delivery,
            ..Measurement::default()
        },
        artifact: Artifact {
            bench_version: env!("CARGO_PKG_VERSION").to_owned(),
            bench_commit: option_env!("SERVE_BENCH_COMMIT").map(str::to_owned),
            command: std::env::args().collect(),
            ..Artifact::default()
        },
    })
}

/// Hands rows on as soon as they are whole, so that a long simulation takes no memory.
struct Feed<'a, F> {
    requests: &'a mut Requests,
    times: &'a RefCell<BTreeMap<RequestId, Vec<u64>>>,
    each_row: &'a mut F,
}

impl<F: FnMut(Record)> sim::Workload for Feed<'_, F> {
    fn next_at(&mut self) -> Option<serve_core::Time> {
        self.requests.next_at()
    }

    fn next_input(&mut self) -> Option<(serve_core::Time, sim::Input)> {
        self.requests.next_input()
    }

    fn ended(&mut self, row: &Row) {
        self.requests.ended(row);
        for ended in self.requests.take_ended() {
            let times = ended
                .row
                .and_then(|row| self.times.borrow_mut().remove(&row.request));
            (self.each_row)(record(ended, times));
        }
    }
}

/// What the scheduler says of a request, as a row.
fn record(ended: Ended, times: Option<Vec<u64>>) -> Record {
    let Some(row) = ended.row else {
        return ended.asked;
    };
    let arrival = row.arrival.as_nanos();
    let refused = |outcome, status, cause: &str| (outcome, Some(status), Some(cause.to_owned()));
    let (outcome, status, cause) = match &row.terminal {
        Terminal::Finished(_) => (Outcome::Ok, Some(200), None),
        Terminal::Refused(refusal) => match refusal {
            Refusal::Later { .. } => refused(Outcome::Refused, 503, "overloaded"),
            Refusal::Never { .. } => refused(Outcome::Failed, 400, "never_served"),
        },
        Terminal::Cancelled(CancelReason::Deadline) => (
            Outcome::Failed,
            Some(504),
            Some("deadline_exceeded".to_owned()),
        ),
        Terminal::Cancelled(_) if ended.gave_up => {
            (Outcome::Failed, Some(200), Some("timeout".to_owned()))
        }
        Terminal::Cancelled(_) => (Outcome::Cancelled, Some(200), Some("planned".to_owned())),
        Terminal::Failed => (Outcome::Failed, Some(500), Some("backend_error".to_owned())),
    };
    let started = row.started.map(|at| at.as_nanos());
    let first = row.first_token.map(|at| at.as_nanos());
    let tokens = row.usage.output_tokens;
    let chunk = |at_ns, tokens| Chunk {
        at_ns,
        tokens: Some(tokens),
    };
    let chunks = match (times, first) {
        (Some(times), _) => times.into_iter().map(|at| chunk(at, 1)).collect(),
        (None, Some(first)) if outcome == Outcome::Ok && tokens > 1 => {
            vec![chunk(first, 1), chunk(row.end.as_nanos(), tokens - 1)]
        }
        (None, Some(first)) => vec![chunk(first, 1)],
        (None, None) => Vec::new(),
    };
    let ms = |from: Option<u64>, to: Option<u64>| Some(to?.saturating_sub(from?) as f64 / 1e6);
    let last = chunks.last().map(|chunk: &Chunk| chunk.at_ns);
    let is_done = outcome == Outcome::Ok;
    Record {
        sent_ns: Some(arrival),
        connected_ns: Some(arrival),
        headers_ns: Some(first.unwrap_or(row.end.as_nanos())),
        chunks,
        end_ns: Some(row.end.as_nanos()),
        outcome,
        status,
        finish_reason: is_done.then(|| "length".to_owned()),
        cause,
        prompt_tokens: is_done.then_some(row.usage.prompt_tokens),
        output_tokens: is_done.then_some(tokens),
        timings: is_done.then(|| Timings {
            queue_ms: ms(Some(arrival), started),
            prefill_ms: ms(started, first),
            decode_ms: ms(first, last),
            ..Timings::default()
        }),
        ..ended.asked
    }
}
