//! What passes: streams as they come, names, usage, bodies that nobody here understands.

use axum::body::Bytes;
use futures::StreamExt;
use serde_json::{Value, json};
use serve_http::EdgeSettings;

use super::engine::{Engine, Reply, Stream, chat_chunk};
use super::{CHAT, Front, chat, settings, until};
use crate::support::{chunks, post, streamed_text, user};

/// A stream's text as it comes in.
pub(crate) struct Reader(axum::body::BodyDataStream);

impl Reader {
    pub(crate) async fn next(&mut self) -> Option<String> {
        let bytes: Bytes = self.0.next().await?.unwrap();
        Some(String::from_utf8(bytes.to_vec()).unwrap())
    }

    pub(crate) async fn rest(mut self) -> String {
        let mut rest = String::new();
        while let Some(text) = self.next().await {
            rest += &text;
        }
        rest
    }
}

pub(crate) async fn open(front: &Front, body: &Value) -> Reader {
    let response = front.server.open(post(CHAT, body.to_string())).await;
    assert_eq!(response.status(), 200);
    assert_eq!(response.headers()["x-accel-buffering"], "no");
    Reader(response.into_body().into_data_stream())
}

/// Proxies that collect a stream before they pass it on.
#[tokio::test]
async fn the_first_chunk_is_here_before_the_second_is_made() {
    let engine = Engine::start().await;
    let front = Front::of(&engine).await;
    let (stream, reply) = Stream::new();
    engine.next(reply);
    let mut reader = open(&front, &chat(true)).await;
    for text in ["one", "two", "three"] {
        stream.token(text);
        assert!(reader.next().await.unwrap().contains(text));
    }
    // Half of an event is kept, and goes out with its other half.
    stream.raw("data: {\"choices\":[{\"delta\":{\"content\":\"fo");
    stream.raw("ur\"}}]}\n");
    stream.raw("\n: a comment\n\n");
    let mut text = String::new();
    while !text.contains("comment") {
        text += &reader.next().await.unwrap();
    }
    assert!(text.contains("four"), "{text}");
    stream.end();
    assert!(reader.rest().await.ends_with("data: [DONE]\n\n"));
    front.settled().await;
}

/// An engine's own name must not leak, and another's must not be asked for, in either mode.
#[tokio::test]
async fn the_model_has_its_served_name_in_both_modes_and_the_engines_at_the_engine() {
    let engine = Engine::start().await;
    let front = Front::of(&engine).await;
    engine.seen();
    for stream in [false, true] {
        for model in [json!("served"), Value::Null] {
            let mut body = chat(stream);
            body["model"] = model;
            let answer = front.server.post(CHAT, body).await;
            assert_eq!(answer.status, 200, "{}", answer.body);
            assert!(!answer.body.contains("engine/model"), "{}", answer.body);
            let first = match stream {
                true => chunks(&answer.body).remove(0),
                false => answer.json(),
            };
            assert_eq!(first["model"], "served");
        }
        let mut body = chat(stream);
        body["model"] = json!("engine/model");
        assert_eq!(front.server.post(CHAT, body).await.status, 404);
    }
    let seen = engine.seen();
    assert_eq!(seen.len(), 4, "what names another model never gets there");
    assert!(
        seen.iter()
            .all(|seen| seen.json()["model"] == "engine/model")
    );
    let list = front.server.get("/v1/models").await.json();
    let model = &list["data"][0];
    assert_eq!(
        (&model["id"], &model["max_model_len"]),
        (&json!("served"), &json!(4_096))
    );
    assert_eq!(front.server.get("/v1/models/served").await.status, 200);
    assert_eq!(
        front.server.get("/v1/models/engine/model").await.status,
        404
    );
}

#[tokio::test]
async fn without_a_name_of_ones_own_the_engines_is_served() {
    let engine = Engine::start().await;
    let settings = serve_http::UpstreamSettings {
        served_model_name: None,
        ..settings(&engine)
    };
    let front = Front::with(settings, EdgeSettings::default()).await;
    assert_eq!(front.upstream.name(), "engine/model");
    let answer = front.server.post(CHAT, chat(false)).await;
    assert_eq!(answer.json()["model"], "engine/model");
}

#[tokio::test]
async fn a_stream_is_asked_for_its_usage_which_only_who_asks_is_told() {
    let engine = Engine::start().await;
    let front = Front::of(&engine).await;
    for (asks, options) in [(false, Value::Null), (true, json!({"include_usage": true}))] {
        engine.seen();
        let (stream, reply) = Stream::new();
        engine.next(reply);
        let mut body = chat(true);
        body["stream_options"] = options;
        stream.chunk(&{
            let mut chunk = chat_chunk("a", None);
            chunk["usage"] = Value::Null;
            chunk
        });
        stream.chunk(&json!({
            "id": "chatcmpl-engine", "model": "engine/model", "choices": [],
            "usage": {"prompt_tokens": 11, "completion_tokens": 5},
        }));
        stream.end();
        let answer = front.server.post(CHAT, body).await;
        assert_eq!(
            engine.seen()[0].json()["stream_options"],
            json!({"include_usage": true})
        );
        assert_eq!(answer.body.contains("usage"), asks, "{}", answer.body);
        assert_eq!(chunks(&answer.body).len(), if asks { 3 } else { 2 });
        assert_eq!(streamed_text(&chunks(&answer.body)), "a");
    }
    front.settled().await;
    front
        .shows(&[
            "serve_tokens_total{kind=\"prompt\"} 22",
            "serve_tokens_total{kind=\"output\"} 10",
        ])
        .await;
}

#[tokio::test]
async fn what_is_not_understood_here_passes_byte_for_byte() {
    let engine = Engine::start().await;
    let front = Front::of(&engine).await;
    engine.seen();
    let rest = r#""messages":[{"role":"user","content":[{"type":"image_url","image_url":{"url":"data:,\u00e4"}}]}],"tools":[{"type":"function","function":{"name":"f","parameters":{}}}],"response_format":{"type":"json_schema","json_schema":{}},"n":3,"temperature":1.50e-1,"logit_bias":{"5":-1e2},"vendor_field":[null , 18446744073709551615]"#;
    let answer = front.server.send(post(CHAT, format!("{{{rest}}}"))).await;
    assert_eq!(answer.status, 200);
    let seen = engine.seen();
    assert_eq!(
        seen[0].text,
        format!("{{{rest},\"model\":\"engine/model\"}}")
    );
    assert_eq!(seen[0].path, CHAT);
    let completion = front
        .server
        .post("/v1/completions", json!({"prompt": ["a", "b"]}))
        .await;
    assert_eq!(completion.status, 200);
    assert_eq!(engine.seen()[0].path, "/v1/completions");
}

/// The engine judges what it alone understands, and its words reach the client.
#[tokio::test]
async fn a_refusal_that_is_the_requests_own_reaches_the_client_as_it_is() {
    let engine = Engine::start().await;
    let front = Front::of(&engine).await;
    for status in [400, 413, 422] {
        for stream in [false, true] {
            let body =
                r#"{"object":"error","message":"tools need --enable-auto-tool-choice","code":400}"#;
            engine.next(Reply::Json(status, vec![], body.to_owned()));
            let answer = front.server.post(CHAT, chat(stream)).await;
            assert_eq!((answer.status.as_u16(), &*answer.body), (status, body));
            assert_eq!(answer.headers["content-type"], "application/json");
        }
    }
    front.settled().await;
    assert_eq!(front.state().await, "ready");
    let stats = front.gate().stats();
    assert_eq!(stats.counters.failed, 6);
    front
        .shows(&[
            "serve_refusals_total{class=\"paid\",code=\"engine_refused\"} 6",
            "serve_upstream_requests_total{outcome=\"refused\"} 6",
        ])
        .await;
}

/// A key or a path that the engine does not take is the operator's affair: a client told 401 would look at its own key.
#[tokio::test]
async fn what_the_operator_has_to_mend_is_no_fault_of_the_client() {
    let engine = Engine::start().await;
    let front = Front::of(&engine).await;
    for status in [401, 403, 404, 405] {
        let body = r#"{"error":{"message":"no such key"}}"#;
        engine.next(Reply::Json(status, vec![], body.to_owned()));
        let answer = front.server.post(CHAT, chat(false)).await;
        assert_eq!(answer.status, 500);
        assert_eq!(answer.json()["error"]["code"], "backend_error");
    }
}

#[tokio::test]
async fn the_engine_has_its_key_and_is_not_shown_the_clients() {
    let engine = Engine::start().await;
    let settings = serve_http::UpstreamSettings {
        key: Some("sk-of-the-engine".parse().unwrap()),
        ..settings(&engine)
    };
    let front = Front::with(settings, EdgeSettings::default()).await;
    engine.seen();
    let mut request = post(CHAT, chat(false).to_string());
    let headers = request.headers_mut();
    headers.insert("authorization", "Bearer of-the-client".parse().unwrap());
    headers.insert("x-request-id", "mine-7".parse().unwrap());
    headers.insert("cookie", "a=b".parse().unwrap());
    front.server.send(request).await;
    let headers = engine.seen().remove(0).headers;
    assert_eq!(headers["authorization"], "Bearer sk-of-the-engine");
    assert_eq!(headers["x-request-id"], "mine-7");
    assert!(!headers.contains_key("cookie"));
    assert!(!format!("{:?}", front.server.get("/v1/config").await).contains("sk-of"));
}

#[tokio::test]
async fn a_chat_of_many_events_at_once_is_whole() {
    let engine = Engine::start().await;
    let front = Front::of(&engine).await;
    let (stream, reply) = Stream::new();
    engine.next(reply);
    let words: Vec<String> = (0..2_000).map(|n| format!("word{n} ")).collect();
    for word in &words {
        stream.token(word);
    }
    stream.end();
    let answer = front.server.post(CHAT, chat(true)).await;
    assert_eq!(streamed_text(&chunks(&answer.body)), words.concat());
    until("its slot is free", || front.gate().stats().running == 0).await;
    assert_eq!(front.gate().stats().counters.output_tokens, 2_000);
}

/// The work of one key is done once, as by the own engine.
#[tokio::test]
async fn an_idempotency_key_is_served_once() {
    let engine = Engine::start().await;
    let front = Front::of(&engine).await;
    engine.seen();
    let ask = || {
        let mut request = post(CHAT, json!({"messages": user("hi")}).to_string());
        request
            .headers_mut()
            .insert("idempotency-key", "k".parse().unwrap());
        request
    };
    let first = front.server.send(ask()).await;
    let second = front.server.send(ask()).await;
    assert_eq!(first.body, second.body);
    assert_eq!(second.headers["idempotent-replayed"], "true");
    assert_eq!(engine.seen().len(), 1);
}
