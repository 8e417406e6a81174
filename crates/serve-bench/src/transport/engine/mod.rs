//! Our own engine as something to send a workload to, in this process and with no server in between: a
//! scheduler and any [`Backend`], on a thread of their own, under the real clock.
//!
//! It is the control of a run over HTTP, from which it differs in what a server's edge does: sockets,
//! JSON, tokenizer, keys. And it is what a simulation of the same settings predicts,
//! with real time in the place of virtual. Rows, definitions and manifest are those of any run.
//!
//! It knows no device: the caller hands in its backend. The loop is [`serve_sched::driver`]'s.
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

pub(crate) mod ending;
mod figures;
pub(crate) mod request;

use std::io;
use std::sync::Arc;

use serve_core::{Backend, EventKind, FinishReason, InvalidRequest, Request, TokenId};
use serve_sched::Scheduler;
use serve_sched::driver::{EngineThread, Guard, NotTaken, RealClock, Word};
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};

pub(crate) use request::CannotAsk;
pub use request::Terms;

use crate::store::manifest::{Model, Runtime, Source};
use crate::store::timeline::Sample;
use crate::transport::drive::{Attempt, AttemptError, Call, Transport};
use crate::workload::spec::Spec;
use ending::{Course, Unanswered};
use figures::Stepped;
use request::Asker;

/// An engine that runs. Dropping it ends its thread.
pub struct Engine {
    thread: Arc<EngineThread>,
    stepped: Stepped,
    terms: Terms,
    /// Layer 1 of the manifests of its runs.
    pub model: Model,
    /// Layer 2 of the manifests of its runs: the settings, where its owner knows them.
    pub runtime: Runtime,
}

impl Engine {
    /// Starts the engine of a scheduler and the device whose limits it was made for.
    ///
    /// # Errors
    ///
    /// What the operating system says when it has no thread.
    pub fn start<B: Backend + Send + 'static>(
        scheduler: Scheduler,
        backend: B,
        terms: Terms,
    ) -> io::Result<Self> {
        let stepped = Stepped::default();
        let clock = Arc::new(RealClock::start());
        let thread = EngineThread::start_with(scheduler, backend, clock, stepped.clone())?;
        Ok(Self::over(thread, stepped, terms))
    }

    fn over(thread: EngineThread, stepped: Stepped, terms: Terms) -> Self {
        Self {
            thread: Arc::new(thread),
            stepped,
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
        }
    }

    /// What sends a workload of this specification to it.
    ///
    /// # Errors
    ///
    /// [`CannotAsk`] names the key that only a server understands.
    pub(crate) fn client(&self, spec: &Spec) -> Result<EngineClient, CannotAsk> {
        Ok(EngineClient {
            thread: Arc::clone(&self.thread),
            asker: Arc::new(Asker::new(spec, self.terms.clone())?),
            stream: spec.request.stream,
        })
    }

    /// What it holds and what it has done; `at_ns` is when that was asked.
    pub(crate) fn sample(&self, at_ns: u64) -> Sample {
        self.stepped.sample(&self.thread.scheduler().stats(), at_ns)
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        // Those that still ask are told.
        self.thread.scheduler().close();
    }
}

/// Asks an engine in this process.
#[derive(Clone)]
pub(crate) struct EngineClient {
    thread: Arc<EngineThread>,
    asker: Arc<Asker>,
    stream: bool,
}

impl EngineClient {
    /// The request of a call.
    fn request(&self, call: &Call<'_>) -> Result<Request, InvalidRequest> {
        let turn = call.history.len();
        // An answer is kept as the ids of its tokens.
        let answer = |at: usize| {
            let ids = call.history[at].1.split_whitespace();
            ids.filter_map(|id| id.parse().ok().map(TokenId::new))
                .collect()
        };
        let prompt = self.asker.prompt(call.conversation, turn, answer);
        let (id, at) = (self.thread.next_id(), self.thread.now());
        let deadline = call.time_left.map(|left| at + left.into());
        self.asker
            .request((id, at), call.conversation, turn, prompt, deadline)
    }

    fn submit(&self, request: Request) -> Result<(UnboundedReceiver<Word>, Guard), NotTaken> {
        let (sender, words) = unbounded_channel();
        // One that is being cancelled listens no more.
        let sink = move |word| drop(sender.send(word));
        Ok((words, self.thread.submit_to(request, sink)?))
    }
}

impl Transport for EngineClient {
    const SOURCE: Source = Source::InProcess;

    async fn send(&self, call: &Call<'_>, attempt: &mut Attempt) -> Result<(), AttemptError> {
        let request = match self.request(call) {
            Ok(request) => request,
            Err(error) => {
                attempt.headers(400, None);
                return Err(AttemptError::failed("invalid_value", error.to_string()));
            }
        };
        let arrival_ns = request.arrival().as_nanos();
        let (mut words, _guard) = match self.submit(request) {
            Ok(words) => words,
            Err(NotTaken::Refused(refusal)) => {
                return unanswered(Unanswered::refused(&refusal), attempt, false);
            }
            Err(NotTaken::Rebuilding | NotTaken::Stopped) => return Err(stopped()),
        };
        attempt.connected();
        let mut course = Course {
            arrival_ns,
            ..Course::default()
        };
        let (mut tokens, mut text) = (0, String::new());
        while let Some(Ok(event)) = words.recv().await {
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
