//! The body of `POST /v1/chat/completions`.

use serde_json::{Map, Value};

use super::fields::{Fields, wrong_type, wrong_value};
use super::neutral;
use super::options::Options;
use crate::error::Problem;

/// A chat to continue.
#[derive(Clone, Debug, PartialEq)]
pub struct ChatRequest {
    /// The conversation so far; at least one message.
    pub messages: Vec<Message>,
    /// Variables for the chat template, such as `enable_thinking` of Qwen3.
    pub template_variables: Map<String, Value>,
    /// How the answer is to be made.
    pub options: Options,
}

/// One message of a conversation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Message {
    /// Who speaks.
    pub role: Role,
    /// What is said; text parts are joined by line breaks.
    pub content: String,
    /// The participant's name, for templates that show it.
    pub name: Option<String>,
}

/// Who speaks. `developer` is read as `system`, of which it is the newer name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// The instructions.
    System,
    /// The person.
    User,
    /// The model.
    Assistant,
    /// What a tool answered.
    Tool,
}

const ROLES: &str = "\"system\", \"developer\", \"user\", \"assistant\" or \"tool\"";
const MESSAGES: &str = "an array of at least one message";
const CONTENT: &str = "a string or an array of text parts";

impl ChatRequest {
    /// Reads and checks a body.
    ///
    /// # Errors
    ///
    /// A [`Problem`] that names the first parameter that is wrong.
    pub fn parse(body: &[u8]) -> Result<Self, Problem> {
        let mut fields = Fields::of_body(body)?;
        let messages = messages(fields.require("messages", MESSAGES)?)?;
        let template_variables = fields.object("chat_template_kwargs")?.unwrap_or_default();
        let mut options = Options::take(&mut fields)?;
        options.take_chat_logprobs(&mut fields)?;
        neutral::take_for_chat(&mut fields)?;
        fields.finish()?;
        Ok(Self {
            messages,
            template_variables,
            options,
        })
    }
}

impl Role {
    /// The name that chat templates know.
    pub fn name(self) -> &'static str {
        match self {
            Self::System => "system",
            Self::User => "user",
            Self::Assistant => "assistant",
            Self::Tool => "tool",
        }
    }

    fn parse(name: &str) -> Option<Self> {
        Some(match name {
            "system" | "developer" => Self::System,
            "user" => Self::User,
            "assistant" => Self::Assistant,
            "tool" => Self::Tool,
            _ => return None,
        })
    }
}

fn messages(value: Value) -> Result<Vec<Message>, Problem> {
    match value {
        Value::Array(items) if !items.is_empty() => {
            items.into_iter().enumerate().map(message).collect()
        }
        Value::Array(_) => Err(Problem::Value {
            param: "messages".to_owned(),
            accepted: MESSAGES.to_owned(),
            given: "an empty one".to_owned(),
        }),
        other => Err(wrong_type("messages", MESSAGES, &other)),
    }
}

fn message((index, value): (usize, Value)) -> Result<Message, Problem> {
    let mut fields = Fields::of_value(value, format!("messages[{index}]"))?;
    let role = match fields.require("role", ROLES)? {
        Value::String(name) => Role::parse(&name)
            .ok_or_else(|| wrong_value(&fields.path("role"), ROLES, &Value::String(name)))?,
        other => return Err(wrong_type(&fields.path("role"), ROLES, &other)),
    };
    let content = match fields.require("content", CONTENT)? {
        Value::String(text) => text,
        Value::Array(parts) => joined(parts, &fields.path("content"))?,
        other => return Err(wrong_type(&fields.path("content"), CONTENT, &other)),
    };
    let name = fields.string("name")?;
    if role == Role::Tool {
        fields.string("tool_call_id")?;
    }
    if role == Role::Assistant {
        for unsupported in ["tool_calls", "function_call", "audio"] {
            let neutral = |value: &Value| value.as_array().is_some_and(Vec::is_empty);
            if fields.take(unsupported).is_some_and(|v| !neutral(&v)) {
                return Err(Problem::Unsupported {
                    param: fields.path(unsupported),
                    accepted: "null",
                });
            }
        }
        // What earlier answers of this API carry, and clients send back as they got it.
        for echoed in [
            "refusal",
            "annotations",
            "reasoning_content",
            "reasoning",
            "id",
        ] {
            fields.take(echoed);
        }
    }
    fields.finish()?;
    Ok(Message {
        role,
        content,
        name,
    })
}

/// The text of an array of `{"type": "text", "text": ".."}`.
fn joined(parts: Vec<Value>, path: &str) -> Result<String, Problem> {
    let read = |(index, part)| {
        let mut fields = Fields::of_value(part, format!("{path}[{index}]"))?;
        let kind = fields.require("type", "\"text\"")?;
        if kind != "text" {
            return Err(wrong_value(&fields.path("type"), "\"text\"", &kind));
        }
        // Where a client would have its prompt cached; here all of it is.
        fields.take("cache_control");
        match fields.require("text", "a string")? {
            Value::String(text) => fields.finish().map(|()| text),
            other => Err(wrong_type(&fields.path("text"), "a string", &other)),
        }
    };
    let texts: Result<Vec<_>, _> = parts.into_iter().enumerate().map(read).collect();
    Ok(texts?.join("\n"))
}
