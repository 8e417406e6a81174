//! Parameters of the OpenAI API that this server knows and does not do.
//!
//! Ignoring one would give the client something else than it asked for, so each is accepted only
//! with values under which it changes nothing, and otherwise refused by name. Parameters that say
//! something about the request and nothing about the answer are accepted with any value.

use serde_json::Value;

use super::fields::Fields;
use crate::error::Problem;

/// A parameter that is accepted with neutral values only.
struct Neutral {
    name: &'static str,
    /// The values, in words.
    accepted: &'static str,
    is_neutral: fn(&Value) -> bool,
}

const BOTH: &[Neutral] = &[
    neutral("n", "1", |v| v.as_f64() == Some(1.0)),
    neutral("logit_bias", "{}", is_empty),
];

const CHAT: &[Neutral] = &[
    neutral("tools", "[]", is_empty),
    neutral("tool_choice", "\"none\" or \"auto\"", |v| {
        v == "none" || v == "auto"
    }),
    neutral("functions", "[]", is_empty),
    neutral("function_call", "\"none\" or \"auto\"", |v| {
        v == "none" || v == "auto"
    }),
    neutral("response_format", "{\"type\": \"text\"}", |v| {
        v["type"] == "text"
    }),
    neutral("modalities", "[\"text\"]", |v| {
        *v == serde_json::json!(["text"])
    }),
    neutral("audio", "null", |_| false),
    neutral("prediction", "null", |_| false),
    neutral("web_search_options", "null", |_| false),
    neutral("reasoning_effort", "\"none\"", |v| v == "none"),
    neutral("verbosity", "\"medium\"", |v| v == "medium"),
];

const COMPLETION: &[Neutral] = &[
    neutral("echo", "false", is_false),
    neutral("best_of", "1", |v| v.as_f64() == Some(1.0)),
    neutral("suffix", "an empty string", |v| v == ""),
];

/// Parameters that say nothing about the answer.
const HARMLESS: &[&str] = &[
    "user",
    "metadata",
    "store",
    "safety_identifier",
    "prompt_cache_key",
    "prompt_cache_retention",
    "parallel_tool_calls",
    "service_tier",
];

/// Takes what a chat completion does not do.
pub(super) fn take_for_chat(fields: &mut Fields) -> Result<(), Problem> {
    take(fields, BOTH.iter().chain(CHAT))
}

/// Takes what a text completion does not do.
pub(super) fn take_for_completion(fields: &mut Fields) -> Result<(), Problem> {
    take(fields, BOTH.iter().chain(COMPLETION))
}

fn take<'a>(fields: &mut Fields, known: impl Iterator<Item = &'a Neutral>) -> Result<(), Problem> {
    for parameter in known {
        match fields.take(parameter.name) {
            Some(value) if !(parameter.is_neutral)(&value) => {
                return Err(Problem::Unsupported {
                    param: fields.path(parameter.name),
                    accepted: parameter.accepted,
                });
            }
            _ => {}
        }
    }
    for name in HARMLESS {
        fields.take(name);
    }
    Ok(())
}

const fn neutral(
    name: &'static str,
    accepted: &'static str,
    is_neutral: fn(&Value) -> bool,
) -> Neutral {
    Neutral {
        name,
        accepted,
        is_neutral,
    }
}

fn is_false(value: &Value) -> bool {
    value == false
}

fn is_empty(value: &Value) -> bool {
    match value {
        Value::Array(items) => items.is_empty(),
        Value::Object(map) => map.is_empty(),
        _ => false,
    }
}
