//! An answer as server-sent events, and as one body.
//!
//! The first chunk of a chat carries the role and the first text together, so that the first byte
//! of an answer already holds its first token. Then text, then one chunk that says why the answer
//! ended, then the usage if it was asked for, then `data: [DONE]`. The last chunk has the timings. A problem in mid-stream is an
//! event with an error object, and nothing follows it.

use axum::body::{Body as HttpBody, Bytes};
use axum::http::{HeaderName, HeaderValue, header};
use axum::response::{IntoResponse, Response};
use futures::stream;
use serde::Serialize;
use serve_core::FinishReason;

use crate::api::{Counted, Endpoint, Header, Part, Timings};
use crate::error::Problem;
use crate::generate::{Generation, Piece};

const DONE: &[u8] = b"data: [DONE]\n\n";

/// The answer in one body, when it is complete.
///
/// # Errors
///
/// The [`Problem`] that ended it early.
pub async fn whole(header: &Header, generation: Generation) -> Result<Response, Problem> {
    let bytes = whole_json(header, generation).await?;
    Ok(json(bytes))
}

/// The answer's JSON, when it is complete.
///
/// # Errors
///
/// The [`Problem`] that ended it early.
pub(crate) async fn whole_json(
    header: &Header,
    mut generation: Generation,
) -> Result<Bytes, Problem> {
    let mut answer = String::new();
    while let Some(piece) = generation.next().await {
        match piece? {
            Piece::Text(text) => answer.push_str(&text),
            Piece::End {
                finish,
                usage,
                timings,
            } => {
                let body = header.whole(&answer, finish, &usage).timed(timings);
                let body = serde_json::to_vec(&body);
                // Strings and numbers always serialise; see `event`.
                let body = body.map_err(|error| Problem::Backend {
                    cause: format!("its answer could not be written: {error}"),
                })?;
                // Without what the vector has allocated beyond its end, as this may be kept.
                return Ok(Bytes::from(body.into_boxed_slice()));
            }
        }
    }
    Err(Problem::EngineStopped)
}

/// A response with a body of JSON.
pub(crate) fn json(bytes: Bytes) -> Response {
    let content_type = HeaderValue::from_static("application/json");
    ([(header::CONTENT_TYPE, content_type)], bytes).into_response()
}

/// The answer in events, as it is made. The response owns the generation: when the client goes
/// away and the response is dropped, the request is called off.
pub fn events(header: Header, generation: Generation, include_usage: bool) -> Response {
    let writer = Writer {
        header,
        generation,
        include_usage,
        first: true,
    };
    let frames = stream::unfold(writer, |mut writer| async {
        let frame = writer.next().await?;
        Some((Ok::<_, std::convert::Infallible>(frame), writer))
    });
    let mut response = HttpBody::from_stream(frames).into_response();
    let headers = response.headers_mut();
    let event_stream = HeaderValue::from_static("text/event-stream; charset=utf-8");
    headers.insert(header::CONTENT_TYPE, event_stream);
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-cache"));
    // Proxies of the nginx kind collect a body before they pass it on unless they are told.
    let unbuffered = HeaderName::from_static("x-accel-buffering");
    headers.insert(unbuffered, HeaderValue::from_static("no"));
    response
}

struct Writer {
    header: Header,
    generation: Generation,
    include_usage: bool,
    /// Whether the next chunk is the first one.
    first: bool,
}

impl Writer {
    async fn next(&mut self) -> Option<Bytes> {
        let mut frame = Vec::with_capacity(256);
        match self.generation.next().await? {
            Ok(Piece::Text(text)) => self.text(&text, &mut frame),
            Ok(Piece::End {
                finish,
                usage,
                timings,
            }) => self.end(finish, &usage, timings, &mut frame),
            Err(problem) => event(&problem.body(), &mut frame),
        }
        Some(Bytes::from(frame))
    }

    fn text(&mut self, text: &str, frame: &mut Vec<u8>) {
        let part = Part {
            text: Some(text),
            first: std::mem::take(&mut self.first),
            finish: None,
        };
        event(&self.header.chunk(part, self.include_usage), frame);
    }

    fn end(
        &mut self,
        finish: FinishReason,
        usage: &Counted,
        timings: Timings,
        frame: &mut Vec<u8>,
    ) {
        if self.first && self.header.endpoint == Endpoint::Chat {
            self.text("", frame);
        }
        let part = Part {
            finish: Some(finish),
            ..Part::default()
        };
        let end = self.header.chunk(part, self.include_usage);
        if self.include_usage {
            event(&end, frame);
            event(&self.header.usage_chunk(usage).timed(timings), frame);
        } else {
            event(&end.timed(timings), frame);
        }
        frame.extend_from_slice(DONE);
    }
}

/// Appends one event. JSON has no raw line breaks, so its text is one `data` line.
fn event(body: &impl Serialize, frame: &mut Vec<u8>) {
    let start = frame.len();
    frame.extend_from_slice(b"data: ");
    match serde_json::to_writer(&mut *frame, body) {
        Ok(()) => frame.extend_from_slice(b"\n\n"),
        // Strings and numbers always serialise; if that ever changes, a client is better off with
        // a missing event than with half of one.
        Err(error) => {
            tracing::error!(%error, "an event could not be written");
            frame.truncate(start);
        }
    }
}
