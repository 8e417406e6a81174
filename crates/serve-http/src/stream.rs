//! An answer as server-sent events, and as one body.
//!
//! The first chunk of a chat carries the role and the first text together, so that the first byte
//! of an answer already holds its first token. Then text, then one chunk that says why the answer
//! ended, then the usage if it was asked for, then `data: [DONE]`. The last chunk has the timings. A
//! problem in mid-stream is an event with an error object, and nothing follows it.

use axum::body::{Body as HttpBody, Bytes};
use axum::http::{HeaderName, HeaderValue, header};
use axum::response::{IntoResponse, Response};
use bytes::{BufMut, BytesMut};
use futures::{FutureExt, stream};
use serde::Serialize;
use serve_core::FinishReason;

use crate::api::{Counted, Endpoint, Header, Part, ScoredToken, StreamUsage, Timings};
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
    let mut scored = generation.tells_logprobs().then(Vec::new);
    while let Some(piece) = generation.next().await {
        match piece? {
            Piece::Text { text, tokens } => {
                answer.push_str(&text);
                generation.take_back(text);
                if let Some(scored) = &mut scored {
                    scored.extend(tokens);
                }
            }
            Piece::End {
                finish,
                usage,
                timings,
            } => {
                let body = header.whole(&answer, scored.as_deref(), finish, &usage);
                let body = body.timed(timings);
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

/// The answer in events, as it is made, of a generation that has [begun](Generation::begun): with these
/// headers it can no longer be refused. The response owns the generation: when the client goes away and
/// the response is dropped, the request is cancelled.
pub fn events(header: Header, generation: Generation, usage: StreamUsage) -> Response {
    let writer = Writer {
        text_frame: TextFrame::of(&header, usage != StreamUsage::Nowhere),
        header,
        generation,
        usage,
        first: true,
        frames: BytesMut::with_capacity(FRAMES_BYTES),
    };
    let frames = stream::unfold(writer, |mut writer| async {
        let frame = writer.next().await?;
        Some((Ok::<_, std::convert::Infallible>(frame), writer))
    });
    event_stream(HttpBody::from_stream(frames))
}

/// A response of server-sent events.
pub(crate) fn event_stream(body: HttpBody) -> Response {
    let mut response = body.into_response();
    let headers = response.headers_mut();
    let content_type = HeaderValue::from_static("text/event-stream; charset=utf-8");
    headers.insert(header::CONTENT_TYPE, content_type);
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-cache"));
    // Proxies of the nginx kind collect a body before they pass it on unless they are told.
    let unbuffered = HeaderName::from_static("x-accel-buffering");
    headers.insert(unbuffered, HeaderValue::from_static("no"));
    response
}

struct Writer {
    header: Header,
    generation: Generation,
    usage: StreamUsage,
    /// Whether the next chunk is the first one.
    first: bool,
    text_frame: TextFrame,
    /// Where frames are written, so that not each of them is an allocation.
    frames: BytesMut,
}

/// Bytes of frames that are allocated at once.
const FRAMES_BYTES: usize = 2 << 10;

/// Bytes from which on frames go out, though there is more to write.
const BYTES_AT_ONCE: usize = 16 << 10;

impl Writer {
    /// All frames that there are, at least one: a client that is behind is not sent them one by one.
    async fn next(&mut self) -> Option<Bytes> {
        let piece = self.generation.next().await?;
        self.write(piece);
        while self.frames.len() < BYTES_AT_ONCE {
            match self.generation.next().now_or_never() {
                Some(Some(piece)) => self.write(piece),
                Some(None) | None => break,
            }
        }
        Some(self.frames.split().freeze())
    }

    fn write(&mut self, piece: Result<Piece, Problem>) {
        match piece {
            Ok(Piece::Text { text, tokens }) => {
                match self.is_special() {
                    true => self.text(&text, &tokens),
                    false => self.text_frame.write(&text, &mut self.frames),
                }
                self.generation.take_back(text);
            }
            Ok(Piece::End {
                finish,
                usage,
                timings,
            }) => self.end(finish, &usage, timings),
            Err(problem) => event(&problem.body(), &mut self.frames),
        }
    }

    /// Whether the next text's frame is not like that of the text before it.
    fn is_special(&self) -> bool {
        self.first || self.usage == StreamUsage::Everywhere || self.generation.tells_logprobs()
    }

    fn text(&mut self, text: &str, tokens: &[ScoredToken]) {
        let part = Part {
            text: Some(text),
            tokens: self.generation.tells_logprobs().then_some(tokens),
            first: std::mem::take(&mut self.first),
            finish: None,
        };
        self.part(part, None);
    }

    fn part(&mut self, part: Part<'_>, timings: Option<Timings>) {
        let mut chunk = self.header.chunk(part, self.usage != StreamUsage::Nowhere);
        if self.usage == StreamUsage::Everywhere {
            chunk = chunk.counted(&self.generation.counted());
        }
        if let Some(timings) = timings {
            chunk = chunk.timed(timings);
        }
        event(&chunk, &mut self.frames);
    }

    fn end(&mut self, finish: FinishReason, usage: &Counted, timings: Timings) {
        if self.first && self.header.endpoint == Endpoint::Chat {
            self.text("", &[]);
        }
        let part = Part {
            finish: Some(finish),
            ..Part::default()
        };
        // The timings are in the last chunk, whichever that is.
        match self.usage {
            StreamUsage::Nowhere => self.part(part, Some(timings)),
            StreamUsage::AtTheEnd | StreamUsage::Everywhere => {
                self.part(part, None);
                let last = self.header.usage_chunk(usage).timed(timings);
                event(&last, &mut self.frames);
            }
        }
        self.frames.extend_from_slice(DONE);
    }
}

/// The frame of a chunk with text. From token to token only the text differs, so all around it is
/// written once for each request.
struct TextFrame {
    before: Box<[u8]>,
    after: Box<[u8]>,
}

impl TextFrame {
    /// Stands for the text. No text that is written as JSON holds it as it is.
    const MARK: &str = "\u{1}";

    fn of(header: &Header, include_usage: bool) -> Self {
        let part = Part {
            text: Some(Self::MARK),
            ..Part::default()
        };
        let mut frame = BytesMut::new();
        event(&header.chunk(part, include_usage), &mut frame);
        let mut mark = BytesMut::new();
        json_into(Self::MARK, &mut mark);
        // The model's name comes before it, whatever that is.
        let at = frame
            .windows(mark.len())
            .rposition(|window| window == mark)
            .unwrap_or(frame.len());
        let after = frame.get(at + mark.len()..).unwrap_or_default();
        Self {
            before: frame[..at].into(),
            after: after.into(),
        }
    }

    fn write(&self, text: &str, frames: &mut BytesMut) {
        frames.extend_from_slice(&self.before);
        json_into(text, frames);
        frames.extend_from_slice(&self.after);
    }
}

/// Appends one event. JSON has no raw line breaks, so its text is one `data` line.
fn event(body: &impl Serialize, frames: &mut BytesMut) {
    frames.extend_from_slice(b"data: ");
    json_into(body, frames);
    frames.extend_from_slice(b"\n\n");
}

/// A problem in mid-stream.
pub(crate) fn problem_event(problem: &Problem) -> Bytes {
    let mut frames = BytesMut::new();
    event(&problem.body(), &mut frames);
    frames.freeze()
}

/// Appends a body as JSON.
fn json_into<T: Serialize + ?Sized>(body: &T, frames: &mut BytesMut) {
    let start = frames.len();
    if let Err(error) = serde_json::to_writer(frames.writer(), body) {
        // Strings and numbers always serialise; if that ever changes, a client is better off
        // with an empty event than with half of one.
        tracing::error!(%error, "an event could not be written");
        frames.truncate(start);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_frame_that_is_put_together_is_the_frame_that_is_written_whole() {
        for endpoint in [Endpoint::Chat, Endpoint::Completion] {
            for include_usage in [false, true] {
                let header = Header {
                    id: "chatcmpl-1".to_owned(),
                    endpoint,
                    created: 1,
                    // As nasty as a name can be.
                    model: format!("m\"{}\"{}", TextFrame::MARK, '\u{2028}'),
                };
                let frame = TextFrame::of(&header, include_usage);
                for text in ["", " bade", "\"\\\n\r\t\u{1}\u{7f}", "\u{2028}世界🎉", "{}"] {
                    let (mut whole, mut spliced) = (BytesMut::new(), BytesMut::new());
                    let part = Part {
                        text: Some(text),
                        ..Part::default()
                    };
                    event(&header.chunk(part, include_usage), &mut whole);
                    frame.write(text, &mut spliced);
                    assert_eq!(whole, spliced, "{endpoint:?} {text:?}");
                }
            }
        }
    }
}
