//! The body of a request, understood as far as the gate has to, and edited as little as possible.
//!
//! What the engine makes of tools, images, formats and the rest is between it and the client. Read are the
//! model, whether it is a stream, how long the answer may be, and what is said to this server; edited are `model` and
//! `stream_options`, and what was said to this server is taken out.

use axum::body::Bytes;
use serde::de::IgnoredAny;
use serde_json::{Map, Value};

use super::members::{Edit, Member, edited, members};
use crate::api::{Endpoint, Fields, Options, syntax};
use crate::error::Problem;

/// What is said to this server alone; an engine need not know it.
const OWN: [&str; 3] = ["request_class", "timeout_ms", "queue_timeout_ms"];

/// What is read besides.
const READ: [&str; 5] = [
    "model",
    "stream",
    "stream_options",
    "max_tokens",
    "max_completion_tokens",
];

/// Bytes of JSON that count as a token of the prompt: there is no tokenizer here, so this is an estimate until the
/// engine has counted.
const BYTES_PER_TOKEN: usize = 4;

/// How long an answer is expected to be at most where the request does not say.
const OUTPUT_TOKENS_USUAL: u32 = 512;

/// A request for text.
#[derive(Debug)]
pub(crate) struct Asked {
    pub(crate) endpoint: Endpoint,
    /// What the gate knows of it: the model, whether it is a stream, class and time limits.
    pub(crate) options: Options,
    /// What the engine is sent.
    pub(crate) body: Bytes,
    /// Whether the client asks what a stream has used.
    pub(super) wants_usage: bool,
    prompt_bytes: usize,
}

impl Asked {
    /// Reads a body, and edits it for an engine that calls the model served as `served` by the name `model`.
    ///
    /// # Errors
    ///
    /// The [`Problem`] with JSON, with one of the parameters that are read, or with the model's name.
    pub(crate) fn read(
        endpoint: Endpoint,
        body: &[u8],
        served: &str,
        model: &str,
    ) -> Result<Self, Problem> {
        serde_json::from_slice::<IgnoredAny>(body).map_err(|error| syntax(&error))?;
        let text = std::str::from_utf8(body).map_err(|_| Problem::Syntax {
            cause: "it is not UTF-8".to_owned(),
            line: 1,
            column: 1,
        })?;
        let Some(found) = members(text) else {
            // It says what was expected.
            return Err(match Fields::of_body(body) {
                Err(problem) => problem,
                Ok(_) => Problem::Body,
            });
        };
        let mut fields = Fields::of_value(Value::Object(known(text, &found)?), String::new())?;
        let options = Options {
            model: fields.string("model")?,
            stream: fields.boolean("stream")?.unwrap_or(false),
            output_tokens_max: output_tokens_max(&mut fields),
            ..Options::addressed(&mut fields)?
        };
        if let Some(asked) = options.model.as_ref().filter(|asked| *asked != served) {
            return Err(Problem::ModelNotFound {
                asked: asked.clone(),
                served: served.to_owned(),
            });
        }
        let usage = match (options.stream, fields.object("stream_options")?) {
            (true, stream_options) => Some(stream_options.unwrap_or_default()),
            (false, _) => None,
        };
        let wants_usage = usage.as_ref().is_some_and(includes_usage);
        let usage = usage.filter(|_| !wants_usage);
        let body = rewritten(text, &found, model, usage);
        Ok(Self {
            endpoint,
            options,
            body: body.into(),
            wants_usage,
            prompt_bytes: text.len(),
        })
    }

    /// Tokens in the prompt, as the gate has to guess them.
    pub(super) fn prompt_tokens(&self) -> u32 {
        let tokens = self.prompt_bytes.div_ceil(BYTES_PER_TOKEN);
        u32::try_from(tokens).unwrap_or(u32::MAX >> 1).max(1)
    }

    /// Tokens that the answer may have, as far as that is said.
    pub(super) fn output_tokens_max(&self) -> u32 {
        let asked = self.options.output_tokens_max;
        asked.map_or(OUTPUT_TOKENS_USUAL, |asked| asked.get().min(u32::MAX >> 1))
    }
}

/// The members that are read. One that is there twice could be read in two ways.
fn known(text: &str, found: &[Member<'_>]) -> Result<Map<String, Value>, Problem> {
    let mut known = Map::new();
    for member in found {
        let name = &*member.name;
        if !READ.contains(&name) && !OWN.contains(&name) {
            continue;
        }
        let value = text.get(member.value.clone()).unwrap_or_default();
        let value = serde_json::from_str(value).map_err(|error| syntax(&error))?;
        if known.insert(name.to_owned(), value).is_some() {
            return Err(Problem::Value {
                param: name.to_owned(),
                accepted: "given once".to_owned(),
                given: "twice".to_owned(),
            });
        }
    }
    Ok(known)
}

/// What is no number of tokens is the engine's to refuse.
fn output_tokens_max(fields: &mut Fields) -> Option<std::num::NonZeroU32> {
    let mut read = |name| {
        let tokens = fields.take(name)?.as_u64()?;
        std::num::NonZeroU32::new(u32::try_from(tokens).unwrap_or(u32::MAX))
    };
    let newer = read("max_completion_tokens");
    newer.or(read("max_tokens"))
}

fn includes_usage(stream_options: &Map<String, Value>) -> bool {
    stream_options.get("include_usage") == Some(&Value::Bool(true))
}

/// The body for the engine; `usage` are the stream options of a client that does not ask for what the
/// engine is to be asked for.
fn rewritten(
    text: &str,
    found: &[Member<'_>],
    model: &str,
    usage: Option<Map<String, Value>>,
) -> String {
    let model = Value::from(model).to_string();
    let stream_options = usage.map(|mut options| {
        options.insert("include_usage".to_owned(), true.into());
        Value::Object(options).to_string()
    });
    let is_there = |name: &str| found.iter().any(|member| member.name == name);
    let mut more = Vec::new();
    if !is_there("model") {
        more.push(("model", model.clone()));
    }
    if let Some(options) = stream_options
        .clone()
        .filter(|_| !is_there("stream_options"))
    {
        more.push(("stream_options", options));
    }
    let edit = |member: &Member<'_>| match (&*member.name, &stream_options) {
        ("model", _) => Edit::Value(model.clone()),
        ("stream_options", Some(options)) => Edit::Value(options.clone()),
        (own, _) if OWN.contains(&own) => Edit::Drop,
        _ => Edit::Keep,
    };
    edited(text, found, edit, &more)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(body: &str) -> Result<Asked, Problem> {
        Asked::read(Endpoint::Chat, body.as_bytes(), "served", "Org/Engine-1")
    }

    fn sent(body: &str) -> String {
        let asked = read(body).unwrap();
        String::from_utf8(asked.body.to_vec()).unwrap()
    }

    #[test]
    fn what_is_not_understood_passes_as_it_stands() {
        let rest = r#""tools":[{"type" : "function"}],"seed":18446744073709551615,"x":1.50e+2,"messages":[{"role":"user","content":"\u00e4\/"}],"n":2"#;
        let body = format!("{{{rest},\"model\":\"served\"}}");
        assert_eq!(
            sent(&body),
            format!("{{{rest},\"model\":\"Org/Engine-1\"}}")
        );
    }

    #[test]
    fn the_model_is_the_engines_whether_it_is_named_or_not() {
        for body in [
            "{}",
            r#"{"model":null}"#,
            r#"{ "model" : "served" }"#,
            r#"{"mod\u0065l":"served"}"#,
        ] {
            let sent: Value = serde_json::from_str(&sent(body)).unwrap();
            assert_eq!(sent, serde_json::json!({"model": "Org/Engine-1"}), "{body}");
        }
        for body in [r#"{"model":"other"}"#, r#"{"model":"Org/Engine-1"}"#] {
            let problem = read(body).unwrap_err();
            assert!(
                matches!(problem, Problem::ModelNotFound { .. }),
                "{problem}"
            );
        }
    }

    #[test]
    fn a_stream_is_asked_what_it_uses_and_nothing_else_is() {
        let options = |body: &str| {
            let mut sent: Value = serde_json::from_str(&sent(body)).unwrap();
            (
                sent["stream_options"].take(),
                read(body).unwrap().wants_usage,
            )
        };
        let asked = |value: Value| value["include_usage"] == true;
        for body in [
            r#"{"stream":true}"#,
            r#"{"stream":true,"stream_options":null}"#,
            r#"{"stream":true,"stream_options":{}}"#,
            r#"{"stream":true,"stream_options":{"include_usage":false,"other":1}}"#,
        ] {
            let (sent, wants) = options(body);
            assert!(asked(sent) && !wants, "{body}");
        }
        let body = r#"{"stream":true,"stream_options":{ "include_usage" : true,"other":1}}"#;
        assert!(options(body).1);
        assert!(sent(body).contains(r#"{ "include_usage" : true,"other":1}"#));
        for body in [r#"{"stream":false}"#, "{}"] {
            assert_eq!(options(body), (Value::Null, false), "{body}");
        }
        let kept = sent(r#"{"stream":true,"stream_options":{"other":1}}"#);
        assert!(kept.contains(r#""other":1"#), "{kept}");
        assert!(
            !kept.contains("continuous_usage_stats"),
            "strict proxies refuse it"
        );
    }

    #[test]
    fn what_is_said_to_the_server_stays_here() {
        let body = r#"{"timeout_ms":50,"a":1,"request_class":"free","queue_timeout_ms":7}"#;
        assert_eq!(sent(body), r#"{"a":1,"model":"Org/Engine-1"}"#);
        let options = read(body).unwrap().options;
        assert_eq!(options.class.as_deref(), Some("free"));
        assert_eq!(options.timeout_ms.map(u64::from), Some(50));
        assert_eq!(options.queue_timeout_ms.map(u64::from), Some(7));
    }

    #[test]
    fn the_size_is_what_is_said_or_guessed() {
        let asked = |body| read(body).unwrap();
        assert_eq!(asked(r#"{"max_tokens":7}"#).output_tokens_max(), 7);
        assert_eq!(
            asked(r#"{"max_completion_tokens":8}"#).output_tokens_max(),
            8
        );
        for engine_s in [r#"{"max_tokens":"x"}"#, r#"{"max_tokens":0}"#, "{}"] {
            assert_eq!(asked(engine_s).output_tokens_max(), OUTPUT_TOKENS_USUAL);
        }
        let long = format!(r#"{{"prompt":"{}"}}"#, "x".repeat(4_000));
        assert!((1_000..1_010).contains(&asked(&long).prompt_tokens()));
    }

    #[test]
    fn what_can_be_read_in_two_ways_or_not_at_all_is_refused() {
        for (body, code) in [
            (r#"{"model":"served","model":"other"}"#, "invalid_value"),
            (r#"{"stream":true,"stream":false}"#, "invalid_value"),
            (r#"{"stream":"yes"}"#, "invalid_type"),
            (r#"{"model":5}"#, "invalid_type"),
            (r#"{"timeout_ms":0}"#, "invalid_value"),
            ("[1]", "invalid_type"),
            (r#"{"a":}"#, "invalid_json"),
            (r#"{"a":1} x"#, "invalid_json"),
            ("", "invalid_json"),
        ] {
            assert_eq!(read(body).unwrap_err().kind().code, code, "{body}");
        }
        let not_utf8 = b"{\"a\":\"\xff\"}";
        let problem = Asked::read(Endpoint::Chat, not_utf8, "a", "b").unwrap_err();
        assert_eq!(problem.kind().code, "invalid_json");
    }
}
