//! Log-probabilities and penalties through the whole edge: from a body to the backend, and from there
//! into each kind of answer.

use std::sync::mpsc::{Sender, channel};

use serde_json::{Value, json};
use serve_core::mock::Mock;
use serve_core::rng::Rng;
use serve_core::{Backend, BackendError, Limits, Sampling, StepOutcome, StepPlan};
use serve_http::EdgeSettings;
use serve_http::text::MockText;

use crate::support::{Script, Server, chunks, serving, streamed_text, user};

const CHAT: &str = "/v1/chat/completions";
const COMPLETION: &str = "/v1/completions";

async fn saying(answer: &str) -> Server {
    serving(Script::saying(answer), EdgeSettings::default()).await
}

/// `choices[0].logprobs.content` of a whole answer and of all chunks of a streamed one.
async fn content(server: &Server, body: Value) -> (Vec<Value>, Vec<Value>) {
    let whole = server.post(CHAT, body.clone()).await.json();
    let whole = whole["choices"][0]["logprobs"]["content"].as_array();
    let mut body = body;
    body["stream"] = true.into();
    let mut streamed = Vec::new();
    let mut text = String::new();
    for chunk in chunks(&server.post(CHAT, body).await.body) {
        let choice = &chunk["choices"][0];
        text.push_str(choice["delta"]["content"].as_str().unwrap_or_default());
        let tokens = choice["logprobs"]["content"].as_array();
        streamed.extend(tokens.into_iter().flatten().cloned());
        // In step: no text has come before the tokens that it is made of.
        let bytes = bytes_of(&streamed);
        let made = String::from_utf8_lossy(&bytes);
        assert!(made.starts_with(&text), "{text:?} of {made:?}");
    }
    (whole.cloned().unwrap_or_default(), streamed)
}

fn bytes_of(content: &[Value]) -> Vec<u8> {
    let bytes = content
        .iter()
        .flat_map(|token| token["bytes"].as_array().unwrap());
    bytes.map(|byte| byte.as_u64().unwrap() as u8).collect()
}

fn names(content: &[Value]) -> Vec<&str> {
    content
        .iter()
        .map(|token| token["token"].as_str().unwrap())
        .collect()
}

#[tokio::test]
async fn a_chat_is_told_what_each_token_is_made_of() {
    let server = saying("aé!").await;
    let body = json!({"messages": user("x"), "logprobs": true, "top_logprobs": 2});
    let (whole, streamed) = content(&server, body).await;
    assert_eq!(whole, streamed);
    assert_eq!(names(&whole), ["a", "\\xc3", "\\xa9", "!"]);
    assert_eq!(bytes_of(&whole), "aé!".as_bytes());
    for (index, token) in whole.iter().enumerate() {
        assert_eq!(token["logprob"], Script::logprob(index), "{token}");
        let top = token["top_logprobs"].as_array().unwrap();
        assert_eq!(top.len(), 2);
        assert_eq!(top[0]["token"], token["token"]);
        assert_eq!(top[1]["token"], "<end>");
    }
    server.settled().await;
}

#[tokio::test]
async fn without_alternatives_there_is_the_token_alone() {
    let server = saying("ab").await;
    let body = json!({"messages": user("x"), "logprobs": true});
    let (whole, streamed) = content(&server, body).await;
    assert_eq!(whole, streamed);
    assert_eq!(whole[1]["top_logprobs"], json!([]));
}

#[tokio::test]
async fn who_does_not_ask_is_told_null() {
    let server = saying("ab").await;
    for body in [
        json!({"messages": user("x")}),
        json!({"messages": user("x"), "logprobs": false, "top_logprobs": 0}),
        json!({"messages": user("x"), "stream": true}),
    ] {
        let answer = server.post(CHAT, body).await.body;
        assert!(answer.contains("\"logprobs\":null"), "{answer}");
        assert!(!answer.contains("\"logprobs\":{"), "{answer}");
    }
}

#[tokio::test]
async fn a_completion_has_four_lists_of_one_length() {
    let server = saying("aé!").await;
    let body = json!({"prompt": "x", "logprobs": 1});
    let whole = server.post(COMPLETION, body.clone()).await.json();
    let logprobs = &whole["choices"][0]["logprobs"];
    let tokens = json!(["a", "bytes:\\xc3", "bytes:\\xa9", "!"]);
    assert_eq!(logprobs["tokens"], tokens);
    assert_eq!(logprobs["text_offset"], json!([0, 1, 1, 2]));
    assert_eq!(logprobs["token_logprobs"][3], Script::logprob(3));
    assert_eq!(
        logprobs["top_logprobs"][3],
        json!({"!": Script::logprob(3)})
    );
    let mut body = body;
    body["stream"] = true.into();
    let chunks = chunks(&server.post(COMPLETION, body).await.body);
    assert_eq!(streamed_text(&chunks), "aé!");
    for list in ["tokens", "text_offset", "token_logprobs", "top_logprobs"] {
        let streamed = chunks.iter().filter_map(|chunk| {
            let logprobs = &chunk["choices"][0]["logprobs"];
            logprobs[list].as_array().cloned()
        });
        let streamed: Vec<Value> = streamed.flatten().collect();
        assert_eq!(Value::Array(streamed), logprobs[list], "{list}");
    }
}

#[tokio::test]
async fn tokens_behind_a_stop_string_are_not_told() {
    let server = saying("one END two").await;
    let body = json!({"messages": user("x"), "logprobs": true, "stop": "END"});
    let (whole, streamed) = content(&server, body).await;
    assert_eq!(bytes_of(&whole), b"one ");
    assert_eq!(whole, streamed);
}

/// Any bytes, any stop string: the tokens of a stream are those of the whole answer, and they are the
/// bytes of its text and no more.
#[tokio::test]
async fn tokens_are_in_step_with_any_text() {
    let mut rng = Rng::new(5);
    for _ in 0..40 {
        let alphabet = ['a', 'b', 'é', '世', '🎉'];
        let text: String = (0..12).map(|_| alphabet[rng.below(5) as usize]).collect();
        let server = saying(&text).await;
        let stop: String = (0..1 + rng.below(2))
            .map(|_| alphabet[rng.below(5) as usize])
            .collect();
        let expected = text.split(&stop).next().unwrap();
        let body = json!({"messages": user("x"), "logprobs": true, "stop": stop});
        let (whole, streamed) = content(&server, body).await;
        assert_eq!(String::from_utf8(bytes_of(&whole)).unwrap(), expected);
        assert_eq!(whole, streamed);
    }
}

#[tokio::test]
async fn tokens_without_text_are_told_at_the_end() {
    // The first byte of a character that does not come.
    let tokens = vec![MockText::byte(b'a'), MockText::byte(0xc3)];
    let server = serving(Script::tokens(tokens), EdgeSettings::default()).await;
    let body = json!({"messages": user("x"), "logprobs": true, "max_tokens": 2});
    let (whole, streamed) = content_lossy(&server, body).await;
    assert_eq!(names(&whole), ["a", "\\xc3"]);
    assert_eq!(whole, streamed);
}

/// [`content`] where bytes and text differ.
async fn content_lossy(server: &Server, mut body: Value) -> (Vec<Value>, Vec<Value>) {
    let whole = server.post(CHAT, body.clone()).await.json();
    let whole = whole["choices"][0]["logprobs"]["content"].clone();
    body["stream"] = true.into();
    let chunks = chunks(&server.post(CHAT, body).await.body);
    let tokens = chunks.iter().filter_map(|chunk| {
        let content = &chunk["choices"][0]["logprobs"]["content"];
        content.as_array().cloned()
    });
    (
        whole.as_array().unwrap().clone(),
        tokens.flatten().collect(),
    )
}

/// Tells how each request is to be sampled.
struct Listening(Mock, Sender<(Sampling, Option<u8>)>);

impl Backend for Listening {
    fn limits(&self) -> Limits {
        self.0.limits()
    }

    fn execute(&mut self, plan: &StepPlan, outcome: &mut StepOutcome) -> Result<(), BackendError> {
        for request in plan.starts() {
            let heard = (*request.sampling(), request.logprobs());
            self.1.send(heard).unwrap();
        }
        self.0.execute(plan, outcome)
    }
}

#[tokio::test]
async fn penalties_and_alternatives_reach_the_backend() {
    let (sender, heard) = channel();
    let server = serving(Listening(Mock::default(), sender), EdgeSettings::default()).await;
    // The warm-up.
    heard.recv().unwrap();
    let body = json!({"prompt": "x", "max_tokens": 1, "temperature": 0, "presence_penalty": -2,
                      "frequency_penalty": 0.5, "repetition_penalty": 1.25, "logprobs": 20, "seed": 1});
    assert_eq!(server.post(COMPLETION, body).await.status, 200);
    let expected = Sampling::GREEDY.with_presence_penalty(-2.0).unwrap();
    let expected = expected.with_frequency_penalty(0.5).unwrap();
    let expected = expected.with_repetition_penalty(1.25).unwrap().with_seed(1);
    assert_eq!(heard.recv().unwrap(), (expected, Some(20)));
    let body = json!({"messages": user("x"), "max_tokens": 1, "seed": 2, "logprobs": true});
    assert_eq!(server.post(CHAT, body).await.status, 200);
    assert_eq!(
        heard.recv().unwrap(),
        (Sampling::GREEDY.with_seed(2), Some(0))
    );
}
