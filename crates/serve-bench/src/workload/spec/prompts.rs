//! What is asked, and the form in which it is asked.

use std::num::NonZeroU32;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use super::{Lengths, Positive, Wrong};

/// Prompts of one kind.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
#[serde(deny_unknown_fields)]
pub struct PromptSet {
    /// What rows call it, such as `short`.
    pub name: String,
    /// How much of the whole, beside the shares of the others.
    #[serde(default = "Positive::one", skip_serializing_if = "Positive::is_one")]
    pub share: Positive,
    /// Prompts of random words, about so many tokens long. Instead of `file`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tokens: Option<Lengths>,
    /// Prompts from a JSONL file, from the folder of the specification: one object with `prompt` (a
    /// string) or `turns` (a list of strings) a line. Instead of `tokens`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub file: Option<PathBuf>,
    /// Tokens that the answer may have.
    pub output_tokens: Lengths,
    /// A beginning that many prompts share, as a system message.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub prefix: Option<SharedPrefix>,
    /// Conversations instead of single requests; each next turn carries what was said before. A file
    /// with `turns` gives conversations by itself.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub conversation: Option<Turns>,
}

/// A shared beginning.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq, Serialize)]
#[serde(deny_unknown_fields)]
pub struct SharedPrefix {
    /// About how long it is.
    pub tokens: NonZeroU32,
    /// How many different ones there are; each prompt draws one.
    #[serde(default = "one")]
    pub variants: NonZeroU32,
}

const fn one() -> NonZeroU32 {
    NonZeroU32::MIN
}

/// How long conversations are.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Turns {
    /// How many turns, of prompts made of words. A file has its own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub turns: Option<Lengths>,
    /// Milliseconds from the end of an answer to the next turn. Absent: none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub think_ms: Option<Lengths>,
}

impl PromptSet {
    /// A mix of short, medium and long questions and answers that fits into a context of 512 tokens
    /// by most vocabularies.
    pub fn builtin() -> Vec<Self> {
        let set = |name: &str, share: f64, prompt: (u32, u32), output: (u32, u32)| Self {
            name: name.to_owned(),
            share: Positive::try_from(share).unwrap_or(Positive::ONE),
            tokens: Some(Lengths::Uniform {
                min: prompt.0,
                max: prompt.1,
            }),
            file: None,
            output_tokens: Lengths::Uniform {
                min: output.0,
                max: output.1,
            },
            prefix: None,
            conversation: None,
        };
        vec![
            set("short", 6.0, (4, 16), (16, 64)),
            set("medium", 3.0, (16, 64), (32, 96)),
            set("long", 1.0, (64, 160), (16, 64)),
        ]
    }

    pub(super) fn wrong(&self, request: &RequestShape) -> Option<Wrong> {
        let cause = match (&self.tokens, &self.file) {
            (None, None) => "give tokens (random words) or file (a JSONL file of prompts)",
            (Some(_), Some(_)) => "give tokens or file, not both",
            (None, Some(_)) if request.endpoint == Endpoint::TokenIds => {
                "the endpoint token_ids sends random ids; give tokens, not a file of text"
            }
            (None, Some(_)) if self.turns().is_some() => {
                return Some(Wrong::new(
                    "conversation.turns",
                    "a file has its own turns; leave it out",
                ));
            }
            _ => "",
        };
        if !cause.is_empty() {
            return Some(Wrong::new("tokens", cause));
        }
        let turns = self
            .turns()
            .and_then(|turns| turns.wrong("conversation.turns", 1));
        let think = self
            .conversation
            .as_ref()
            .and_then(|turns| turns.think_ms.as_ref());
        let tokens = self
            .tokens
            .as_ref()
            .and_then(|tokens| tokens.wrong("tokens", 1));
        tokens
            .or_else(|| self.output_tokens.wrong("output_tokens", 1))
            .or(turns)
            .or_else(|| think.and_then(|think| think.wrong("conversation.think_ms", 0)))
    }

    fn turns(&self) -> Option<&Lengths> {
        self.conversation.as_ref()?.turns.as_ref()
    }
}

/// Where requests go, and in which form.
#[derive(Clone, Copy, Debug, Default, Deserialize, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Endpoint {
    /// `/v1/chat/completions`, messages of text.
    #[default]
    Chat,
    /// `/v1/completions`, a prompt of text.
    Completions,
    /// `/v1/completions`, a prompt of token ids: lengths are exact, and nothing is tokenised.
    TokenIds,
}

/// What a later turn of a conversation carries of the earlier answers.
#[derive(Clone, Copy, Debug, Default, Deserialize, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum History {
    /// What the server answered.
    #[default]
    Answers,
    /// Words that the seed draws, as many as the answer may have had tokens: the same bytes whatever
    /// the server says.
    Scripted,
}

/// Token ids to draw from.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Vocabulary {
    /// The smallest.
    pub min: u32,
    /// The greatest.
    pub max: u32,
}

/// The form of all requests.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct RequestShape {
    /// Where they go.
    pub endpoint: Endpoint,
    /// Whether answers are streamed.
    pub stream: bool,
    /// Whether the server is asked to count tokens in the stream (`stream_options.include_usage`).
    pub include_usage: bool,
    /// Whether the model's own end is ignored, so that each answer has the length that was drawn. Not
    /// part of the OpenAI API; serve, vLLM and llama.cpp understand it.
    pub ignore_eos: bool,
    /// The temperature. Absent: the server's own.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub temperature: Option<f64>,
    /// What later turns carry.
    pub history: History,
    /// How many tokens the model's vocabulary needs for a common English word. Words are cut to it.
    pub tokens_per_word: Positive,
    /// The ids of [`Endpoint::TokenIds`].
    #[serde(skip_serializing_if = "Option::is_none")]
    pub vocabulary: Option<Vocabulary>,
    /// More for the body of each request.
    #[serde(skip_serializing_if = "toml::Table::is_empty")]
    pub extra: toml::Table,
}

impl Default for RequestShape {
    fn default() -> Self {
        Self {
            endpoint: Endpoint::Chat,
            stream: true,
            include_usage: true,
            ignore_eos: false,
            temperature: Some(0.0),
            history: History::Answers,
            tokens_per_word: Positive::ONE,
            vocabulary: None,
            extra: toml::Table::new(),
        }
    }
}

impl RequestShape {
    pub(super) fn wrong(&self) -> Option<Wrong> {
        let key = "request.vocabulary";
        match (self.endpoint, self.vocabulary) {
            (Endpoint::TokenIds, None) => {
                let cause = "the endpoint token_ids needs it: { min = .., max = .. }, ids of ordinary tokens";
                Some(Wrong::new(key, cause))
            }
            (_, Some(Vocabulary { min, max })) if min > max => Some(Wrong::new(
                key,
                format!("min {min} and max {max}; accepted is min <= max"),
            )),
            _ => None,
        }
    }
}
