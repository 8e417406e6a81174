//! `GET /metrics`: what an operator watches and alerts on, in the text format of Prometheus.
//!
//! Three sources, so that nothing is counted twice and no token costs a lock: the tally of the
//! requests that came over HTTP, each counted once when it arrives and once when it ends; histograms
//! that the inference thread feeds once for each step and a request's task once for each request;
//! and the scheduler's own figures after its latest step. The two that must add up, the tally and
//! the scheduler's figures, are each read as a whole, so they add up at every scrape.

mod histogram;
mod text;

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use serve_core::Span;
use serve_sched::Stats;

use crate::error::Problem;
use histogram::Histogram;
use text::Text;

pub(crate) use text::CONTENT_TYPE;

/// How a request for text ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum End {
    /// Its client was given the whole answer.
    Finished,
    /// It was not taken in.
    Refused,
    /// It was cancelled: by its client, its deadline or the end of the server.
    Cancelled,
    /// The engine failed under it.
    Failed,
}

/// All counts and histograms of one server.
#[derive(Debug)]
pub(crate) struct Metrics {
    tally: Mutex<Tally>,
    connections: Arc<AtomicU64>,
    connections_dropped: AtomicU64,
    wrong_keys: AtomicU64,
    ttft_seconds: Histogram,
    queue_seconds: Histogram,
    step_seconds: Histogram,
    step_sequences: Histogram,
    release_lag_seconds: Histogram,
}

/// Requests for text: `arrived` is the sum of `ended` and `in_flight` whenever the lock is free.
#[derive(Clone, Debug, Default)]
struct Tally {
    arrived: u64,
    in_flight: u64,
    ended: BTreeMap<End, u64>,
    refusals: BTreeMap<&'static str, u64>,
}

/// What only the rest of the server knows when its metrics are read.
pub(crate) struct Snapshot {
    /// The scheduler's figures, if there is a scheduler.
    pub(crate) stats: Option<Stats>,
    /// The state that the server is in, of all those that it can be in.
    pub(crate) state: &'static str,
    /// Lines of the log that were lost.
    pub(crate) log_lines_lost: u64,
    /// The names of those.
    pub(crate) states: Vec<&'static str>,
}

impl Metrics {
    pub(crate) fn new() -> Arc<Self> {
        // 10 us to 84 s, each bound twice the one before.
        let seconds = || Histogram::doubling(1e-5, 24);
        Arc::new(Self {
            tally: Mutex::default(),
            connections: Arc::default(),
            connections_dropped: AtomicU64::default(),
            wrong_keys: AtomicU64::default(),
            ttft_seconds: seconds(),
            queue_seconds: seconds(),
            step_seconds: seconds(),
            step_sequences: Histogram::doubling(1.0, 12),
            release_lag_seconds: seconds(),
        })
    }

    /// Counts a request for text that has come. It is in flight until what is returned is told how
    /// it ended, or is dropped because its client has gone.
    pub(crate) fn arrived(self: &Arc<Self>) -> Arrived {
        let mut tally = self.lock();
        tally.arrived += 1;
        tally.in_flight += 1;
        Arrived {
            metrics: Arc::clone(self),
            ended: false,
        }
    }

    /// A request has left the queue for the first time.
    pub(crate) fn queued(&self, wait: Span) {
        self.queue_seconds.observe(wait.as_secs_f64());
    }

    /// A request has its first token.
    pub(crate) fn first_token(&self, ttft: Span) {
        self.ttft_seconds.observe(ttft.as_secs_f64());
    }

    /// A step of `sequences` requests has run.
    pub(crate) fn stepped(&self, took: Span, sequences: u32) {
        self.step_seconds.observe(took.as_secs_f64());
        self.step_sequences.observe(f64::from(sequences));
    }

    /// Everything that a request held is free, so long after it was cancelled.
    pub(crate) fn released(&self, lag: Span) {
        self.release_lag_seconds.observe(lag.as_secs_f64());
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
    pub(crate) fn text(&self, snapshot: &Snapshot) -> String {
        let mut text = Text::default();
        self.write_tally(&mut text);
        if let Some(stats) = &snapshot.stats {
            write_stats(&mut text, stats);
        }
        text.histogram(
            "serve_queue_seconds",
            "Time from a request's arrival to its first step",
            &self.queue_seconds,
        );
        text.histogram(
            "serve_ttft_seconds",
            "Time from a request's arrival to its first token",
            &self.ttft_seconds,
        );
        text.histogram(
            "serve_step_seconds",
            "Time that a step took, planning and booking included",
            &self.step_seconds,
        );
        text.histogram(
            "serve_step_sequences",
            "Requests in a step",
            &self.step_sequences,
        );
        text.histogram(
            "serve_release_lag_seconds",
            "Time from a disconnect, an abort or a deadline until all that the request held was free",
            &self.release_lag_seconds,
        );
        text.gauge(
            "serve_connections",
            "Connections that are open",
            self.connections.load(Ordering::Relaxed),
        );
        text.counter(
            "serve_connections_dropped_total",
            "Connections that were closed unheard because there were too many",
            self.connections_dropped.load(Ordering::Relaxed),
        );
        text.counter(
            "serve_wrong_keys_total",
            "Requests on any path with an API key that is not known",
            self.wrong_keys.load(Ordering::Relaxed),
        );
        text.counter(
            "serve_log_lines_lost_total",
            "Lines of the log that could not be written, or not fast enough",
            snapshot.log_lines_lost,
        );
        let states = snapshot.states.iter();
        text.gauges(
            ("serve_state", "state"),
            "1 for the state that the server is in",
            states.map(|&state| (state, u64::from(state == snapshot.state))),
        );
        text.finish()
    }

    fn write_tally(&self, text: &mut Text) {
        let tally = self.lock().clone();
        text.counter(
            "serve_requests_arrived_total",
            "Requests for text that have come",
            tally.arrived,
        );
        let ends = [End::Finished, End::Refused, End::Cancelled, End::Failed];
        let ended = |end: End| {
            let ended = tally.ended.get(&end).copied();
            (end.name(), ended.unwrap_or_default())
        };
        text.counters(
            ("serve_requests_ended_total", "end"),
            "Requests for text that have ended, by how",
            ends.map(ended),
        );
        text.gauge(
            "serve_requests_in_flight",
            "Requests for text that have come and not ended",
            tally.in_flight,
        );
        text.counters(
            ("serve_refusals_total", "code"),
            "Requests for text that were refused, by the code in the answer",
            tally.refusals,
        );
    }

    fn lock(&self) -> MutexGuard<'_, Tally> {
        // Nothing here panics half-way through a change, so a poisoned tally is a sound one.
        self.tally.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn write_stats(text: &mut Text, stats: &Stats) {
    text.gauge(
        "serve_requests_waiting",
        "Requests in the queue",
        stats.waiting.into(),
    );
    text.gauge(
        "serve_requests_running",
        "Requests in the batch",
        stats.running.into(),
    );
    let (counters, blocks) = (&stats.counters, stats.blocks);
    text.counter(
        "serve_preemptions_total",
        "Times that a running request had to wait again",
        counters.preempted,
    );
    text.counter(
        "serve_steps_total",
        "Steps that ran something",
        counters.steps,
    );
    text.counter(
        "serve_steps_failed_total",
        "Steps that the backend failed",
        counters.steps_failed,
    );
    text.counters(
        ("serve_tokens_total", "kind"),
        "Positions of prompts that were run, tokens sampled, positions found in the prefix cache",
        [
            ("prompt", counters.prefill_tokens),
            ("output", counters.output_tokens),
            ("cached", counters.cached_tokens),
        ],
    );
    text.gauges(
        ("serve_kv_blocks", "state"),
        "KV blocks: free, held by a request, or kept for prompts that begin alike",
        [
            ("free", blocks.free.into()),
            ("held", blocks.held.into()),
            ("cached", blocks.cached.into()),
        ],
    );
}

/// One request for text, in flight while this is held.
#[derive(Debug)]
pub(crate) struct Arrived {
    metrics: Arc<Metrics>,
    ended: bool,
}

impl Arrived {
    /// Its client has been given the whole answer.
    pub(crate) fn finished(mut self) {
        self.end(End::Finished, None);
    }

    /// Its client has been told of a problem instead.
    pub(crate) fn failed(mut self, problem: &Problem) {
        let end = End::of(problem);
        let code = (end == End::Refused).then(|| problem.kind().code);
        self.end(end, code);
    }

    fn end(&mut self, end: End, code: Option<&'static str>) {
        if std::mem::replace(&mut self.ended, true) {
            return;
        }
        let mut tally = self.metrics.lock();
        tally.in_flight -= 1;
        *tally.ended.entry(end).or_default() += 1;
        if let Some(code) = code {
            *tally.refusals.entry(code).or_default() += 1;
        }
    }
}

impl Drop for Arrived {
    fn drop(&mut self) {
        self.end(End::Cancelled, None);
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

impl End {
    /// What a problem is to the request that ran into it.
    fn of(problem: &Problem) -> Self {
        match problem {
            Problem::Cancelled(_) | Problem::SlowReader { .. } => Self::Cancelled,
            Problem::Backend { .. } | Problem::EngineStopped => Self::Failed,
            _ => Self::Refused,
        }
    }

    fn name(self) -> &'static str {
        match self {
            Self::Finished => "finished",
            Self::Refused => "refused",
            Self::Cancelled => "cancelled",
            Self::Failed => "failed",
        }
    }
}
