//! The book of the requests for text: each is counted once when it has arrived and once when it has ended, under
//! its class, and the book can only be read as a whole.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use serve_core::Class;

use super::Metrics;
use crate::error::Problem;

/// How a request for text ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
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

impl End {
    pub(super) const ALL: [Self; 4] =
        [Self::Finished, Self::Refused, Self::Cancelled, Self::Failed];

    /// What a problem is to the request that ran into it.
    fn of(problem: &Problem) -> Self {
        match problem {
            Problem::Cancelled(_) | Problem::SlowReader { .. } => Self::Cancelled,
            Problem::Backend { .. } | Problem::EngineStopped | Problem::Unreachable => Self::Failed,
            _ => Self::Refused,
        }
    }

    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Finished => "finished",
            Self::Refused => "refused",
            Self::Cancelled => "cancelled",
            Self::Failed => "failed",
        }
    }
}

/// The codes with which requests for text are refused: each of them is counted from 0 on, so that a rule finds it
/// before the first has come.
pub(super) const REFUSAL_CODES: [&str; 30] = [
    "body_timeout",
    "body_too_large",
    "class_forbidden",
    "conflicting_parameters",
    "context_length_exceeded",
    "deadline_exceeded",
    "deadline_unreachable",
    "engine_refused",
    "idempotency_key_reused",
    "incomplete_body",
    "invalid_api_key",
    "invalid_header",
    "invalid_json",
    "invalid_text",
    "invalid_type",
    "invalid_value",
    "kv_capacity_exceeded",
    "missing_required_parameter",
    "model_not_found",
    "never_served",
    "not_ready",
    "overloaded",
    "rate_limit_exceeded",
    "server_rate_exceeded",
    "shutting_down",
    "tenant_limit_exceeded",
    "unknown_parameter",
    "unsupported_content_encoding",
    "unsupported_media_type",
    "unsupported_parameter",
];

/// The requests of one class: `arrived` is the sum of `ended` and `in_flight`.
#[derive(Clone, Debug, Default)]
pub(super) struct Tally {
    pub(super) arrived: u64,
    pub(super) in_flight: u64,
    /// In the order of [`End::ALL`].
    pub(super) ended: [u64; End::ALL.len()],
    pub(super) refusals: BTreeMap<&'static str, u64>,
}

impl Tally {
    /// Those that their client, their deadline or the end of the server ended.
    pub(super) fn cancelled(&self) -> u64 {
        self.ended[End::Cancelled as usize]
    }
}

/// All requests for text.
#[derive(Debug)]
pub(super) struct Book(Mutex<Page>);

/// The book at one moment.
#[derive(Clone, Debug, Default)]
pub(super) struct Page {
    /// Requests whose class is not known yet: their bodies are being read. They have not arrived.
    pub(super) reading: u64,
    /// By class, the highest first; the last are those that ended before their class was known.
    pub(super) classes: Vec<Tally>,
}

impl Book {
    /// A book of so many classes.
    pub(super) fn new(classes: usize) -> Self {
        Self(Mutex::new(Page {
            reading: 0,
            classes: vec![Tally::default(); classes + 1],
        }))
    }

    pub(super) fn read(&self) -> Page {
        self.lock().clone()
    }

    fn lock(&self) -> MutexGuard<'_, Page> {
        // Nothing here panics half-way through a change, so a poisoned book is a sound one.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Page {
    /// The tally of a class, or of requests of no known one.
    fn tally(&mut self, class: Option<Class>) -> &mut Tally {
        let last = self.classes.len() - 1;
        let rank = class.map_or(last, |class| usize::from(class.rank()).min(last));
        &mut self.classes[rank]
    }
}

/// One request for text. It is in flight while this is held, from the moment on when its class is known; dropping
/// it says that its client has gone.
#[derive(Debug)]
pub(crate) struct Arrived {
    metrics: Arc<Metrics>,
    class: Option<Class>,
    ended: bool,
}

impl Arrived {
    pub(super) fn new(metrics: Arc<Metrics>) -> Self {
        metrics.book.lock().reading += 1;
        Self {
            metrics,
            class: None,
            ended: false,
        }
    }

    /// Its class is known. The first one stays.
    pub(crate) fn classed(&mut self, class: Class) {
        if self.class.is_some() {
            return;
        }
        self.class = Some(class);
        let mut page = self.metrics.book.lock();
        page.reading -= 1;
        let tally = page.tally(self.class);
        tally.arrived += 1;
        tally.in_flight += 1;
    }

    /// Its client has been given the whole answer.
    pub(crate) fn finished(mut self) {
        self.end(End::Finished, None);
    }

    /// Its client has been told of a problem instead.
    pub(crate) fn failed(mut self, problem: &Problem) {
        let end = End::of(problem);
        let code = (end == End::Refused).then(|| problem.kind().code);
        if let Some(wait) = problem.retry_after() {
            self.metrics.retry_after_seconds.observe(wait);
        }
        self.end(end, code);
    }

    fn end(&mut self, end: End, code: Option<&'static str>) {
        if std::mem::replace(&mut self.ended, true) {
            return;
        }
        let mut page = self.metrics.book.lock();
        if self.class.is_none() {
            page.reading -= 1;
        }
        let tally = page.tally(self.class);
        match self.class {
            Some(_) => tally.in_flight -= 1,
            None => tally.arrived += 1,
        }
        tally.ended[end as usize] += 1;
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
