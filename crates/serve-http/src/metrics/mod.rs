//! `GET /metrics`: what an operator watches and alerts on, in the text formats of Prometheus.
//!
//! Three sources, so that nothing is counted twice and no token costs a lock: the [book](tally) of the requests that
//! came over HTTP, each counted once when it arrives and once when it ends; histograms that the inference thread
//! feeds once for each step and a request's task for each request and token; and the scheduler's own figures after
//! its latest step. The two that must add up, the book and the scheduler's figures, are each read as a whole, so
//! they add up at every scrape.

mod class;
mod histogram;
mod process;
mod tally;
mod text;
mod upstream;
mod vllm;
mod written;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

use serve_core::{Class, Limits, Span};
use serve_sched::Stats;

use crate::settings::{EdgeSettings, MetricsSettings};
use histogram::Histogram;
use tally::Book;
use text::Text;

pub(crate) use class::{Answered, ClassMetrics, Finish};
pub(crate) use tally::Arrived;
pub(crate) use text::Format;
pub(crate) use upstream::{Sent, UpstreamCounts, UpstreamFigures};

/// All counts and histograms of one server.
#[derive(Debug)]
pub(crate) struct Metrics {
    settings: MetricsSettings,
    class_names: Vec<String>,
    book: Book,
    /// By class, the highest first.
    classes: Vec<Arc<ClassMetrics>>,
    connections: Arc<AtomicU64>,
    connections_dropped: AtomicU64,
    wrong_keys: AtomicU64,
    step_seconds: Histogram,
    step_sequences: Histogram,
    step_tokens: Histogram,
    release_lag_seconds: Histogram,
    retry_after_seconds: Histogram,
    /// In seconds since 1970.
    started: f64,
}

/// What only the rest of the server knows when its metrics are read.
pub(crate) struct Snapshot<'a> {
    /// What is served, if something is.
    pub(crate) served: Option<Served>,
    /// Figures of an engine behind the gate, if there is one.
    pub(crate) upstream: Option<UpstreamFigures<'a>>,
    /// The state that the server is in, of all those that it can be in.
    pub(crate) state: &'static str,
    /// The names of those.
    pub(crate) states: Vec<&'static str>,
    /// Lines of the log that were lost.
    pub(crate) log_lines_lost: u64,
}

/// What is known of a model that is served.
pub(crate) struct Served {
    pub(crate) model: String,
    pub(crate) limits: Limits,
    pub(crate) stats: Stats,
    /// How long the longest waiting request of each class has waited.
    pub(crate) oldest: Vec<(Class, Span)>,
}

impl Metrics {
    pub(crate) fn new(settings: &EdgeSettings) -> Arc<Self> {
        let class_names = settings.classes.clone();
        let exact = exact_bounds(settings);
        let classes = class_names.iter();
        let classes = classes
            .map(|_| Arc::new(ClassMetrics::new(&exact)))
            .collect();
        let started = SystemTime::now().duration_since(UNIX_EPOCH);
        Arc::new(Self {
            settings: settings.metrics.clone(),
            book: Book::new(class_names.len()),
            class_names,
            classes,
            connections: Arc::default(),
            connections_dropped: AtomicU64::default(),
            wrong_keys: AtomicU64::default(),
            step_seconds: Histogram::seconds(&exact),
            step_sequences: Histogram::counts(),
            step_tokens: Histogram::counts(),
            release_lag_seconds: Histogram::seconds(&[]),
            retry_after_seconds: Histogram::seconds(&[]),
            started: started.map_or(0.0, |since| since.as_secs_f64()),
        })
    }

    /// Counts a request for text whose head has come. It is in flight until what is returned is told how it
    /// ended, or is dropped because its client has gone.
    pub(crate) fn arrived(self: &Arc<Self>) -> Arrived {
        Arrived::new(Arc::clone(self))
    }

    /// Where the requests of a class are measured.
    pub(crate) fn of(&self, class: Class) -> Option<&Arc<ClassMetrics>> {
        self.classes.get(usize::from(class.rank()))
    }

    /// A step of `sequences` requests and `tokens` positions has run.
    pub(crate) fn stepped(&self, took: Span, sequences: u32, tokens: u32) {
        self.step_seconds.observe(took);
        self.step_sequences.observe_count(sequences.into());
        self.step_tokens.observe_count(tokens.into());
    }

    /// Everything that a request held is free, so long after it was cancelled.
    pub(crate) fn released(&self, lag: Span) {
        self.release_lag_seconds.observe(lag);
    }

    /// A connection has been opened. It is counted until what is returned is dropped.
    pub(crate) fn connected(&self) -> Connected {
        self.connections.fetch_add(1, Ordering::Relaxed);
        Connected(Arc::clone(&self.connections))
    }

    /// A connection has been closed unheard.
    pub(crate) fn connection_dropped(&self) {
        self.connections_dropped.fetch_add(1, Ordering::Relaxed);
    }

    /// A request on any path came with a key that nobody knows.
    pub(crate) fn wrong_key(&self) {
        self.wrong_keys.fetch_add(1, Ordering::Relaxed);
    }

    /// All of it as text.
    pub(crate) fn text(&self, snapshot: &Snapshot<'_>, format: Format) -> String {
        let mut text = Text::new(format);
        self.write(&mut text, snapshot);
        if self.settings.vllm_names
            && let Some(served) = &snapshot.served
        {
            vllm::write(&mut text, self, served);
        }
        text.finish()
    }

    /// The name of a class as its label.
    fn class_name(&self, rank: usize) -> &str {
        self.class_names.get(rank).map_or(UNKNOWN, String::as_str)
    }
}

/// The class of requests that ended before theirs was known.
const UNKNOWN: &str = "unknown";

/// How many kept a limit of the settings can be told exactly.
fn exact_bounds(settings: &EdgeSettings) -> Vec<Span> {
    let limits = settings.metrics.bounds.iter().copied();
    let timeouts = [settings.request_timeout, settings.queue_timeout];
    let own = limits.chain(timeouts.into_iter().flatten()).map(Span::from);
    match settings.metrics.vllm_names {
        true => own.chain(vllm::bounds()).collect(),
        false => own.collect(),
    }
}

/// A connection that is open while this is held.
#[derive(Debug)]
pub(crate) struct Connected(Arc<AtomicU64>);

impl Drop for Connected {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}
