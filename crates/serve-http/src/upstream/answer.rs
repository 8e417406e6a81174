//! What an engine answers: the model called by the name that it is served by, what only this server has asked for
//! taken out, and what the answer has used counted.

use std::borrow::Cow;

use axum::body::Bytes;
use serde::Deserialize;
use serde_json::Value;
use serde_json::value::RawValue;
use serve_core::Usage;

use super::events::data;
use super::members::{Edit, Member, edited, members};

/// Rewrites one answer and keeps what it says of itself.
#[derive(Debug)]
pub(super) struct Rewriter {
    /// The name that clients know, as JSON.
    served: String,
    wants_usage: bool,
    pub(super) seen: Seen,
}

/// What an answer has said of itself by now.
#[derive(Debug, Default)]
pub(super) struct Seen {
    pub(super) id: Option<String>,
    /// Why it ended.
    pub(super) finish: Option<&'static str>,
    pub(super) usage: Option<Usage>,
    /// Chunks with something for the reader in them: tokens, as long as the engine has not counted.
    pub(super) tokens: u32,
    /// `data: [DONE]` has come.
    pub(super) done: bool,
    /// The engine has told of an error of its own.
    pub(super) error: Option<String>,
}

/// Bytes of an id at most: a client has to be able to say it.
const ID_BYTES_MAX: usize = 255;

/// As much of an answer or of one chunk as is read, each part of which is read for itself: whatever is of another
/// shape than expected is not there, and the rest is.
#[derive(Deserialize)]
struct Told<'a> {
    #[serde(borrow, default)]
    id: Part<'a>,
    #[serde(borrow, default)]
    usage: Part<'a>,
    #[serde(borrow, default)]
    choices: Part<'a>,
    #[serde(borrow, default)]
    error: Part<'a>,
}

#[derive(Default, Deserialize)]
struct Choice<'a> {
    #[serde(borrow, default)]
    finish_reason: Part<'a>,
    #[serde(borrow, default)]
    text: Part<'a>,
    #[serde(borrow, default)]
    delta: Part<'a>,
}

#[derive(Default, Deserialize)]
struct Delta<'a> {
    #[serde(borrow, default)]
    content: Part<'a>,
    #[serde(borrow, default)]
    reasoning_content: Part<'a>,
    #[serde(borrow, default)]
    reasoning: Part<'a>,
    #[serde(borrow, default)]
    tool_calls: Part<'a>,
}

/// A value that is there, as it stands.
type Part<'a> = Option<&'a RawValue>;

/// What a part says, if it has the shape for it.
fn read<'a, T: Deserialize<'a>>(part: Part<'a>) -> Option<T> {
    serde_json::from_str(part?.get()).ok()
}

impl Rewriter {
    pub(super) fn new(served: &str, wants_usage: bool) -> Self {
        Self {
            served: Value::from(served).to_string(),
            wants_usage,
            seen: Seen::default(),
        }
    }

    /// What the client gets of an event; nothing of one that was for this server alone.
    pub(super) fn event(&mut self, event: Bytes) -> Option<Bytes> {
        let Ok(text) = std::str::from_utf8(&event) else {
            return Some(event);
        };
        let Some((said, place)) = data(text) else {
            return Some(event);
        };
        if said.trim() == "[DONE]" {
            self.seen.done = true;
            return Some(event);
        }
        let is_for_us = self.read(&said);
        if is_for_us && !self.wants_usage {
            return None;
        }
        let (Some(place), Some(new)) = (place, self.rewritten(&said, !self.wants_usage)) else {
            return Some(event);
        };
        let around = |range: std::ops::Range<usize>| text.get(range).unwrap_or_default();
        let (before, after) = (around(0..place.start), around(place.end..text.len()));
        Some([before, &new, after].concat().into())
    }

    /// A whole answer.
    ///
    /// # Errors
    ///
    /// When it is no JSON object.
    pub(super) fn whole(&mut self, body: &Bytes) -> Result<Bytes, &'static str> {
        const WRONG: &str = "its answer is no JSON object";

        let text = std::str::from_utf8(body).map_err(|_| WRONG)?;
        serde_json::from_str::<serde::de::IgnoredAny>(text).map_err(|_| WRONG)?;
        members(text).ok_or(WRONG)?;
        self.read(text);
        Ok(match self.rewritten(text, false) {
            Some(new) => new.into(),
            None => body.clone(),
        })
    }

    /// Keeps what a chunk says of the answer. Returns whether it says nothing but what was used.
    fn read(&mut self, text: &str) -> bool {
        let Ok(told) = serde_json::from_str::<Told<'_>>(text) else {
            // Something for the reader, in whatever shape.
            self.seen.tokens += 1;
            return false;
        };
        let seen = &mut self.seen;
        if seen.id.is_none() {
            let id: Option<String> = read(told.id);
            seen.id = id.filter(|id| (1..=ID_BYTES_MAX).contains(&id.len()));
        }
        if let Some(error) = read::<Value>(told.error) {
            let message = error.get("message").and_then(Value::as_str);
            seen.error = Some(message.map_or_else(|| error.to_string(), ToOwned::to_owned));
        }
        let usage = read(told.usage).as_ref().and_then(used);
        let choices: Vec<&RawValue> = read(told.choices).unwrap_or_default();
        let is_for_us = usage.is_some() && choices.is_empty();
        seen.usage = usage.or(seen.usage);
        for choice in choices {
            let choice: Choice<'_> = read(Some(choice)).unwrap_or_default();
            seen.tokens += u32::from(choice.says_something());
            if let Some(reason) = read::<Cow<'_, str>>(choice.finish_reason) {
                seen.finish = Some(match &*reason {
                    "length" => "length",
                    "tool_calls" => "tool_calls",
                    "content_filter" => "content_filter",
                    _ => "stop",
                });
            }
        }
        is_for_us
    }

    /// The object with the served model's name, and without usage if that is not wanted; none where
    /// nothing changes.
    fn rewritten(&self, text: &str, without_usage: bool) -> Option<String> {
        let found = members(text)?;
        let edit = |member: &Member<'_>| match &*member.name {
            "model" if text.get(member.value.clone()) != Some(&self.served) => {
                Edit::Value(self.served.clone())
            }
            "usage" if without_usage => Edit::Drop,
            _ => Edit::Keep,
        };
        let changes = found.iter().any(|member| edit(member) != Edit::Keep);
        changes.then(|| edited(text, &found, edit, &[]))
    }
}

impl Choice<'_> {
    fn says_something(&self) -> bool {
        let has = |part: Part<'_>| part.is_some_and(|part| !matches!(part.get(), "\"\"" | "null"));
        let delta: Delta<'_> = read(self.delta).unwrap_or_default();
        has(self.text)
            || has(delta.content)
            || has(delta.reasoning_content)
            || has(delta.reasoning)
            || has(delta.tool_calls)
    }
}

fn used(usage: &Value) -> Option<Usage> {
    let count = |value: &Value| value.as_u64().map(|n| u32::try_from(n).unwrap_or(u32::MAX));
    let cached = usage.pointer("/prompt_tokens_details/cached_tokens");
    Some(Usage {
        prompt_tokens: count(usage.get("prompt_tokens")?)?,
        output_tokens: usage.get("completion_tokens").and_then(count).unwrap_or(0),
        cached_tokens: cached.and_then(count).unwrap_or(0),
        ..Usage::default()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn through(rewriter: &mut Rewriter, event: &str) -> Option<String> {
        let out = rewriter.event(Bytes::copy_from_slice(event.as_bytes()))?;
        Some(String::from_utf8(out.to_vec()).unwrap())
    }

    /// Recorded from llama-server (build 7e4c0a9, October 2026), with another model's name.
    const LLAMA: [&str; 4] = [
        "data: {\"choices\":[{\"finish_reason\":null,\"index\":0,\"delta\":{\"role\":\"assistant\",\"content\":null}}],\"created\":1796092962,\"id\":\"chatcmpl-Vg56\",\"model\":\"gpt-3.5-turbo\",\"system_fingerprint\":\"b1-7e4c0a9\",\"object\":\"chat.completion.chunk\"}\n\n",
        "data: {\"choices\":[{\"finish_reason\":null,\"index\":0,\"delta\":{\"content\":\"Welcome\"}}],\"created\":1796092962,\"id\":\"chatcmpl-Vg56\",\"model\":\"gpt-3.5-turbo\",\"system_fingerprint\":\"b1-7e4c0a9\",\"object\":\"chat.completion.chunk\"}\n\n",
        "data: {\"choices\":[{\"finish_reason\":\"length\",\"index\":0,\"delta\":{}}],\"created\":1796092962,\"id\":\"chatcmpl-Vg56\",\"model\":\"gpt-3.5-turbo\",\"system_fingerprint\":\"b1-7e4c0a9\",\"object\":\"chat.completion.chunk\"}\n\n",
        "data: {\"choices\":[],\"created\":1796092962,\"id\":\"chatcmpl-Vg56\",\"model\":\"gpt-3.5-turbo\",\"system_fingerprint\":\"b1-7e4c0a9\",\"object\":\"chat.completion.chunk\",\"usage\":{\"completion_tokens\":1,\"prompt_tokens\":32,\"total_tokens\":33,\"prompt_tokens_details\":{\"cached_tokens\":0}},\"timings\":{\"cache_n\":0,\"prompt_n\":32,\"prompt_ms\":52.739}}\n\n",
    ];
    /// In the form that vLLM gives its chunks (`vllm/entrypoints/openai/protocol.py`, version 0.10): not recorded here.
    const VLLM: [&str; 4] = [
        "data: {\"id\":\"cmpl-y\",\"object\":\"text_completion\",\"created\":1,\"model\":\"Qwen/Qwen2.5-0.5B-Instruct\",\"choices\":[{\"index\":0,\"text\":\" a\",\"logprobs\":null,\"finish_reason\":null,\"stop_reason\":null}],\"usage\":null}\n\n",
        "data: {\"id\":\"cmpl-y\",\"object\":\"text_completion\",\"created\":1,\"model\":\"Qwen/Qwen2.5-0.5B-Instruct\",\"choices\":[{\"index\":0,\"text\":\" b\",\"logprobs\":null,\"finish_reason\":\"stop\",\"stop_reason\":null}],\"usage\":null}\n\n",
        "data: {\"id\":\"cmpl-y\",\"object\":\"text_completion\",\"created\":1,\"model\":\"Qwen/Qwen2.5-0.5B-Instruct\",\"choices\":[],\"usage\":{\"prompt_tokens\":6,\"total_tokens\":8,\"completion_tokens\":2,\"prompt_tokens_details\":{\"cached_tokens\":4}}}\n\n",
        "data: [DONE]\n\n",
    ];

    #[test]
    fn the_model_is_called_as_it_is_served_in_every_chunk() {
        for recorded in [LLAMA, VLLM] {
            for wants_usage in [false, true] {
                let mut rewriter = Rewriter::new("the \"model\"", wants_usage);
                for event in recorded {
                    let Some(out) = through(&mut rewriter, event) else {
                        continue;
                    };
                    assert!(!out.contains("Qwen") && !out.contains("gpt-3.5"), "{out}");
                    let said = out
                        .strip_prefix("data: ")
                        .unwrap()
                        .strip_suffix("\n\n")
                        .unwrap();
                    if said != "[DONE]" {
                        let said: Value = serde_json::from_str(said).unwrap();
                        assert_eq!(said["model"], "the \"model\"");
                    }
                }
            }
        }
    }

    #[test]
    fn usage_is_counted_and_kept_from_who_did_not_ask() {
        for (recorded, expected) in [(LLAMA, (32, 1, 0, 1)), (VLLM, (6, 2, 4, 2))] {
            for wants_usage in [false, true] {
                let mut rewriter = Rewriter::new("m", wants_usage);
                let out: Vec<_> = recorded
                    .iter()
                    .filter_map(|event| through(&mut rewriter, event))
                    .collect();
                let usage = rewriter.seen.usage.unwrap();
                let counted = (
                    usage.prompt_tokens,
                    usage.output_tokens,
                    usage.cached_tokens,
                    rewriter.seen.tokens,
                );
                assert_eq!(counted, expected);
                assert_eq!(out.len(), if wants_usage { 4 } else { 3 });
                assert_eq!(out.iter().any(|event| event.contains("usage")), wants_usage);
            }
        }
    }

    /// An older llama-server has the usage in the last chunk with a choice.
    #[test]
    fn a_chunk_with_text_and_usage_keeps_its_text() {
        let mut rewriter = Rewriter::new("m", false);
        let event = "data: {\"choices\":[{\"finish_reason\":\"stop\",\"delta\":{}}],\"usage\":{\"prompt_tokens\":1,\"completion_tokens\":2}}\r\n\r\n";
        let out = through(&mut rewriter, event).unwrap();
        assert_eq!(
            out,
            "data: {\"choices\":[{\"finish_reason\":\"stop\",\"delta\":{}}]}\r\n\r\n"
        );
        assert_eq!(
            (
                rewriter.seen.finish,
                rewriter.seen.usage.unwrap().output_tokens
            ),
            (Some("stop"), 2)
        );
    }

    #[test]
    fn what_is_no_chunk_passes_as_it_is() {
        let mut rewriter = Rewriter::new("m", false);
        for event in [
            ": ping\n\n",
            "\n",
            "data: not json\n\n",
            "data: [1,2]\n\n",
            "event: x\nid: 7\nretry: 5\n\n",
            "data: {\"prompt_filter_results\":[],\"choices\":[]}\n\n",
            "data: {\"choices\":\n data: []}\n\n",
        ] {
            assert_eq!(through(&mut rewriter, event).as_deref(), Some(event));
        }
        assert!(!rewriter.seen.done);
        assert_eq!(
            through(&mut rewriter, "data:[DONE]\n\n").as_deref(),
            Some("data:[DONE]\n\n")
        );
        assert!(rewriter.seen.done);
    }

    #[test]
    fn an_error_of_the_engine_passes_and_is_known() {
        for event in [
            "data: {\"error\":{\"message\":\"out of memory\",\"code\":500}}\n\n",
            "data: {\"error\":\"out of memory\"}\n\n",
        ] {
            let mut rewriter = Rewriter::new("m", false);
            assert_eq!(through(&mut rewriter, event).as_deref(), Some(event));
            assert!(rewriter.seen.error.unwrap().contains("out of memory"));
        }
    }

    #[test]
    fn a_whole_answer_keeps_its_usage_and_all_else() {
        let body = r#"{"id":"a","model":"x/y","choices":[{"finish_reason":"tool_calls","message":{"content":null,"tool_calls":[{"n":1.0e3}]}}], "usage" : {"prompt_tokens":5,"completion_tokens":7}}"#;
        let mut rewriter = Rewriter::new("m", false);
        let out = rewriter.whole(&Bytes::from(body)).unwrap();
        let expected = body
            .replace("x/y", "m")
            .replace(", \"usage\"", ",\"usage\"");
        assert_eq!(out, expected);
        let Seen { finish, usage, .. } = rewriter.seen;
        assert_eq!(
            (finish, usage.unwrap().output_tokens),
            (Some("tool_calls"), 7)
        );
        for wrong in ["", "[]", "<html>", "{\"a\":"] {
            assert!(rewriter_of().whole(&Bytes::from(wrong)).is_err(), "{wrong}");
        }
    }

    /// Each part of a chunk for itself: what is of another shape costs no other part.
    #[test]
    fn what_is_of_another_shape_is_not_there_and_the_rest_is() {
        let odd = ["5", "{}", "[[]]", "true", r#""\ud83d""#];
        let usage = r#""usage":{"prompt_tokens":5,"completion_tokens":7}"#;
        for odd in odd {
            for chunk in [
                format!(r#"{{"id":{odd},"choices":[{{"finish_reason":"length"}}],{usage}}}"#),
                format!(r#"{{"choices":[{odd},{{"finish_reason":"length"}}],{usage}}}"#),
                format!(
                    r#"{{"choices":[{{"text":{odd},"delta":{odd},"finish_reason":"length"}}],{usage}}}"#
                ),
                format!(
                    r#"{{"choices":[{{"delta":{{"content":{odd},"reasoning":{odd}}},"finish_reason":"length"}}],{usage}}}"#
                ),
            ] {
                let mut rewriter = rewriter_of();
                through(&mut rewriter, &format!("data: {chunk}\n\n"));
                let seen = rewriter.seen;
                assert_eq!(seen.finish, Some("length"), "{chunk}");
                assert_eq!(seen.usage.unwrap().output_tokens, 7, "{chunk}");
            }
            // Nothing but usage, whatever else of it is odd.
            for chunk in [
                format!(r#"{{"id":{odd},"choices":[],{usage}}}"#),
                format!(r#"{{"choices":[],"error":null,"created":{odd},{usage}}}"#),
            ] {
                let event = format!("data: {chunk}\n\n");
                assert_eq!(through(&mut rewriter_of(), &event), None, "{chunk}");
            }
        }
        // A text of no letters is something for the reader all the same.
        for content in [r#""\ud83d""#, r#"[{"type":"thinking"}]"#] {
            let mut rewriter = rewriter_of();
            let event =
                format!("data: {{\"choices\":[{{\"delta\":{{\"content\":{content}}}}}]}}\n\n");
            through(&mut rewriter, &event);
            assert_eq!(rewriter.seen.tokens, 1, "{content}");
        }
    }

    #[test]
    fn an_id_is_kept_if_a_client_can_say_it() {
        for (id, kept) in [
            ("a", true),
            ("", false),
            (&"i".repeat(255), true),
            (&"i".repeat(256), false),
        ] {
            let mut rewriter = rewriter_of();
            let body = format!(r#"{{"id":"{id}","choices":[]}}"#);
            rewriter.whole(&Bytes::from(body)).unwrap();
            assert_eq!(rewriter.seen.id.is_some(), kept, "{} bytes", id.len());
        }
    }

    fn rewriter_of() -> Rewriter {
        Rewriter::new("m", false)
    }
}
