//! The access log: one line for each request over HTTP, refused ones too, when all of it has ended.
//!
//! Handlers write into a request's line what they learn of it. The line is written when the last part that
//! holds it is dropped: its handler, or the answer that goes on after the handler.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use axum::extract::Request;
use axum::http::{Method, StatusCode};
use serve_core::Span;
use tracing::{Span as LogSpan, debug, info};

use crate::auth::Key;

/// A path is the client's, and can be as long as a head.
const PATH_BYTES_MAX: usize = 200;

/// The address at the other end of a connection.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Peer(pub(crate) SocketAddr);

/// The line of one request; clones are of the same line.
#[derive(Clone, Debug)]
pub(crate) struct Access(Arc<Line>);

#[derive(Debug)]
struct Line {
    /// The name in `x-request-id`.
    name: String,
    method: Method,
    path: String,
    peer: Option<SocketAddr>,
    arrived: Instant,
    /// That of the request: its last part may be dropped anywhere.
    span: LogSpan,
    known: Mutex<Known>,
}

/// What is known of a request by now.
#[derive(Debug, Default)]
struct Known {
    status: Option<u16>,
    outcome: Option<&'static str>,
    key: Option<Arc<str>>,
    tenant: Option<Arc<str>>,
    class: Option<String>,
    read: Option<Span>,
    generated: Option<Generated>,
}

/// What the engine did for a request.
#[derive(Debug)]
pub(crate) struct Generated {
    /// The answer's id, as the client sees it.
    pub(crate) id: String,
    pub(crate) outcome: &'static str,
    /// Known once somebody has counted.
    pub(crate) prompt_tokens: Option<u32>,
    pub(crate) blocks: Option<String>,
    pub(crate) output_tokens: u32,
    /// Known where the engine has told the end.
    pub(crate) cached_tokens: Option<u32>,
    pub(crate) preemptions: Option<u32>,
    /// Waiting, from the first segment to the first token, and from there to the end.
    pub(crate) parts: [Span; 3],
}

impl Access {
    /// Of a request of this `name` in `x-request-id`.
    pub(crate) fn new(request: &Request, name: &str, peer: Option<Peer>, span: LogSpan) -> Self {
        let path = request.uri().path();
        Self(Arc::new(Line {
            name: name.to_owned(),
            method: request.method().clone(),
            path: path[..path.floor_char_boundary(PATH_BYTES_MAX)].to_owned(),
            peer: peer.map(|peer| peer.0),
            arrived: Instant::now(),
            span,
            known: Mutex::default(),
        }))
    }

    /// The request's name in `x-request-id`.
    pub(crate) fn name(&self) -> &str {
        &self.0.name
    }

    /// The request's key is known.
    pub(crate) fn identified(&self, key: &Key) {
        let mut known = self.lock();
        known.key = Some(Arc::clone(&key.name));
        known.tenant = Some(Arc::clone(&key.tenant));
    }

    /// The whole of it has been read.
    pub(crate) fn read(&self) {
        self.lock().read = Some(Span::from(self.0.arrived.elapsed()));
    }

    /// It waits in this class.
    pub(crate) fn classed(&self, class: &str) {
        self.lock().class = Some(class.to_owned());
    }

    /// Its answer begins with this status; of one that failed the error's code is known.
    pub(crate) fn answered(&self, status: StatusCode, code: Option<&'static str>) {
        let mut known = self.lock();
        known.status = Some(status.as_u16());
        known.outcome = code;
    }

    /// The engine has done with it.
    pub(crate) fn generated(&self, generated: Generated) {
        self.lock().generated = Some(generated);
    }

    fn lock(&self) -> MutexGuard<'_, Known> {
        self.0.lock()
    }
}

impl Line {
    fn lock(&self) -> MutexGuard<'_, Known> {
        // Nothing here panics half-way through a change.
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Asked every few seconds by what watches the server, so its lines are for those who look for them.
    fn is_watch(&self) -> bool {
        self.path == "/metrics" || self.path.starts_with("/health")
    }
}

impl Drop for Line {
    fn drop(&mut self) {
        let total = Span::from(self.arrived.elapsed());
        let known = self.lock();
        let generated = known.generated.as_ref();
        let outcome = match (generated, known.outcome, known.status) {
            (Some(generated), _, _) => generated.outcome,
            (None, Some(code), _) => code,
            (None, None, Some(_)) => "ok",
            (None, None, None) => "cancelled",
        };
        let part = |index: usize| generated.map(|generated| rounded(generated.parts[index]));
        let _http = self.span.enter();
        macro_rules! line {
            ($level:ident) => {
                $level!(
                    method = self.method.as_str(),
                    path = &*self.path,
                    status = known.status,
                    outcome,
                    id = generated
                        .map(|generated| &*generated.id)
                        .filter(|id| !id.is_empty()),
                    key = known.key.as_deref(),
                    tenant = known.tenant.as_deref(),
                    class = known.class.as_deref(),
                    peer = self.peer.map(tracing::field::display),
                    prompt_tokens = generated.and_then(|generated| generated.prompt_tokens),
                    output_tokens = generated.map(|generated| generated.output_tokens),
                    cached_tokens = generated.and_then(|generated| generated.cached_tokens),
                    preemptions = generated.and_then(|generated| generated.preemptions),
                    read_ms = known.read.map(rounded),
                    queue_ms = part(0),
                    prefill_ms = part(1),
                    decode_ms = part(2),
                    total_ms = rounded(total),
                    blocks = generated.and_then(|generated| generated.blocks.as_deref()),
                    "request"
                )
            };
        }
        if self.is_watch() {
            line!(debug);
        } else {
            line!(info);
        }
    }
}

/// Milliseconds with one decimal: enough for a log line.
fn rounded(span: Span) -> f64 {
    (span.as_millis_f64() * 10.0).round() / 10.0
}
