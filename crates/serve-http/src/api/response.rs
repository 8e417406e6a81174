//! The bodies of answers, whole and in chunks.

use serde::Serialize;
use serve_core::{FinishReason, Usage};

use super::endpoint::Endpoint;
use super::logprobs::{LogprobsBody, ScoredToken};

/// What all bodies of one answer have in common.
#[derive(Clone, Debug)]
pub struct Header {
    /// The answer's id.
    pub id: String,
    /// The endpoint.
    pub endpoint: Endpoint,
    /// When the request came, in seconds since 1970.
    pub created: u64,
    /// The model's name.
    pub model: String,
}

/// The piece of an answer that a body carries.
#[derive(Clone, Copy, Debug, Default)]
pub struct Part<'a> {
    /// Text; absent in a chunk that only says why the answer ended.
    pub text: Option<&'a str>,
    /// The tokens that begin in it, for a client that asks for log-probabilities.
    pub tokens: Option<&'a [ScoredToken]>,
    /// Whether this is a chat's first chunk, which names the role.
    pub first: bool,
    /// Why the answer ended, in the body that ends it.
    pub finish: Option<FinishReason>,
}

impl Header {
    /// The body of a whole answer, with its tokens for a client that asks for log-probabilities.
    pub fn whole<'a>(
        &'a self,
        text: &'a str,
        tokens: Option<&'a [ScoredToken]>,
        finish: FinishReason,
        usage: &Counted,
    ) -> Body<'a> {
        let logprobs = self.logprobs(tokens);
        let choice = match self.endpoint {
            Endpoint::Chat => Choice {
                message: Some(Text::Message {
                    role: "assistant",
                    content: text,
                    refusal: None,
                }),
                logprobs,
                ..Choice::ended(finish)
            },
            Endpoint::Completion => Choice {
                text: Some(text),
                logprobs,
                ..Choice::ended(finish)
            },
        };
        let object = match self.endpoint {
            Endpoint::Chat => "chat.completion",
            Endpoint::Completion => "text_completion",
        };
        self.body(object, Some(choice), Some(Some(usage.body())))
    }

    /// One chunk of a stream. `usage` says whether the stream's last chunk will hold the usage:
    /// then each chunk before it says that it does not.
    pub fn chunk<'a>(&'a self, part: Part<'a>, usage: bool) -> Body<'a> {
        let logprobs = self.logprobs(part.tokens);
        let choice = match self.endpoint {
            Endpoint::Chat => Choice {
                delta: Some(Text::Delta {
                    role: part.first.then_some("assistant"),
                    content: part.text,
                }),
                logprobs,
                finish_reason: part.finish.map(finish_name),
                ..Choice::default()
            },
            Endpoint::Completion => Choice {
                text: Some(part.text.unwrap_or_default()),
                logprobs,
                finish_reason: part.finish.map(finish_name),
                ..Choice::default()
            },
        };
        self.body(self.chunk_object(), Some(choice), usage.then_some(None))
    }

    /// The chunk that holds the usage and no choice.
    pub fn usage_chunk(&self, usage: &Counted) -> Body<'_> {
        self.body(self.chunk_object(), None, Some(Some(usage.body())))
    }

    fn logprobs<'a>(&self, tokens: Option<&'a [ScoredToken]>) -> Option<LogprobsBody<'a>> {
        tokens.map(|tokens| LogprobsBody::of(self.endpoint, tokens))
    }

    fn chunk_object(&self) -> &'static str {
        match self.endpoint {
            Endpoint::Chat => "chat.completion.chunk",
            Endpoint::Completion => "text_completion",
        }
    }

    fn body<'a>(
        &'a self,
        object: &'static str,
        choice: Option<Choice<'a>>,
        usage: Option<Option<UsageBody>>,
    ) -> Body<'a> {
        Body {
            id: &self.id,
            object,
            created: self.created,
            model: &self.model,
            choices: choice.into_iter().collect(),
            usage,
            timings: None,
        }
    }
}

/// Where the time of one answer went, on the server's side, and what it cost others to wait.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Timings {
    /// Milliseconds from the arrival to the first step.
    pub queue_ms: f64,
    /// Milliseconds from there to the first token.
    pub prefill_ms: f64,
    /// Milliseconds from there to the end.
    pub decode_ms: f64,
    /// Times that the request had to wait again after it had begun; unknown, as `cached_tokens` is,
    /// when a stop string ended the answer before the engine had reported it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub preemptions: Option<u32>,
    /// Prompt tokens that came from the prefix cache.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cached_tokens: Option<u32>,
}

/// Tokens of one answer as the client is told of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Counted {
    /// Tokens in the prompt.
    pub prompt_tokens: u32,
    /// Tokens that the answer is made of.
    pub output_tokens: u32,
    /// Prompt tokens that came from the prefix cache; unknown when a stop string ended the answer
    /// before the engine had reported it.
    pub cached_tokens: Option<u32>,
}

impl Counted {
    fn body(&self) -> UsageBody {
        UsageBody {
            prompt_tokens: self.prompt_tokens,
            completion_tokens: self.output_tokens,
            total_tokens: u64::from(self.prompt_tokens) + u64::from(self.output_tokens),
            prompt_tokens_details: self
                .cached_tokens
                .map(|cached_tokens| PromptDetails { cached_tokens }),
        }
    }
}

impl From<Usage> for Counted {
    fn from(usage: Usage) -> Self {
        Self {
            prompt_tokens: usage.prompt_tokens,
            output_tokens: usage.output_tokens,
            cached_tokens: Some(usage.cached_tokens),
        }
    }
}

/// One JSON body: an answer or a chunk of one.
#[derive(Debug, Serialize)]
pub struct Body<'a> {
    id: &'a str,
    object: &'static str,
    created: u64,
    model: &'a str,
    choices: Vec<Choice<'a>>,
    // Absent, null, or there: three different things to a client.
    #[serde(skip_serializing_if = "Option::is_none")]
    usage: Option<Option<UsageBody>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    timings: Option<Timings>,
}

impl Body<'_> {
    /// The same with what the answer has used so far.
    #[must_use]
    pub fn counted(mut self, usage: &Counted) -> Self {
        self.usage = Some(Some(usage.body()));
        self
    }

    /// The same with the timings: the last body of an answer has them.
    #[must_use]
    pub fn timed(mut self, timings: Timings) -> Self {
        self.timings = Some(timings);
        self
    }
}

#[derive(Debug, Default, Serialize)]
struct Choice<'a> {
    index: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    message: Option<Text<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    delta: Option<Text<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    text: Option<&'a str>,
    logprobs: Option<LogprobsBody<'a>>,
    finish_reason: Option<&'static str>,
}

impl Choice<'_> {
    fn ended(finish: FinishReason) -> Self {
        Self {
            finish_reason: Some(finish_name(finish)),
            ..Self::default()
        }
    }
}

#[derive(Debug, Serialize)]
#[serde(untagged)]
enum Text<'a> {
    Message {
        role: &'static str,
        content: &'a str,
        refusal: Option<()>,
    },
    Delta {
        #[serde(skip_serializing_if = "Option::is_none")]
        role: Option<&'static str>,
        #[serde(skip_serializing_if = "Option::is_none")]
        content: Option<&'a str>,
    },
}

#[derive(Debug, Serialize)]
struct UsageBody {
    prompt_tokens: u32,
    completion_tokens: u32,
    total_tokens: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    prompt_tokens_details: Option<PromptDetails>,
}

#[derive(Debug, Serialize)]
struct PromptDetails {
    cached_tokens: u32,
}

/// The body of `GET /v1/models`.
#[derive(Debug, Serialize)]
pub struct ModelList<'a> {
    object: &'static str,
    data: Vec<ModelObject<'a>>,
}

/// One model in it, also the body of `GET /v1/models/{name}`.
#[derive(Debug, Serialize)]
pub struct ModelObject<'a> {
    id: &'a str,
    object: &'static str,
    created: u64,
    owned_by: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    context_length: Option<u32>,
    /// The same, by the name that vLLM's clients look for.
    #[serde(skip_serializing_if = "Option::is_none")]
    max_model_len: Option<u32>,
}

impl<'a> ModelObject<'a> {
    /// The model `name`, served since `created`, of which one request can hold `context_length`
    /// tokens, if that is known.
    pub fn new(name: &'a str, created: u64, context_length: Option<u32>) -> Self {
        Self {
            id: name,
            object: "model",
            created,
            owned_by: "serve",
            context_length,
            max_model_len: context_length,
        }
    }

    /// The name that clients ask for.
    pub fn id(&self) -> &str {
        self.id
    }
}

impl<'a> From<ModelObject<'a>> for ModelList<'a> {
    fn from(model: ModelObject<'a>) -> Self {
        Self {
            object: "list",
            data: vec![model],
        }
    }
}

fn finish_name(finish: FinishReason) -> &'static str {
    match finish {
        FinishReason::Stop => "stop",
        FinishReason::Length => "length",
    }
}
