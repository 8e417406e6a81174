//! Our own engine as something to send a workload to, in this process and with no server in between: a
//! scheduler and any [`Backend`], on a thread of their own, under the real clock.
//!
//! It is the control of a run over HTTP, from which it differs in what a server's edge does: sockets,
//! JSON, tokenizer, keys. And it is what a simulation of the same settings predicts,
//! with real time in the place of virtual. Rows, definitions and manifest are those of any run.
//!
//! It knows no device: the caller hands in its backend.
//!
//! ```
//! use std::sync::Arc;
//!
//! use serve_bench::transport::engine::{Engine, Terms};
//! use serve_bench::experiments::measure::{RunSettings, measure_engine};
//! use serve_bench::workload::spec::Spec;
//! use serve_bench::workload::Workload;
//! use serve_core::{Backend, mock::Mock};
//! use serve_sched::{Policies, Scheduler};
//!
//! # tokio::runtime::Runtime::new()?.block_on(async {
//! let backend = Mock::default(); // or a decoder on a GPU
//! let scheduler = Scheduler::new(backend.limits(), Policies::default())?;
//! let engine = Arc::new(Engine::start(scheduler, backend, Terms::default())?);
//! let spec = Spec::parse("three", "requests = 3\n[arrivals.closed]\nclients = 2\n")?;
//! let workload = Workload::new(spec, ".".as_ref())?;
//! let (_keep, stop) = tokio::sync::watch::channel(false);
//! let measured = measure_engine(&engine, &workload, RunSettings::new(stop), |_| {}).await?;
//! assert_eq!(measured.run.records.len(), 3);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! # }).unwrap();
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod desk;
pub(crate) mod ending;
pub(crate) mod request;
mod worker;

use std::io;
use std::sync::Arc;

use serve_core::{Backend, EventKind, FinishReason, TokenId};
use serve_sched::Scheduler;
use tokio::runtime::Handle;

pub(crate) use request::CannotAsk;
pub use request::Terms;

use crate::store::manifest::{Model, Runtime, Source};
use crate::store::timeline::Sample;
use crate::transport::drive::{Attempt, AttemptError, Call, Timer, Transport};
use crate::workload::spec::Spec;
use desk::{Desk, Ticket, Turned};
use ending::{Course, Unanswered};
use request::Asker;
use worker::Worker;

/// An engine that runs. Dropping it ends its thread.
pub struct Engine {
    desk: Arc<Desk>,
    terms: Terms,
    /// Layer 1 of the manifests of its runs.
    pub model: Model,
    /// Layer 2 of the manifests of its runs: the settings, where its owner knows them.
    pub runtime: Runtime,
}

impl Engine {
    /// Starts the engine of a scheduler and the device whose limits it was made for. Must be called
    /// within a multi-threaded tokio runtime.
    ///
    /// # Errors
    ///
    /// What the operating system says when it has no thread.
    pub fn start<B: Backend + Send + 'static>(
        scheduler: Scheduler,
        backend: B,
        terms: Terms,
    ) -> io::Result<Self> {
        Self::with_timer(scheduler, backend, terms, Timer::Thread)
    }

    /// The same, with another way to wait: with [`Timer::Runtime`] the engine is a task of the runtime
    /// that it is started in, whose time tests can move.
    ///
    /// # Errors
    ///
    /// As [`start`](Self::start).
    pub(crate) fn with_timer<B: Backend + Send + 'static>(
        scheduler: Scheduler,
        backend: B,
        terms: Terms,
        timer: Timer,
    ) -> io::Result<Self> {
        let desk = Arc::new(Desk::new(scheduler));
        let worker = Worker {
            backend,
            desk: Arc::clone(&desk),
            timer,
        };
        match (timer, Handle::current()) {
            (Timer::Runtime, handle) => drop(handle.spawn(worker.run())),
            (Timer::Thread, handle) => {
                let run = move || handle.block_on(worker.run());
                std::thread::Builder::new()
                    .name("engine".to_owned())
                    .spawn(run)?;
            }
        }
        Ok(Self {
            desk,
            terms,
            model: Model {
                name: "unnamed".to_owned(),
                ..Model::default()
            },
            runtime: Runtime {
                server: Some("serve-sched, in this process".to_owned()),
                version: Some(env!("CARGO_PKG_VERSION").to_owned()),
                ..Runtime::default()
            },
        })
    }

    /// What sends a workload of this specification to it.
    ///
    /// # Errors
    ///
    /// [`CannotAsk`] names the key that only a server understands.
    pub(crate) fn client(&self, spec: &Spec) -> Result<EngineClient, CannotAsk> {
        Ok(EngineClient {
            desk: Arc::clone(&self.desk),
            asker: Arc::new(Asker::new(spec, self.terms.clone())?),
            stream: spec.request.stream,
        })
    }

    /// What it holds and what it has done; `at_ns` is when that was asked.
    pub(crate) fn sample(&self, at_ns: u64) -> Sample {
        self.desk.sample(at_ns)
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        self.desk.close();
    }
}

/// Asks an engine in this process.
#[derive(Clone)]
pub(crate) struct EngineClient {
    desk: Arc<Desk>,
    asker: Arc<Asker>,
    stream: bool,
}

impl EngineClient {
    fn submit(&self, call: &Call<'_>) -> Result<Ticket, Turned> {
        let turn = call.history.len();
        // An answer is kept as the ids of its tokens.
        let answer = |at: usize| {
            let ids = call.history[at].1.split_whitespace();
            ids.filter_map(|id| id.parse().ok().map(TokenId::new))
                .collect()
        };
        let prompt = self.asker.prompt(call.conversation, turn, answer);
        self.desk.submit(|id, at| {
            let deadline = call.time_left.map(|left| at + left.into());
            self.asker
                .request((id, at), call.conversation, turn, prompt, deadline)
        })
    }
}

impl Transport for EngineClient {
    const SOURCE: Source = Source::InProcess;

    async fn send(&self, call: &Call<'_>, attempt: &mut Attempt) -> Result<(), AttemptError> {
        let mut ticket = match self.submit(call) {
            Ok(ticket) => ticket,
            Err(Turned::Refused(refusal)) => {
                return unanswered(Unanswered::refused(&refusal), attempt, false);
            }
            Err(Turned::Invalid(error)) => {
                attempt.headers(400, None);
                return Err(AttemptError::failed("invalid_value", error.to_string()));
            }
            Err(Turned::Closed) => return Err(stopped()),
        };
        attempt.connected();
        let mut course = Course {
            arrival_ns: ticket.arrival.as_nanos(),
            ..Course::default()
        };
        let (mut tokens, mut text) = (0, String::new());
        while let Some(event) = ticket.next().await {
            let now = attempt.now();
            let begun = self.stream && tokens > 0;
            match event.kind {
                EventKind::Started => course.started_ns = Some(event.at.as_nanos()),
                EventKind::Token { token, .. } => {
                    let at = Some(event.at.as_nanos());
                    course.first_token_ns = course.first_token_ns.or(at);
                    course.last_token_ns = at;
                    tokens += 1;
                    if attempt.keeps_text() {
                        text.push_str(&format!("{} ", token.get()));
                    }
                    if self.stream {
                        if !begun {
                            attempt.headers(200, None);
                        }
                        attempt.text(now, Some(1), &text)?;
                        text.clear();
                    }
                }
                EventKind::Finished { reason, usage } => {
                    if !begun {
                        attempt.headers(200, None);
                    }
                    if !self.stream && tokens > 0 {
                        attempt.text(now, Some(tokens), &text)?;
                    }
                    attempt.said(&course.said(&usage));
                    attempt.finish_reason(finish_reason(reason).to_owned());
                    attempt.ended(now);
                    return Ok(());
                }
                EventKind::Cancelled { reason, .. } => {
                    return unanswered(Unanswered::cancelled(reason), attempt, begun);
                }
                EventKind::Failed { cause, .. } => {
                    return unanswered(Unanswered::failed(&cause), attempt, begun);
                }
                EventKind::Displaced { refusal } => {
                    return unanswered(Unanswered::refused(&refusal), attempt, begun);
                }
            }
        }
        Err(stopped())
    }
}

/// What `serve` calls it.
pub(crate) fn finish_reason(reason: FinishReason) -> &'static str {
    match reason {
        FinishReason::Stop => "stop",
        FinishReason::Length => "length",
    }
}

/// Notes why there is no whole answer. One that had begun has had its status.
fn unanswered(ending: Unanswered, attempt: &mut Attempt, begun: bool) -> Result<(), AttemptError> {
    if !begun {
        attempt.headers(ending.status, None);
    }
    Err(ending.error)
}

fn stopped() -> AttemptError {
    AttemptError::failed("engine_stopped", "the engine has stopped")
}

#[cfg(test)]
mod tests;
