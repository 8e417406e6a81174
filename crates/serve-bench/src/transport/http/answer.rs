//! What an answer says, streamed or in one piece, and what of it is noted.

use std::borrow::Cow;

use serde::Deserialize;
use serde::de::IgnoredAny;
use serde_json::Value;

use crate::store::record::Timings;
use crate::transport::drive::{Attempt, AttemptError, Said};
use crate::transport::sse::Decoder;

/// An answer that is being read.
#[derive(Debug)]
pub(super) enum Answer {
    /// Server-sent events.
    Stream(Stream),
    /// One JSON object, which is there when the body is.
    Whole(Vec<u8>),
}

/// The state of a stream.
#[derive(Debug, Default)]
pub(super) struct Stream {
    decoder: Decoder,
    is_finished: bool,
    is_done: bool,
    /// Tokens that the server has counted so far.
    tokens: u32,
}

impl Answer {
    pub(super) fn new(stream: bool) -> Self {
        match stream {
            true => Self::Stream(Stream::default()),
            false => Self::Whole(Vec::new()),
        }
    }

    /// Takes bytes that came at `now`; true when the last word was among them.
    pub(super) fn take(
        &mut self,
        bytes: &[u8],
        now: u64,
        attempt: &mut Attempt,
    ) -> Result<bool, AttemptError> {
        match self {
            Self::Stream(stream) => stream.take(bytes, now, attempt),
            Self::Whole(body) => {
                body.extend_from_slice(bytes);
                Ok(false)
            }
        }
    }

    /// The body has ended. A stream is whole if a finish reason came, with or without `[DONE]`.
    pub(super) fn end(&mut self, now: u64, attempt: &mut Attempt) -> Result<(), AttemptError> {
        attempt.ended(now);
        match self {
            Self::Stream(stream) if stream.is_finished => Ok(()),
            Self::Stream(_) => Err(no_reason()),
            Self::Whole(body) => {
                let parsed = serde_json::from_slice::<Piece>(body);
                let piece = parsed.map_err(|error| {
                    AttemptError::failed(
                        "bad_answer",
                        format!("the answer is no JSON object: {error}"),
                    )
                })?;
                let tokens = piece
                    .usage
                    .as_ref()
                    .and_then(|usage| usage.completion_tokens);
                let is_answer = piece.choices.as_ref().is_some_and(|it| !it.is_empty());
                piece.note(now, tokens, attempt)?;
                let none = || AttemptError::failed("bad_answer", "the answer has no choice");
                is_answer.then_some(()).ok_or_else(none)
            }
        }
    }
}

impl Stream {
    fn take(
        &mut self,
        bytes: &[u8],
        now: u64,
        attempt: &mut Attempt,
    ) -> Result<bool, AttemptError> {
        let Self {
            decoder,
            is_finished,
            is_done,
            tokens,
        } = self;
        let mut result = Ok(());
        decoder.push(bytes, |name, data| {
            if *is_done || result.is_err() {
                return;
            }
            result = match (name, data.trim_ascii_end()) {
                ("error", data) => Err(server_error(&data)),
                (_, "[DONE]") => {
                    *is_done = true;
                    attempt.ended(now);
                    is_finished.then_some(()).ok_or_else(no_reason)
                }
                (_, data) => {
                    let finished = event(data, now, tokens, attempt);
                    finished.map(|finished| *is_finished |= finished)
                }
            };
        });
        result.map(|()| self.is_done)
    }
}

fn no_reason() -> AttemptError {
    AttemptError::failed("cut_short", "the stream ended without a finish reason")
}

fn server_error(said: &impl std::fmt::Display) -> AttemptError {
    AttemptError::failed("server_error", format!("the server sent {said}"))
}

/// Notes what one event says; true if the answer is finished.
fn event(
    data: &str,
    now: u64,
    counted: &mut u32,
    attempt: &mut Attempt,
) -> Result<bool, AttemptError> {
    let piece = serde_json::from_str::<Piece>(data).map_err(|error| {
        AttemptError::failed("bad_answer", format!("a chunk is no JSON object: {error}"))
    })?;
    // A server that counts in every chunk says how many tokens this one brought.
    let so_far = piece
        .usage
        .as_ref()
        .and_then(|usage| usage.completion_tokens);
    let tokens = so_far.map(|so_far| so_far.saturating_sub(*counted));
    *counted = so_far.unwrap_or(*counted);
    piece.note(now, tokens, attempt)
}

/// A chunk of a stream or a whole answer, as far as it matters; all else is left alone.
#[derive(Deserialize)]
struct Piece<'a> {
    #[serde(borrow)]
    choices: Option<Vec<Choice<'a>>>,
    usage: Option<Usage>,
    timings: Option<ServerTimings>,
    error: Option<Value>,
    /// `error` where the whole object is one.
    #[serde(borrow)]
    object: Option<Cow<'a, str>>,
    /// What such an object says.
    message: Option<Value>,
}

#[derive(Deserialize)]
struct Choice<'a> {
    /// A chunk of a chat.
    #[serde(borrow)]
    delta: Option<Message<'a>>,
    /// A whole chat.
    #[serde(borrow)]
    message: Option<Message<'a>>,
    /// A completion.
    #[serde(borrow)]
    text: Option<Cow<'a, str>>,
    #[serde(borrow)]
    finish_reason: Option<Cow<'a, str>>,
}

#[derive(Deserialize)]
struct Message<'a> {
    #[serde(borrow)]
    content: Option<Cow<'a, str>>,
    /// What a reasoning model thinks, which takes as long to generate as what it says. Servers that know
    /// it by both names fill one of them, or both with the same.
    #[serde(borrow)]
    reasoning_content: Option<Thought<'a>>,
    #[serde(borrow)]
    reasoning: Option<Thought<'a>>,
}

/// A thought, as text or in a shape that no two servers share.
#[derive(Deserialize)]
#[serde(untagged)]
enum Thought<'a> {
    Text(#[serde(borrow)] Cow<'a, str>),
    Other(IgnoredAny),
}

impl<'a> Message<'a> {
    fn thought(&mut self) -> Option<Cow<'a, str>> {
        let names = [self.reasoning_content.take(), self.reasoning.take()];
        let mut texts = names
            .into_iter()
            .flatten()
            .filter_map(|thought| match thought {
                Thought::Text(text) => Some(text),
                Thought::Other(_) => None,
            });
        texts.find(|text| !text.is_empty())
    }
}

#[derive(Deserialize)]
struct Usage {
    prompt_tokens: Option<u32>,
    completion_tokens: Option<u32>,
    prompt_tokens_details: Option<PromptDetails>,
}

#[derive(Deserialize)]
struct PromptDetails {
    cached_tokens: Option<u32>,
}

/// Under serve's names and, where they mean the same, llama.cpp's.
#[derive(Deserialize)]
struct ServerTimings {
    queue_ms: Option<f64>,
    #[serde(alias = "prompt_ms")]
    prefill_ms: Option<f64>,
    #[serde(alias = "predicted_ms")]
    decode_ms: Option<f64>,
    preemptions: Option<u32>,
    cached_tokens: Option<u32>,
}

impl Piece<'_> {
    /// Notes everything; true if the answer is finished.
    fn note(
        self,
        now: u64,
        tokens: Option<u32>,
        attempt: &mut Attempt,
    ) -> Result<bool, AttemptError> {
        if let Some(error) = &self.error {
            return Err(server_error(error));
        }
        if self.object.as_deref() == Some("error") {
            return Err(server_error(&self.message.unwrap_or_default()));
        }
        let cached = self
            .timings
            .as_ref()
            .and_then(|timings| timings.cached_tokens);
        let mut said = Said {
            cached_tokens: cached,
            ..Said::default()
        };
        if let Some(usage) = self.usage {
            let details = usage.prompt_tokens_details;
            said.prompt_tokens = usage.prompt_tokens;
            said.output_tokens = usage.completion_tokens;
            said.cached_tokens = details.and_then(|details| details.cached_tokens).or(cached);
        }
        said.timings = self.timings.map(|timings| Timings {
            queue_ms: timings.queue_ms,
            prefill_ms: timings.prefill_ms,
            decode_ms: timings.decode_ms,
            preemptions: timings.preemptions,
        });
        attempt.said(&said);
        let mut is_finished = false;
        for choice in self.choices.into_iter().flatten() {
            // It ended the answer; whatever text stands beside it came.
            let broken = matches!(choice.finish_reason.as_deref(), Some("error" | "abort"));
            if let Some(reason) = choice.finish_reason {
                attempt.finish_reason(reason.into_owned());
                is_finished = true;
            }
            let message = choice.delta.or(choice.message);
            let (content, thought) = message.map_or((None, None), |mut message| {
                let thought = message.thought();
                (message.content, thought)
            });
            let texts = [content, thought, choice.text].into_iter().flatten();
            for (place, text) in texts.filter(|text| !text.is_empty()).enumerate() {
                match place {
                    0 => attempt.text(now, tokens, &text)?,
                    _ => attempt.more_text(&text),
                }
            }
            if broken {
                return Err(server_error(&"a finish reason that is no end of an answer"));
            }
        }
        Ok(is_finished)
    }
}

/// The code and the message of an error's body, in the shape of the OpenAI API or a flat one.
pub(super) fn error_of(body: &[u8]) -> (Option<String>, Option<String>) {
    let Ok(value) = serde_json::from_slice::<Value>(body) else {
        return (None, None);
    };
    let error = value
        .get("error")
        .filter(|error| error.is_object())
        .unwrap_or(&value);
    let text = |key: &str| error.get(key).and_then(Value::as_str).map(str::to_owned);
    (
        text("code").or_else(|| text("type")),
        text("message").or_else(|| text("detail")),
    )
}
