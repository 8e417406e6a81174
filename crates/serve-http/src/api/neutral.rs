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

/// Of both endpoints. Gateways that read a body and write it anew send other engines' parameters along, each at
/// the value that asks for nothing.
const BOTH: &[Neutral] = &[
    neutral("n", "1", is_one),
    neutral("best_of", "1", is_one),
    neutral("echo", "false", is_false),
    neutral("logit_bias", "{}", is_empty),
    // Which tokens there may be, and what of them is text.
    neutral("min_tokens", "0", is_zero),
    neutral("stop_token_ids", "[]", is_empty),
    neutral("bad_words", "[]", is_empty),
    neutral("allowed_token_ids", "[]", is_empty),
    neutral("skip_special_tokens", "true", is_true),
    neutral("spaces_between_special_tokens", "true", is_true),
    neutral("include_stop_str_in_output", "false", is_false),
    neutral("no_stop_trim", "false", is_false),
    neutral("detokenize", "true", is_true),
    // Other ways to choose a token.
    neutral("use_beam_search", "false", is_false),
    neutral("length_penalty", "1", is_one),
    neutral("early_stopping", "false", is_false),
    neutral("typical_p", "1", is_one),
    neutral("mirostat", "0", is_zero),
    neutral("dry_multiplier", "0", is_zero),
    neutral("xtc_probability", "0", is_zero),
    neutral("dynatemp_range", "0", is_zero),
    // More to be told with the answer.
    neutral("prompt_logprobs", "0", is_zero),
    neutral("n_probs", "0", is_zero),
    neutral("return_token_ids", "false", is_false),
    neutral("return_tokens", "false", is_false),
    neutral("return_tokens_as_token_ids", "false", is_false),
    neutral("return_hidden_states", "false", is_false),
    // A request's place among others is its class's.
    neutral("priority", "0", is_zero),
    // The prefix cache is always on, and shared by those that may share it.
    neutral("cache_prompt", "true", is_true),
];

const CHAT: &[Neutral] = &[
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
    // The answer follows the messages, and a template says how.
    neutral("add_generation_prompt", "true", is_true),
    neutral("continue_final_message", "false", is_false),
    neutral("add_special_tokens", "false", is_false),
    neutral("documents", "[]", is_empty),
    // What a model thinks is part of its text: nothing is split off, and nothing is left out.
    neutral("include_reasoning", "true", is_true),
    neutral("separate_reasoning", "true or false", Value::is_boolean),
    neutral("stream_reasoning", "true or false", Value::is_boolean),
];

const COMPLETION: &[Neutral] = &[
    neutral("suffix", "an empty string", |v| v == ""),
    neutral("add_special_tokens", "true", is_true),
    neutral("response_format", "{\"type\": \"text\"}", |v| {
        v["type"] == "text"
    }),
];

/// Tools ask for nothing where none is to be called.
const TOOLS: Neutral = neutral("tools", "[], or a tool_choice of \"none\"", is_empty);

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
    "session_id",
];

/// Takes what a chat completion does not do.
pub(super) fn take_for_chat(fields: &mut Fields) -> Result<(), Problem> {
    let tools = fields.take(TOOLS.name);
    let called = !fields.is("tool_choice", "none");
    if called && tools.is_some_and(|tools| !(TOOLS.is_neutral)(&tools)) {
        return Err(TOOLS.refused(fields));
    }
    take(fields, BOTH.iter().chain(CHAT))
}

/// Takes what a text completion does not do.
pub(super) fn take_for_completion(fields: &mut Fields) -> Result<(), Problem> {
    take(fields, BOTH.iter().chain(COMPLETION))
}

fn take<'a>(fields: &mut Fields, known: impl Iterator<Item = &'a Neutral>) -> Result<(), Problem> {
    if fields.is_empty() {
        return Ok(());
    }
    for parameter in known {
        match fields.take(parameter.name) {
            Some(value) if !(parameter.is_neutral)(&value) => {
                return Err(parameter.refused(fields));
            }
            _ => {}
        }
    }
    for name in HARMLESS {
        fields.take(name);
    }
    Ok(())
}

impl Neutral {
    fn refused(&self, fields: &Fields) -> Problem {
        Problem::Unsupported {
            param: fields.path(self.name),
            accepted: self.accepted,
        }
    }
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

fn is_one(value: &Value) -> bool {
    value.as_f64() == Some(1.0)
}

fn is_zero(value: &Value) -> bool {
    value.as_f64() == Some(0.0)
}

fn is_true(value: &Value) -> bool {
    value == true
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

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    type Take = fn(&mut Fields) -> Result<(), Problem>;

    const ENDPOINTS: [(Take, &[Neutral]); 2] =
        [(take_for_chat, CHAT), (take_for_completion, COMPLETION)];

    fn taken(take: Take, body: Value) -> Result<(), Problem> {
        let mut fields = Fields::of_value(body, String::new())?;
        take(&mut fields)?;
        fields.finish()
    }

    /// A value of every kind: whatever is not the neutral one is refused by name, or by nobody.
    #[test]
    fn every_parameter_passes_with_the_value_that_asks_for_nothing_and_with_no_other() {
        let values = [
            json!(true),
            json!(false),
            json!(0),
            json!(1),
            json!(2),
            json!([]),
            json!([1]),
            json!({}),
            json!({"type": "text"}),
            json!(["text"]),
            json!({"a": 1}),
            json!(""),
            json!("none"),
            json!("auto"),
            json!("medium"),
            json!("x"),
        ];
        for (take, own) in ENDPOINTS {
            for parameter in BOTH.iter().chain(own) {
                let name = parameter.name;
                assert_eq!(taken(take, json!({ name: null })), Ok(()), "{name}");
                let passes = |value: &&Value| taken(take, json!({ name: value })).is_ok();
                let passing: Vec<_> = values.iter().filter(passes).collect();
                assert!(passing.len() <= 2, "{name} passes with {passing:?}");
                let none = parameter.accepted == "null";
                assert_eq!(passing.is_empty(), none, "{name} passes with {passing:?}");
                let refused = taken(take, json!({ name: { "a": 1 } }));
                let param = name.to_owned();
                let accepted = parameter.accepted;
                assert_eq!(refused, Err(Problem::Unsupported { param, accepted }));
            }
        }
    }

    #[test]
    fn tools_that_are_not_to_be_called_ask_for_nothing() {
        let tools = json!([{"type": "function"}]);
        let asked = |choice: Value| json!({"tools": tools, "tool_choice": choice});
        assert_eq!(taken(take_for_chat, asked(json!("none"))), Ok(()));
        assert!(taken(take_for_chat, asked(json!("auto"))).is_err());
        assert!(taken(take_for_chat, asked(Value::Null)).is_err());
    }
}
