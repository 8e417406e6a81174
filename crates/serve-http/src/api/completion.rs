//! The body of `POST /v1/completions`.

use serde_json::Value;
use serve_core::TokenId;

use super::fields::{Fields, wrong_type, wrong_value};
use super::neutral;
use super::options::Options;
use crate::error::Problem;

/// A text to continue.
#[derive(Clone, Debug, PartialEq)]
pub struct CompletionRequest {
    /// What to continue.
    pub prompt: Prompt,
    /// How the answer is to be made.
    pub options: Options,
}

/// What to continue.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Prompt {
    /// A text, not empty.
    Text(String),
    /// Tokens, at least one; not yet checked against a vocabulary.
    Tokens(Vec<TokenId>),
}

const ACCEPTED: &str = "a string, an array of one string, an array of token ids, or an array of one such array; not empty";

impl CompletionRequest {
    /// Reads and checks a body.
    ///
    /// # Errors
    ///
    /// A [`Problem`] that names the first parameter that is wrong.
    pub fn parse(body: &[u8]) -> Result<Self, Problem> {
        let mut fields = Fields::of_body(body)?;
        let prompt = prompt(fields.require("prompt", ACCEPTED)?)?;
        let mut options = Options::take(&mut fields)?;
        options.take_completion_logprobs(&mut fields)?;
        neutral::take_for_completion(&mut fields)?;
        fields.finish()?;
        Ok(Self { prompt, options })
    }
}

fn prompt(value: Value) -> Result<Prompt, Problem> {
    let refused = |value: &Value| Err(wrong_value("prompt", ACCEPTED, value));
    match value {
        Value::String(text) if !text.is_empty() => Ok(Prompt::Text(text)),
        Value::Array(items) => match items.as_slice() {
            [Value::String(text)] if !text.is_empty() => Ok(Prompt::Text(text.clone())),
            [Value::Number(_), ..] => tokens("prompt", &items),
            // Libraries that ask for many prompts at once send a list of them also where it is one.
            [Value::Array(ids)] if !ids.is_empty() => tokens("prompt[0]", ids),
            _ => refused(&Value::Array(items)),
        },
        Value::String(_) => refused(&value),
        other => Err(wrong_type("prompt", ACCEPTED, &other)),
    }
}

fn tokens(path: &str, items: &[Value]) -> Result<Prompt, Problem> {
    let token = |(index, item): (usize, &Value)| {
        let id = item.as_u64().and_then(|id| u32::try_from(id).ok());
        id.map(TokenId::new)
            .ok_or_else(|| wrong_value(&format!("{path}[{index}]"), "a token id", item))
    };
    let ids: Result<Vec<_>, _> = items.iter().enumerate().map(token).collect();
    Ok(Prompt::Tokens(ids?))
}
