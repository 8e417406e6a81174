//! One attempt over HTTP: a streamed chat completion from any server that speaks the OpenAI API.

use std::fmt::Display;

use futures::StreamExt;
use reqwest::{Client, Response, StatusCode};
use serde::Deserialize;
use serde_json::json;
use thiserror::Error;

use crate::drive::{Attempt, AttemptError, Transport};
use crate::sse::Decoder;
use crate::workload::Planned;

/// A server that cannot be measured.
#[derive(Debug, Error)]
pub enum TargetError {
    /// The address is of another kind.
    #[error("{0} is no server address; accepted is http://HOST:PORT")]
    Address(String),
    /// No client can be made.
    #[error("no HTTP client: {0}")]
    Client(reqwest::Error),
    /// The server does not say which models it has.
    #[error("GET {url} gave no model ({cause}); is the server up? Or name one with --model")]
    Models {
        /// What was asked.
        url: String,
        /// What came of it.
        cause: String,
    },
}

/// A server, and the model to ask for.
#[derive(Clone, Debug)]
pub struct Target {
    client: Client,
    completions: String,
    model: String,
    key: Option<String>,
}

impl Target {
    /// The server at `address`, such as `http://127.0.0.1:8000`; a trailing `/v1` is accepted. Without
    /// a `model`, the first one that the server lists.
    ///
    /// # Errors
    ///
    /// [`TargetError`] when the address is no HTTP address or the server lists no model.
    pub async fn new(
        address: &str,
        model: Option<String>,
        key: Option<String>,
    ) -> Result<Self, TargetError> {
        let base = address.trim_end_matches('/');
        let base = base.strip_suffix("/v1").unwrap_or(base);
        if base
            .strip_prefix("http://")
            .is_none_or(|host| host.is_empty())
        {
            return Err(TargetError::Address(address.to_owned()));
        }
        // A proxy between client and server would be measured with it.
        let client = Client::builder()
            .no_proxy()
            .build()
            .map_err(TargetError::Client)?;
        let model = match model {
            Some(model) => model,
            None => first_model(&client, &format!("{base}/v1/models"), key.as_deref()).await?,
        };
        Ok(Self {
            client,
            completions: format!("{base}/v1/chat/completions"),
            model,
            key,
        })
    }

    /// The model that is asked for.
    pub fn model(&self) -> &str {
        &self.model
    }
}

async fn first_model(client: &Client, url: &str, key: Option<&str>) -> Result<String, TargetError> {
    #[derive(Deserialize)]
    struct Models {
        data: Vec<Model>,
    }
    #[derive(Deserialize)]
    struct Model {
        id: String,
    }
    let failed = |cause: &dyn Display| TargetError::Models {
        url: url.to_owned(),
        cause: cause.to_string(),
    };
    let mut request = client.get(url);
    if let Some(key) = key {
        request = request.bearer_auth(key);
    }
    let response = request.send().await.and_then(Response::error_for_status);
    let models = response.map_err(|error| failed(&chain(&error)))?;
    let models: Models = models
        .json()
        .await
        .map_err(|error| failed(&chain(&error)))?;
    let first = models.data.into_iter().next();
    first
        .map(|model| model.id)
        .ok_or_else(|| failed(&"the list is empty"))
}

/// What a chunk of a streamed completion may hold; all else is left alone.
#[derive(Deserialize)]
struct Chunk {
    #[serde(default)]
    choices: Vec<Choice>,
    usage: Option<Usage>,
    error: Option<serde_json::Value>,
}

#[derive(Deserialize)]
struct Choice {
    #[serde(default)]
    delta: Delta,
    finish_reason: Option<String>,
}

#[derive(Default, Deserialize)]
struct Delta {
    content: Option<String>,
}

#[derive(Deserialize)]
struct Usage {
    prompt_tokens: Option<u32>,
    completion_tokens: Option<u32>,
}

impl Transport for Target {
    async fn send(&self, request: &Planned, attempt: &mut Attempt) -> Result<(), AttemptError> {
        let body = json!({
            "model": self.model,
            "messages": [{"role": "user", "content": &*request.prompt}],
            "max_tokens": request.output_tokens_max,
            "temperature": 0,
            "seed": request.seed,
            "stream": true,
            "stream_options": {"include_usage": true},
        });
        let mut post = self.client.post(&self.completions).json(&body);
        if let Some(key) = &self.key {
            post = post.bearer_auth(key);
        }
        let response = post.send().await.map_err(|error| failed(chain(&error)))?;
        let status = response.status();
        attempt.headers(status.as_u16());
        if !status.is_success() {
            return Err(refusal(status, response).await);
        }
        read_stream(response, attempt).await
    }
}

/// Reads chunks up to `[DONE]`. A stream that ends without it is whole if a finish reason came.
async fn read_stream(response: Response, attempt: &mut Attempt) -> Result<(), AttemptError> {
    let mut bytes = response.bytes_stream();
    let mut decoder = Decoder::new();
    let (mut done, mut finished, mut error) = (false, false, None);
    while let Some(piece) = bytes.next().await {
        let piece = piece.map_err(|error| failed(chain(&error)))?;
        decoder.push(&piece, |data| {
            if data == "[DONE]" {
                done = true;
                return;
            }
            match serde_json::from_str::<Chunk>(data) {
                Ok(chunk) => match chunk.error {
                    Some(cause) => error = Some(failed(format!("the server sent {cause}"))),
                    None => finished |= note(chunk, attempt),
                },
                Err(cause) => error = Some(failed(format!("a chunk is no JSON object: {cause}"))),
            }
        });
        if let Some(error) = error {
            return Err(error);
        }
        if done {
            return Ok(());
        }
    }
    match finished {
        true => Ok(()),
        false => Err(failed("the stream ended without a finish reason")),
    }
}

/// Notes what a chunk says; true if the answer is finished.
fn note(chunk: Chunk, attempt: &mut Attempt) -> bool {
    let mut finished = false;
    let has_text = |choice: &Choice| {
        choice
            .delta
            .content
            .as_ref()
            .is_some_and(|text| !text.is_empty())
    };
    if chunk.choices.iter().any(has_text) {
        attempt.text();
    }
    for reason in chunk
        .choices
        .into_iter()
        .filter_map(|choice| choice.finish_reason)
    {
        attempt.finish_reason(reason);
        finished = true;
    }
    if let Some(usage) = chunk.usage {
        attempt.usage(usage.prompt_tokens, usage.completion_tokens);
    }
    finished
}

async fn refusal(status: StatusCode, response: Response) -> AttemptError {
    let body = response.text().await.unwrap_or_default();
    let message = serde_json::from_str::<serde_json::Value>(&body).ok();
    let message =
        message.and_then(|json| Some(json.get("error")?.get("message")?.as_str()?.to_owned()));
    let message = format!("{status}: {}", message.unwrap_or(body));
    match status {
        StatusCode::TOO_MANY_REQUESTS | StatusCode::SERVICE_UNAVAILABLE => {
            AttemptError::Refused(message)
        }
        _ => AttemptError::Failed(message),
    }
}

fn failed(cause: impl Into<String>) -> AttemptError {
    AttemptError::Failed(cause.into())
}

/// An error with its causes: what reqwest says alone hides why.
fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        text = format!("{text}: {cause}");
        source = cause.source();
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn an_address_of_another_kind_is_refused() {
        for address in ["https://example.org", "127.0.0.1:8000", "http://", ""] {
            let error = Target::new(address, Some("m".to_owned()), None)
                .await
                .unwrap_err();
            assert!(matches!(error, TargetError::Address(_)), "{address}");
        }
    }

    #[tokio::test]
    async fn a_base_with_or_without_its_version_is_the_same_server() {
        for address in [
            "http://h:1",
            "http://h:1/",
            "http://h:1/v1",
            "http://h:1/v1/",
        ] {
            let target = Target::new(address, Some("m".to_owned()), None)
                .await
                .unwrap();
            assert_eq!(target.completions, "http://h:1/v1/chat/completions");
        }
    }
}
