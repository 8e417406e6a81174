//! The JSON of a request.

use std::sync::Arc;

use serde_json::{Map, Value, json};

use crate::transport::drive::Call;
use crate::workload::Prompt;
use crate::workload::spec::{Endpoint, Spec};

/// The body of an attempt.
pub(super) fn render(spec: &Spec, model: &str, call: &Call<'_>) -> Vec<u8> {
    let shape = &spec.request;
    let planned = call.planned;
    let mut body = Map::new();
    body.insert("model".to_owned(), model.into());
    match shape.endpoint {
        Endpoint::Chat => body.insert("messages".to_owned(), messages(call)),
        Endpoint::Completions | Endpoint::TokenIds => {
            body.insert("prompt".to_owned(), prompt(call))
        }
    };
    body.insert("max_tokens".to_owned(), planned.output_tokens_max.into());
    if let Some(temperature) = shape.temperature {
        body.insert("temperature".to_owned(), temperature.into());
    }
    body.insert("seed".to_owned(), planned.seed.into());
    if shape.ignore_eos {
        body.insert("ignore_eos".to_owned(), true.into());
    }
    body.insert("stream".to_owned(), shape.stream.into());
    if shape.stream && shape.include_usage {
        body.insert("stream_options".to_owned(), json!({"include_usage": true}));
    }
    let class = call
        .conversation
        .class
        .map(|class| &spec.classes[class].extra);
    for (key, value) in shape.extra.iter().chain(class.into_iter().flatten()) {
        // A TOML value always has a JSON form; a date becomes its text.
        body.insert(key.clone(), serde_json::to_value(value).unwrap_or_default());
    }
    Value::Object(body).to_string().into_bytes()
}

fn messages(call: &Call<'_>) -> Value {
    let message = |role: &str, content: &str| json!({"role": role, "content": content});
    let mut messages = Vec::with_capacity(2 + 2 * call.history.len());
    if let Some(Prompt::Text(shared)) = &call.conversation.shared {
        messages.push(message("system", shared));
    }
    for (said, answer) in call.history {
        if let Prompt::Text(said) = said {
            messages.push(message("user", said));
        }
        messages.push(message("assistant", answer));
    }
    if let Prompt::Text(said) = &call.planned.prompt {
        messages.push(message("user", said));
    }
    Value::Array(messages)
}

/// Everything said so far in one piece. Answers come as text, so that a conversation in token ids
/// carries its own side alone.
fn prompt(call: &Call<'_>) -> Value {
    let shared = call.conversation.shared.iter();
    let before = call
        .history
        .iter()
        .flat_map(|(said, answer)| [said.clone(), Prompt::Text(Arc::clone(answer))]);
    let parts = shared
        .cloned()
        .chain(before)
        .chain([call.planned.prompt.clone()]);
    let parts = parts.collect::<Vec<_>>();
    let ids = parts.iter().filter_map(|part| match part {
        Prompt::Ids(ids) => Some(ids.as_ref()),
        Prompt::Text(_) => None,
    });
    let ids = ids.flatten().copied().collect::<Vec<_>>();
    if !ids.is_empty() {
        return ids.into();
    }
    let texts = parts.iter().filter_map(|part| match part {
        Prompt::Text(text) => Some(text.as_ref()),
        Prompt::Ids(_) => None,
    });
    texts.collect::<Vec<_>>().join("\n").into()
}
