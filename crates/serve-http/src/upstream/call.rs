//! One request at the engine: sent when it has its permit, its answer handed on as it comes, its permit ended with
//! what the answer says of the load.
//!
//! It is a task of its own. A client that leaves, a deadline, a cancellation and a drain end it the same way: the
//! connection is closed, which is how the engine learns of it, and then the slot is free. Of an engine that does not
//! survive that, the answer is read to its end instead, with the slot taken until then.

use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use axum::body::Bytes;
use axum::http::{HeaderMap, Response, StatusCode, header};
use bytes::BytesMut;
use http_body_util::BodyExt;
use hyper::body::{Body, Incoming};
use serve_core::{TenantId, Usage};
use serve_sched::adapter::{Permit, Rejection, Verdict};
use tokio::sync::mpsc;
use tokio::time::timeout;
use tracing::warn;

use super::answer::Rewriter;
use super::client::{SendError, causes, whole};
use super::engine::Engine;
use super::events::Events;
use crate::error::Problem;
use crate::metrics::{Finish, Sent};
use crate::names::{Name, Named, Names};
use crate::telemetry::RequestLog;

/// Bytes of a whole answer at most.
const ANSWER_BYTES_MAX: usize = 256 << 20;

/// Bytes of an error's body at most.
const ERROR_BYTES_MAX: usize = 1 << 20;

/// How long an engine may take to end its body after `[DONE]`, before its connection is closed.
const EPILOGUE: Duration = Duration::from_secs(1);

/// How long the answer to a cancelled request is read where that is asked for.
const REST_MAX: Duration = Duration::from_secs(600);

/// A part of an answer on its way to the client.
#[derive(Debug)]
pub(super) enum Part {
    /// It is a stream of events.
    Begins,
    Data(Bytes),
    /// It is complete.
    End,
    /// It has ended early.
    Failed(Problem),
    /// It has ended early, and its client has been told in the engine's own words.
    Told(Problem),
}

/// One request at the engine.
pub(super) struct Call {
    pub(super) engine: Engine,
    pub(super) permit: Permit,
    pub(super) log: RequestLog,
    pub(super) rewriter: Rewriter,
    pub(super) is_stream: bool,
    /// Where the request is known by the id of its answer, once that is known.
    pub(super) names: Arc<Names>,
    pub(super) known_as: Option<Named>,
    pub(super) tenant: TenantId,
    pub(super) parts: mpsc::Sender<Part>,
}

type Sending = Pin<Box<dyn Future<Output = Result<Response<Incoming>, SendError>> + Send>>;

/// What goes on at the engine. Dropped, it is over there too.
pub(super) enum Exchange {
    Sending(Sending),
    Answering(Incoming),
}

/// Why a call ends before its answer does.
enum Stop {
    /// The client has left.
    Left,
    /// The dispatcher has ended it.
    Ended(Rejection),
    /// The engine did not do it.
    Failed(Problem, Verdict),
    /// The engine has told its client that it failed.
    Told(Problem),
}

impl From<Problem> for Stop {
    /// For reasons that say nothing of the load.
    fn from(problem: Problem) -> Self {
        Self::Failed(problem, Verdict::Ignored)
    }
}

impl Call {
    /// Sends the request and sees its answer to its end.
    pub(super) async fn run(mut self, sending: Sending) {
        let mut exchange = Exchange::Sending(sending);
        let result = self.relay(&mut exchange).await;
        let now = self.engine.now();
        let seen = &mut self.rewriter.seen;
        let usage = seen.usage;
        self.log.ended(now, usage);
        if let Some(id) = &seen.id {
            self.log.id.clone_from(id);
        }
        if let Some(usage) = &usage {
            self.engine.counts().used(usage);
        }
        let stop = match result {
            Ok(()) => return self.finished(usage).await,
            Err(stop) => stop,
        };
        self.engine.counts().ended(stop.sent());
        let part = stop.part();
        self.log.outcome = match &part {
            Some(Part::Failed(problem) | Part::Told(problem)) => problem.kind().code,
            _ => "cancelled",
        };
        let Self {
            engine,
            permit,
            parts,
            log,
            known_as,
            ..
        } = self;
        drop((log, known_as));
        // A client may read slowly, and neither the engine nor the slot waits for it.
        let telling = async move {
            if let Some(part) = part {
                let _ = parts.send(part).await;
            }
        };
        match stop {
            Stop::Failed(problem, verdict) => {
                drop(exchange);
                let cause = problem.to_string();
                match verdict {
                    Verdict::Overloaded(retry_after) => permit.overloaded(cause, retry_after),
                    _ => permit.ignore(cause),
                }
                telling.await;
            }
            Stop::Told(problem) => {
                drop(exchange);
                permit.ignore(problem.to_string());
                telling.await;
            }
            // The slot is taken as long as the engine works.
            Stop::Left | Stop::Ended(_) if engine.finishes_cancelled() => {
                let (_, ()) = tokio::join!(timeout(REST_MAX, exchange.rest(&engine)), telling);
                drop(exchange);
                drop(permit);
            }
            Stop::Left | Stop::Ended(_) => {
                drop(exchange);
                drop(permit);
                telling.await;
            }
        }
    }

    async fn finished(self, usage: Option<Usage>) {
        let Self {
            engine,
            permit,
            parts,
            mut log,
            rewriter,
            ..
        } = self;
        engine.counts().ended(Sent::Answered);
        let finish = rewriter.seen.finish.unwrap_or("stop");
        log.finished(match finish {
            "length" => Finish::Length,
            _ => Finish::Stop,
        });
        log.outcome = finish;
        drop(log);
        match usage {
            Some(usage) => permit.finish_with(usage),
            None => permit.finish(),
        }
        // Its client may read slowly.
        let _ = parts.send(Part::End).await;
    }

    async fn relay(&mut self, exchange: &mut Exchange) -> Result<(), Stop> {
        let Exchange::Sending(sending) = exchange else {
            return Err(Problem::EngineStopped.into());
        };
        let sent = unless_over(&mut self.permit, &self.parts, sending).await?;
        self.engine.made_progress();
        let response = sent.map_err(|error| self.unanswered(&error))?;
        let (head, body) = response.into_parts();
        *exchange = Exchange::Answering(body);
        let Exchange::Answering(body) = exchange else {
            return Err(Problem::EngineStopped.into());
        };
        let verdict = Verdict::of(head.status, &head.headers);
        if verdict != Verdict::Answered || !head.status.is_success() {
            let bytes = self.read(body, ERROR_BYTES_MAX).await?;
            return Err(self.refused(head.status, &head.headers, bytes, verdict));
        }
        match self.is_stream && is_event_stream(&head.headers) {
            true => self.stream(body).await,
            false => self.whole(body).await,
        }
    }

    /// Hands events on, each as soon as it is here.
    async fn stream(&mut self, body: &mut Incoming) -> Result<(), Stop> {
        self.send(Part::Begins).await?;
        let engine = self.engine.clone();
        let mut body = engine.heard(body);
        let mut events = Events::default();
        loop {
            let frame = unless_over(&mut self.permit, &self.parts, body.frame()).await?;
            let frame = match frame {
                Some(Ok(frame)) => frame,
                Some(Err(error)) => return Err(self.broke(&causes(&error))),
                None => return self.stream_ended(&events),
            };
            let Some(data) = frame.data_ref() else {
                continue;
            };
            events.push(data);
            let chunk = self.taken_in(&mut events)?;
            if !chunk.is_empty() {
                self.send(Part::Data(chunk)).await?;
            }
            if self.rewriter.seen.done {
                // So that the engine ends its answer in order.
                let _ = timeout(EPILOGUE, rest(&mut body)).await;
                return self.stream_ended(&events);
            }
        }
    }

    /// What the client gets of the events that are whole.
    fn taken_in(&mut self, events: &mut Events) -> Result<Bytes, Stop> {
        let mut chunk = BytesMut::new();
        let before = self.rewriter.seen.tokens;
        loop {
            match events.next() {
                Ok(Some(event)) => {
                    if let Some(event) = self.rewriter.event(event) {
                        chunk.extend_from_slice(&event);
                    }
                }
                Ok(None) => break,
                Err(_) => return Err(self.broke("an event has no end")),
            }
        }
        let tokens = self.rewriter.seen.tokens - before;
        if tokens > 0 {
            self.log.tokens(self.engine.now(), tokens);
            self.permit.served(tokens);
        }
        if let (None, Some(id)) = (&self.known_as, &self.rewriter.seen.id) {
            let (tenant, name) = (self.tenant, id.clone());
            let name = vec![Name { tenant, name }];
            self.known_as = Some(Names::enter(&self.names, name, self.permit.id()));
        }
        Ok(chunk.freeze())
    }

    /// Whether what has come is an answer.
    fn stream_ended(&mut self, events: &Events) -> Result<(), Stop> {
        let seen = &self.rewriter.seen;
        let is_whole = seen.done || seen.finish.is_some();
        match &seen.error {
            Some(error) => Err(Stop::Told(Problem::Backend {
                cause: error.clone(),
            })),
            None if is_whole && !events.is_amid() => Ok(()),
            None => Err(self.broke("its stream ended before the answer did")),
        }
    }

    async fn whole(&mut self, body: &mut Incoming) -> Result<(), Stop> {
        let bytes = self.read(body, ANSWER_BYTES_MAX).await?;
        let answer = self.rewriter.whole(&bytes);
        let answer = answer.map_err(|cause| self.broke(cause))?;
        self.send(Part::Data(answer)).await
    }

    async fn read(&mut self, body: &mut Incoming, bytes_max: usize) -> Result<Bytes, Stop> {
        let work = whole(self.engine.heard(body), bytes_max);
        let read = unless_over(&mut self.permit, &self.parts, work).await?;
        read.map_err(|cause| self.broke(&cause))
    }

    async fn send(&mut self, part: Part) -> Result<(), Stop> {
        let sent = self.engine.unread(self.parts.send(part));
        let sent = unless_ended(&mut self.permit, sent).await?;
        sent.map_err(|_| Stop::Left)
    }

    fn unanswered(&self, error: &SendError) -> Stop {
        warn!(%error, "the engine did not answer");
        self.engine.suspect();
        match error {
            SendError::Unsent(_) => Problem::Unreachable.into(),
            SendError::Broken(_) => Problem::Backend {
                cause: error.to_string(),
            }
            .into(),
        }
    }

    /// The engine has failed under the request.
    fn broke(&self, cause: &str) -> Stop {
        warn!(cause, "the engine failed");
        self.engine.suspect();
        Problem::Backend {
            cause: cause.to_owned(),
        }
        .into()
    }

    /// What an answer that is none means for the client.
    fn refused(
        &self,
        status: StatusCode,
        headers: &HeaderMap,
        body: Bytes,
        verdict: Verdict,
    ) -> Stop {
        let text = |name| Some(headers.get(name)?.to_str().ok()?.to_owned());
        let said = said(status, &body);
        if let Verdict::Overloaded(_) = verdict {
            let retry_after = text(header::RETRY_AFTER);
            return Stop::Failed(Problem::UpstreamBusy { said, retry_after }, verdict);
        }
        let is_ours = matches!(status.as_u16(), 401 | 403 | 404 | 405 | 407);
        if status.is_client_error() && !is_ours {
            let content_type = text(header::CONTENT_TYPE);
            let problem = Problem::UpstreamRefused {
                status,
                content_type,
                body,
            };
            return Stop::Failed(problem, verdict);
        }
        // A key, a path, a model's name that the engine does not know is the operator's affair.
        warn!(status = status.as_u16(), said, "the engine did not do it");
        Problem::Backend { cause: said }.into()
    }
}

impl Exchange {
    /// Has the engine work to the end of the request, for nobody.
    async fn rest(&mut self, engine: &Engine) {
        if let Self::Sending(sending) = self {
            match sending.await {
                Ok(response) => *self = Self::Answering(response.into_body()),
                Err(_) => return,
            }
        }
        if let Self::Answering(body) = self {
            rest(&mut engine.heard(body)).await;
        }
    }
}

impl Stop {
    /// What the client is told; nothing if it has left.
    fn part(&self) -> Option<Part> {
        match self {
            Self::Left => None,
            Self::Ended(rejection) => Some(Part::Failed(problem_of(*rejection))),
            Self::Failed(problem, _) => Some(Part::Failed(problem.clone())),
            Self::Told(problem) => Some(Part::Told(problem.clone())),
        }
    }

    fn sent(&self) -> Sent {
        match self {
            Self::Left | Self::Ended(_) => Sent::Cancelled,
            Self::Failed(_, Verdict::Overloaded(_)) => Sent::Overloaded,
            Self::Failed(Problem::UpstreamRefused { .. }, _) => Sent::Refused,
            Self::Failed(Problem::Unreachable, _) => Sent::Unreachable,
            Self::Failed(..) | Self::Told(_) => Sent::Broken,
        }
    }
}

/// What a client is told of a request that got no permit, or lost it.
pub(super) fn problem_of(rejection: Rejection) -> Problem {
    match rejection {
        Rejection::Refused(refusal) => Problem::Refused(refusal),
        Rejection::Cancelled(reason) => Problem::Cancelled(reason),
        Rejection::Invalid(invalid) => Problem::Request(invalid),
    }
}

/// Does `work`, unless nobody waits for its result any more.
async fn unless_over<T>(
    permit: &mut Permit,
    parts: &mpsc::Sender<Part>,
    work: impl Future<Output = T>,
) -> Result<T, Stop> {
    let left = async {
        parts.closed().await;
        Stop::Left
    };
    tokio::select! {
        biased;
        done = unless_ended(permit, work) => done,
        stop = left => Err(stop),
    }
}

async fn unless_ended<T>(permit: &mut Permit, work: impl Future<Output = T>) -> Result<T, Stop> {
    tokio::select! {
        biased;
        rejection = permit.ended() => Err(Stop::Ended(rejection)),
        done = work => Ok(done),
    }
}

/// Reads a body to its end.
async fn rest(body: &mut (impl Body + Unpin)) {
    while let Some(Ok(_)) = body.frame().await {}
}

fn is_event_stream(headers: &HeaderMap) -> bool {
    let content_type = headers.get(header::CONTENT_TYPE);
    let content_type = content_type.and_then(|value| value.to_str().ok());
    content_type.is_some_and(|text| text.trim_start().starts_with("text/event-stream"))
}

/// The engine's own words, as far as they are worth telling.
fn said(status: StatusCode, body: &Bytes) -> String {
    const CHARS_MAX: usize = 300;

    let told: Option<serde_json::Value> = serde_json::from_slice(body).ok();
    let message = told.as_ref().and_then(|told| {
        let error = told.get("error").unwrap_or(told);
        error.get("message").or(Some(error))?.as_str()
    });
    let text = String::from_utf8_lossy(body);
    let message = message.unwrap_or_else(|| text.trim());
    let message: String = message.chars().take(CHARS_MAX).collect();
    match message.is_empty() {
        true => format!("status {}", status.as_u16()),
        false => format!("status {}: {message}", status.as_u16()),
    }
}
