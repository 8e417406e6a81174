//! Every bad input in one table: what is sent, and the status, code and parameter that come back.

use axum::body::Body;
use axum::http::Request;
use serde_json::{Value, json};
use serve_http::{ConnectionSettings, EdgeSettings};

use crate::support::{Answer, Script, Server, post, serving, user};

const CHAT: &str = "/v1/chat/completions";
const COMPLETION: &str = "/v1/completions";

/// Checks the error object's shape, and its code, parameter and message.
fn check(what: &str, answer: &Answer, status: u16, code: &str, param: Option<&str>, says: &str) {
    assert_eq!(answer.status, status, "{what}: {}", answer.body);
    let error = &answer.json()["error"];
    let keys: Vec<&String> = error.as_object().unwrap().keys().collect();
    assert_eq!(keys, ["message", "type", "param", "code"], "{what}");
    assert_eq!(error["code"], code, "{what}: {}", answer.body);
    assert_eq!(error["param"].as_str(), param, "{what}: {}", answer.body);
    let message = error["message"].as_str().unwrap();
    assert!(
        message.contains(says),
        "{what}: {message:?} does not say {says:?}"
    );
    assert!(answer.headers.contains_key("x-request-id"), "{what}");
}

async fn server() -> Server {
    serving(Script::saying("a"), EdgeSettings::default()).await
}

#[tokio::test]
async fn every_wrong_chat_is_refused_by_the_name_of_what_is_wrong() {
    let server = server().await;
    let ok = || json!({"messages": user("x")});
    // (set to this, code, param, what the message says)
    let table: Vec<(Value, &str, &str, &str)> = vec![
        (
            json!({"messages": null}),
            "missing_required_parameter",
            "messages",
            "at least one message",
        ),
        (
            json!({"messages": []}),
            "invalid_value",
            "messages",
            "at least one message",
        ),
        (
            json!({"messages": "hi"}),
            "invalid_type",
            "messages",
            "not a string",
        ),
        (
            json!({"messages": ["hi"]}),
            "invalid_type",
            "messages[0]",
            "a JSON object",
        ),
        (
            json!({"messages": [{"content": "x"}]}),
            "missing_required_parameter",
            "messages[0].role",
            "\"user\"",
        ),
        (
            json!({"messages": [{"role": "robot", "content": "x"}]}),
            "invalid_value",
            "messages[0].role",
            "\"robot\"",
        ),
        (
            json!({"messages": [{"role": 1, "content": "x"}]}),
            "invalid_type",
            "messages[0].role",
            "a number",
        ),
        (
            json!({"messages": [{"role": "user"}]}),
            "missing_required_parameter",
            "messages[0].content",
            "a string",
        ),
        (
            json!({"messages": [{"role": "user", "content": 1}]}),
            "invalid_type",
            "messages[0].content",
            "text parts",
        ),
        (
            json!({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}),
            "invalid_value",
            "messages[0].content[0].type",
            "\"text\"",
        ),
        (
            json!({"messages": [{"role": "user", "content": [{"type": "text", "text": 5}]}]}),
            "invalid_type",
            "messages[0].content[0].text",
            "a string",
        ),
        (
            json!({"messages": [{"role": "user", "content": "x", "colour": 1}]}),
            "unknown_parameter",
            "messages[0].colour",
            "not a known",
        ),
        (
            json!({"messages": [{"role": "assistant", "content": "x", "tool_calls": [{}]}]}),
            "unsupported_parameter",
            "messages[0].tool_calls",
            "not supported",
        ),
        (json!({"model": 5}), "invalid_type", "model", "a string"),
        (
            json!({"stream": "yes"}),
            "invalid_type",
            "stream",
            "true or false",
        ),
        (
            json!({"stream_options": {"include_usage": true}}),
            "conflicting_parameters",
            "stream_options",
            "stream is true",
        ),
        (
            json!({"stream": true, "stream_options": {"usage": true}}),
            "unknown_parameter",
            "stream_options.usage",
            "known",
        ),
        (
            json!({"max_tokens": 0}),
            "invalid_value",
            "max_tokens",
            "from 1 to",
        ),
        (
            json!({"max_tokens": -5}),
            "invalid_value",
            "max_tokens",
            "not -5",
        ),
        (
            json!({"max_tokens": 1.5}),
            "invalid_value",
            "max_tokens",
            "an integer",
        ),
        (
            json!({"max_tokens": "10"}),
            "invalid_type",
            "max_tokens",
            "not a string",
        ),
        (
            json!({"max_tokens": 1e30}),
            "invalid_value",
            "max_tokens",
            "an integer",
        ),
        (
            json!({"max_tokens": u64::MAX}),
            "invalid_value",
            "max_tokens",
            "an integer",
        ),
        (
            json!({"max_tokens": 5, "max_completion_tokens": 6}),
            "conflicting_parameters",
            "max_tokens",
            "one limit",
        ),
        (
            json!({"max_tokens": 4_000_000_000_u32}),
            "context_length_exceeded",
            "max_tokens",
            "maximum context length is 128 tokens in all",
        ),
        (
            json!({"max_completion_tokens": 128}),
            "context_length_exceeded",
            "max_tokens",
            "maximum context length is 128 tokens in all",
        ),
        (
            json!({"messages": user(&"x".repeat(500))}),
            "context_length_exceeded",
            "messages",
            "maximum context length is 128 tokens in all",
        ),
        (
            json!({"temperature": -0.5}),
            "invalid_value",
            "temperature",
            "from 0 to 100",
        ),
        (
            json!({"temperature": 1e300}),
            "invalid_value",
            "temperature",
            "from 0 to 100",
        ),
        (
            json!({"temperature": "hot"}),
            "invalid_type",
            "temperature",
            "a number",
        ),
        (json!({"top_p": 0}), "invalid_value", "top_p", "at most 1"),
        (json!({"top_p": 1.1}), "invalid_value", "top_p", "at most 1"),
        (json!({"min_p": 1}), "invalid_value", "min_p", "less than 1"),
        (json!({"top_k": -2}), "invalid_value", "top_k", "from -1"),
        (json!({"seed": 0.5}), "invalid_value", "seed", "an integer"),
        (json!({"seed": 1e40}), "invalid_value", "seed", "an integer"),
        (
            json!({"stop": 5}),
            "invalid_type",
            "stop",
            "up to 16 strings",
        ),
        (
            json!({"stop": vec!["a"; 17]}),
            "invalid_value",
            "stop",
            "17 of them",
        ),
        (
            json!({"stop": ["a", 5]}),
            "invalid_type",
            "stop[1]",
            "a string",
        ),
        (
            json!({"stop": ""}),
            "invalid_value",
            "stop[0]",
            "1 to 1000 bytes",
        ),
        (
            json!({"stop": ["x".repeat(1_001)]}),
            "invalid_value",
            "stop[0]",
            "1 to 1000 bytes",
        ),
        (
            json!({"ignore_eos": 1}),
            "invalid_type",
            "ignore_eos",
            "true or false",
        ),
        (json!({"n": 2}), "unsupported_parameter", "n", "give 1"),
        (
            json!({"logprobs": 1}),
            "invalid_type",
            "logprobs",
            "true or false",
        ),
        (
            json!({"top_logprobs": 3}),
            "conflicting_parameters",
            "top_logprobs",
            "only where logprobs is true",
        ),
        (
            json!({"logprobs": true, "top_logprobs": 21}),
            "invalid_value",
            "top_logprobs",
            "from 0 to 20",
        ),
        (
            json!({"tools": [{"type": "function"}]}),
            "unsupported_parameter",
            "tools",
            "[]",
        ),
        (
            json!({"tool_choice": "required"}),
            "unsupported_parameter",
            "tool_choice",
            "none",
        ),
        (
            json!({"response_format": {"type": "json_object"}}),
            "unsupported_parameter",
            "response_format",
            "text",
        ),
        (
            json!({"presence_penalty": 2.5}),
            "invalid_value",
            "presence_penalty",
            "from -2 to 2, not 2.5",
        ),
        (
            json!({"frequency_penalty": -3}),
            "invalid_value",
            "frequency_penalty",
            "from -2 to 2, not -3",
        ),
        (
            json!({"repetition_penalty": 0}),
            "invalid_value",
            "repetition_penalty",
            "a finite number above 0, not 0",
        ),
        (
            json!({"repetition_penalty": "1.1"}),
            "invalid_type",
            "repetition_penalty",
            "a number",
        ),
        (
            json!({"logit_bias": {"5": 1}}),
            "unsupported_parameter",
            "logit_bias",
            "{}",
        ),
        (
            json!({"reasoning_effort": "high"}),
            "unsupported_parameter",
            "reasoning_effort",
            "none",
        ),
        (
            json!({"max_token": 5}),
            "unknown_parameter",
            "max_token",
            "not a known parameter",
        ),
        (
            json!({"prompt": "x"}),
            "unknown_parameter",
            "prompt",
            "not a known parameter",
        ),
        (
            json!({"chat_template_kwargs": true}),
            "invalid_type",
            "chat_template_kwargs",
            "an object",
        ),
    ];
    for (change, code, param, says) in table {
        let mut body = ok();
        for (name, value) in change.as_object().unwrap() {
            body[name] = value.clone();
        }
        let what = change.to_string();
        let answer = server.post(CHAT, body).await;
        check(
            &what[..what.len().min(100)],
            &answer,
            400,
            code,
            Some(param),
            says,
        );
    }
    server.settled().await;
}

#[tokio::test]
async fn every_wrong_completion_is_refused_by_the_name_of_what_is_wrong() {
    let server = server().await;
    let accepted = "a string, an array of one string, an array of token ids";
    let table: Vec<(Value, &str, &str, &str)> = vec![
        (
            json!({"prompt": null}),
            "missing_required_parameter",
            "prompt",
            accepted,
        ),
        (json!({"prompt": ""}), "invalid_value", "prompt", accepted),
        (json!({"prompt": []}), "invalid_value", "prompt", accepted),
        (json!({"prompt": [""]}), "invalid_value", "prompt", accepted),
        (
            json!({"prompt": ["a", "b"]}),
            "invalid_value",
            "prompt",
            accepted,
        ),
        (
            json!({"prompt": [[1], [2]]}),
            "invalid_value",
            "prompt",
            accepted,
        ),
        (json!({"prompt": [[]]}), "invalid_value", "prompt", accepted),
        (
            json!({"prompt": [[1, "a"]]}),
            "invalid_value",
            "prompt[0][1]",
            "a token id",
        ),
        (json!({"prompt": 7}), "invalid_type", "prompt", accepted),
        (
            json!({"prompt": [1, -1]}),
            "invalid_value",
            "prompt[1]",
            "a token id",
        ),
        (
            json!({"prompt": [1, "a"]}),
            "invalid_value",
            "prompt[1]",
            "a token id",
        ),
        (
            json!({"prompt": [1, 999_999]}),
            "invalid_value",
            "prompt[1]",
            "below 4353",
        ),
        (
            json!({"prompt": vec![1; 128]}),
            "context_length_exceeded",
            "prompt",
            "maximum context length is 128 tokens in all",
        ),
        (
            // More than 128 tokens can hold, whatever they are.
            json!({"prompt": "x".repeat(10_000)}),
            "context_length_exceeded",
            "prompt",
            "10000 bytes",
        ),
        (
            json!({"prompt": "x".repeat(600)}),
            "context_length_exceeded",
            "prompt",
            "600 tokens",
        ),
        (
            json!({"max_tokens": 128}),
            "context_length_exceeded",
            "max_tokens",
            "maximum context length is 128 tokens in all",
        ),
        (
            json!({"echo": true}),
            "unsupported_parameter",
            "echo",
            "false",
        ),
        (
            json!({"best_of": 3}),
            "unsupported_parameter",
            "best_of",
            "1",
        ),
        (
            json!({"logprobs": 21}),
            "invalid_value",
            "logprobs",
            "from 0 to 20",
        ),
        (
            json!({"logprobs": true}),
            "invalid_type",
            "logprobs",
            "an integer",
        ),
        (
            json!({"top_logprobs": 1}),
            "unknown_parameter",
            "top_logprobs",
            "not a known parameter",
        ),
        (
            json!({"suffix": "x"}),
            "unsupported_parameter",
            "suffix",
            "empty",
        ),
        (
            json!({"messages": []}),
            "unknown_parameter",
            "messages",
            "not a known parameter",
        ),
    ];
    for (change, code, param, says) in table {
        let mut body = json!({"prompt": "x"});
        for (name, value) in change.as_object().unwrap() {
            body[name] = value.clone();
        }
        let what = change.to_string();
        let answer = server.post(COMPLETION, body).await;
        check(
            &what[..what.len().min(100)],
            &answer,
            400,
            code,
            Some(param),
            says,
        );
    }
    server.settled().await;
}

#[tokio::test]
async fn what_is_not_json_is_answered_with_the_place() {
    let server = server().await;
    let table = [
        ("", "line 1, column 0"),
        ("{", "line 1, column 1"),
        ("{\"prompt\":\n  \"x\",}", "line 2, column 7"),
        ("{\"max_tokens\": 1e400}", "out of range"),
        ("{\"prompt\": \"\u{1}\"}", "line 1"),
    ];
    for (body, says) in table {
        let answer = server.send(post(COMPLETION, body)).await;
        check(body, &answer, 400, "invalid_json", None, says);
    }
    let not_utf8 = server.send(post(COMPLETION, vec![b'"', 0xFF, b'"'])).await;
    check("not UTF-8", &not_utf8, 400, "invalid_json", None, "line 1");
    let deep = server.send(post(COMPLETION, "[".repeat(100_000))).await;
    check("deep", &deep, 400, "invalid_json", None, "recursion");
    let array = server.send(post(COMPLETION, "[1]")).await;
    check(
        "array",
        &array,
        400,
        "invalid_type",
        Some("the body"),
        "a JSON object",
    );
}

#[tokio::test]
async fn other_mistakes_have_statuses_of_their_own() {
    let settings = EdgeSettings {
        connections: ConnectionSettings {
            body_bytes_max: 1_000,
            ..ConnectionSettings::default()
        },
        ..EdgeSettings::default()
    };
    let server = serving(Script::saying("a"), settings).await;
    let other_model = json!({"model": "gpt-5", "prompt": "x"});
    let answer = server.post(COMPLETION, other_model).await;
    check(
        "model",
        &answer,
        404,
        "model_not_found",
        Some("model"),
        "serves \"mock\"",
    );
    let answer = server.get("/v1/models/org/other").await;
    check(
        "model path",
        &answer,
        404,
        "model_not_found",
        Some("model"),
        "org/other",
    );
    let answer = server.get("/v2/models").await;
    check("path", &answer, 404, "not_found", None, "GET /v2/models");
    let answer = server.get(CHAT).await;
    check(
        "method",
        &answer,
        405,
        "method_not_allowed",
        None,
        "does not take GET",
    );
    assert_eq!(answer.headers["allow"], "POST");
    let answer = server
        .post(COMPLETION, json!({"prompt": "x".repeat(1_000)}))
        .await;
    check("large", &answer, 413, "body_too_large", None, "1000 bytes");
    let chunks = futures::stream::iter((0..30).map(|_| Ok::<_, std::io::Error>("x".repeat(100))));
    let answer = server
        .send(post(COMPLETION, Body::from_stream(chunks)))
        .await;
    check(
        "large, unannounced",
        &answer,
        413,
        "body_too_large",
        None,
        "1000 bytes",
    );
    let broken = futures::stream::iter([Ok("{"), Err(std::io::Error::other("gone"))]);
    let answer = server
        .send(post(COMPLETION, Body::from_stream(broken)))
        .await;
    check(
        "broken off",
        &answer,
        400,
        "incomplete_body",
        None,
        "to its end",
    );
    for content_type in [None, Some("text/plain"), Some("application/jsonp")] {
        let mut request = Request::post(COMPLETION);
        if let Some(content_type) = content_type {
            request = request.header("content-type", content_type);
        }
        let request = request.body(Body::from("{}")).unwrap();
        let answer = server.send(request).await;
        check(
            "type",
            &answer,
            415,
            "unsupported_media_type",
            None,
            "application/json",
        );
    }
}

/// A request that makes no sense must not be worse than refused, whatever it is.
#[tokio::test]
async fn mangled_bodies_never_get_more_than_an_answer() {
    use serve_core::rng::Rng;

    let server = server().await;
    let good = json!({"messages": user("héllo"), "stop": ["a", "b"], "max_tokens": 3, "temperature": 0.5,
                      "stream": true, "stream_options": {"include_usage": true}, "seed": 1});
    let good = good.to_string().into_bytes();
    let mut rng = Rng::new(11);
    for case in 0..2_000 {
        let mut body = good.clone();
        for _ in 0..=rng.below(3) {
            let at = rng.below(body.len() as u64) as usize;
            match rng.below(4) {
                0 => body[at] = rng.below(256) as u8,
                1 => drop(body.remove(at)),
                2 => body.insert(at, b"{}[]\",:0-e"[rng.below(10) as usize]),
                _ => body.truncate(at.max(1)),
            }
        }
        let answer = server.send(post(CHAT, body.clone())).await;
        let status = answer.status.as_u16();
        let shown = String::from_utf8_lossy(&body);
        assert!(
            matches!(status, 200 | 400 | 404),
            "case {case}: {status} for {shown}"
        );
    }
    server.settled().await;
}
