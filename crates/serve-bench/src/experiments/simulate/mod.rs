//! A workload through the scheduler in virtual time, on a pretended device: the same rows as of a
//! measured run, marked as simulated, for as many requests as one has patience for.
//!
//! There is no network, no tokenizer and no edge here: what a simulation says of a server that works
//! on a device is as good as the device's step times, which `serve-bench calibrate` measures. A prompt has the tokens that
//! the workload planned, and an answer always has all that it may.

mod requests;
mod row;
mod server;

pub use server::{ModelError, ServerModel};

use serve_core::{Event, Span, Time};
use serve_sched::sim::{self, Row};
use thiserror::Error;

use crate::experiments::measure;
use crate::store::command::CommandLine;
use crate::store::folder::{FolderError, Run, RunFolder};
use crate::store::hardware::Hardware;
use crate::store::manifest::{ManifestError, Model, Runtime, Source};
use crate::store::record::{Outcome, Record};
use crate::transport::engine::CannotAsk;
use crate::transport::engine::request::Asker;
use crate::transport::http::Described;
use crate::workload::Workload;
use crate::workload::spec::{CancelAfter, Spec, SpecError};
use requests::{How, Requests};

/// A workload that cannot be simulated.
#[derive(Debug, Error)]
pub enum SimulateError {
    /// The server cannot be.
    #[error(transparent)]
    Model(#[from] ModelError),
    /// The workload asks for something that no scheduler has.
    #[error(transparent)]
    Ask(#[from] CannotAsk),
    /// No warm-up request was answered, as [in a measurement](measure::MeasureError::Warmup).
    #[error("none of the {0} warm-up requests got an answer")]
    Warmup(u64),
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
    /// Preemptions.
    pub preemptions: u64,
}

/// Up to so many requests each token has its time; beyond, the first and the last, and what lies
/// between is one chunk.
pub(crate) const TOKEN_TIMES_MAX: u64 = 20_000;

/// What a simulated run is besides its workload and its server.
#[derive(Clone, Debug, Default)]
pub(crate) struct Simulation {
    /// What the way through a server's edge adds to whatever comes back.
    pub edge: Span,
    /// Where rows and manifest go; nowhere when absent.
    pub folder: Option<RunFolder>,
}

/// Runs `workload` on `server` and gives each row to `each_row` as its attempt ends. Whatever comes back
/// takes `edge` longer than the scheduler's time.
///
/// # Errors
///
/// [`SimulateError`] before anything runs, or when the warm-up fails.
pub fn simulate(
    workload: &Workload,
    server: &ServerModel,
    edge: Span,
    mut each_row: impl FnMut(Record),
) -> Result<Simulated, SimulateError> {
    let spec = workload.spec();
    let asker = Asker::new(spec, server.terms())?;
    let keeps_times = workload.requests() <= TOKEN_TIMES_MAX;
    let device = server.device()?;
    let mut simulation = sim::Simulation::new(server.scheduler()?, device.clone());
    if keeps_times || counts_tokens(spec) {
        simulation = simulation.with_every_token();
    }
    let mut how = How {
        edge,
        origin: Time::ZERO,
        keeps_times,
    };
    let (mut busy, mut preempted) = (Span::ZERO, 0);
    let warmup_requests = spec.measure.warmup_requests;
    if let Some(warm_up) = workload.warm_up(warmup_requests) {
        let mut answered = 0;
        let mut requests = Requests::new(&warm_up, asker.clone(), device.clone(), how);
        let mut count = |row: Record| answered += u64::from(row.outcome == Outcome::Ok);
        let report = simulation.run_with(&mut Feed::new(&mut requests, &mut count), |_| {});
        if answered == 0 {
            return Err(SimulateError::Warmup(warmup_requests));
        }
        (busy, preempted) = (report.busy, report.stats.counters.preempted);
        how.origin = report.end;
    }
    let mut end_ns = 0;
    let mut each = |row: Record| {
        end_ns = end_ns.max(row.end_ns.unwrap_or(0));
        each_row(row);
    };
    let mut requests = Requests::new(workload, asker, device, how);
    let report = simulation.run_with(&mut Feed::new(&mut requests, &mut each), |_| {});
    Ok(Simulated {
        end: Span::from_nanos(end_ns),
        busy: report.busy.saturating_sub(busy),
        preemptions: report.stats.counters.preempted - preempted,
    })
}

/// Whether some client counts its tokens.
fn counts_tokens(spec: &Spec) -> bool {
    let cancels = spec
        .classes
        .iter()
        .filter_map(|class| class.cancel.as_ref());
    let mut after = cancels.filter_map(|cancel| cancel.after());
    after.any(|after| matches!(after, CancelAfter::Tokens(_)))
}

/// A simulated run as rows and manifest, like a measured one.
///
/// # Errors
///
/// [`SimulateError`] when it cannot be made or written.
pub(crate) fn run(
    workload: &Workload,
    server: &ServerModel,
    options: &Simulation,
) -> Result<(Run, Simulated), SimulateError> {
    let described = Described {
        model: Model {
            name: "simulated".to_owned(),
            ..Model::default()
        },
        runtime: Runtime {
            server: Some("serve-sched, in virtual time".to_owned()),
            ..server.runtime()
        },
    };
    let (hardware, command) = (Hardware::default(), CommandLine::of_this_process());
    let mut manifest =
        measure::manifest(Source::Simulated, described, hardware, workload, command)?;
    let mut writer = options.folder.as_ref().map(RunFolder::create).transpose()?;
    let (mut records, mut written) = (Vec::new(), Ok(()));
    let simulated = simulate(workload, server, options.edge, |row| {
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

/// Hands rows on as soon as they are whole, so that a long simulation takes no memory.
struct Feed<'a, F> {
    requests: &'a mut Requests,
    each_row: &'a mut F,
}

impl<'a, F: FnMut(Record)> Feed<'a, F> {
    fn new(requests: &'a mut Requests, each_row: &'a mut F) -> Self {
        Self { requests, each_row }
    }

    fn hand_on(&mut self) {
        self.requests
            .take_rows()
            .into_iter()
            .for_each(&mut *self.each_row);
    }
}

impl<F: FnMut(Record)> sim::Workload for Feed<'_, F> {
    fn next_at(&mut self) -> Option<Time> {
        self.requests.next_at()
    }

    fn next_input(&mut self) -> Option<(Time, sim::Input)> {
        let input = self.requests.next_input();
        self.hand_on();
        input
    }

    fn happened(&mut self, event: &Event) {
        self.requests.happened(event);
    }

    fn ended(&mut self, row: &Row) {
        self.requests.ended(row);
        self.hand_on();
    }
}

#[cfg(test)]
mod tests;
