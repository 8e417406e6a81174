//! The OpenAI API as data: request bodies read and checked, answers written. Nothing here runs a
//! request.
//!
//! What is accepted is the intersection of the OpenAI API with what the server does, plus `top_k`,
//! `min_p`, `repetition_penalty`, `ignore_eos`, `chat_template_kwargs`, `request_class` and `timeout_ms`. A parameter that the server knows and does not
//! do is refused by name unless its value changes nothing; an unknown one is refused by name, as
//! OpenAI does, because a misspelt `max_tokens` that is ignored costs more than one that is refused.

mod chat;
mod completion;
mod endpoint;
mod fields;
mod logprobs;
mod neutral;
mod options;
mod response;

pub use chat::{ChatRequest, Message, Role};
pub use completion::{CompletionRequest, Prompt};
pub use endpoint::Endpoint;
pub(crate) use fields::{Fields, syntax};
pub use logprobs::{Score, ScoredToken};
pub use options::{
    Options, STOP_BYTES_MAX, STOPS_MAX, SamplingOptions, StreamUsage, TIMEOUT_MS_MAX,
};
pub use response::{Body, Counted, Header, ModelList, ModelObject, Part, Timings};
