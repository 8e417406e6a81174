//! Engines that fail: what their clients are told, what is sent again, and how the server comes back.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use serde_json::json;

use super::engine::{Engine, Reply, Stream};
use super::passing::open;
use super::{CHAT, Front, chat, until};
use crate::support::{Event, events};

/// Whatever ends a stream before its answer is over: the connection, the body, the middle of an event.
#[tokio::test]
async fn an_engine_that_crashes_in_mid_stream_is_an_event_with_our_code() {
    type Crash = fn(Stream);
    let crashes: [Crash; 4] = [
        drop,
        |stream| {
            stream.raw("data: {\"choices\":[{\"del");
            drop(stream);
        },
        // Closed in order, and yet no answer.
        |stream| stream.close(),
        |stream| {
            stream.raw("data: {\"cho");
            stream.close();
        },
    ];
    for crash in crashes {
        let engine = Engine::start().await;
        let front = Front::of(&engine).await;
        let (stream, reply) = Stream::new();
        engine.next(reply);
        let mut reader = open(&front, &chat(true)).await;
        stream.token("one");
        assert!(reader.next().await.unwrap().contains("one"));
        crash(stream);
        let rest = reader.rest().await;
        let [Event::Data(event)] = &events(&rest)[..] else {
            panic!("one event, and nothing after it: {rest}");
        };
        let error = &event["error"];
        assert_eq!(
            (&error["code"], &error["type"]),
            (&json!("backend_error"), &json!("server_error"))
        );
        front.settled().await;
        assert_eq!(front.gate().stats().counters.failed, 1);
        front
            .shows(&[
                "serve_requests_ended_total{class=\"paid\",end=\"failed\"} 1",
                "serve_upstream_requests_total{outcome=\"broken\"} 1",
            ])
            .await;
    }
}

#[tokio::test]
async fn a_stream_without_done_that_has_said_why_it_ended_is_whole() {
    let engine = Engine::start().await;
    let front = Front::of(&engine).await;
    let (stream, reply) = Stream::new();
    engine.next(reply);
    stream.token("one");
    stream.chunk(&super::engine::chat_chunk("", Some("length")));
    stream.close();
    let text = open(&front, &chat(true)).await.rest().await;
    assert!(!text.contains("error"), "{text}");
    front.settled().await;
    assert_eq!(front.gate().stats().counters.finished, 1);
}

#[tokio::test]
async fn an_error_that_the_engine_tells_in_its_stream_is_told_once_and_counted() {
    let engine = Engine::start().await;
    let front = Front::of(&engine).await;
    let (stream, reply) = Stream::new();
    engine.next(reply);
    stream.token("one");
    stream.chunk(&json!({"error": {"message": "out of memory", "code": 500}}));
    stream.close();
    let text = open(&front, &chat(true)).await.rest().await;
    assert_eq!(text.matches("\"error\"").count(), 1, "{text}");
    front.settled().await;
    assert_eq!(front.gate().stats().counters.failed, 1);
    front
        .shows(&["serve_requests_ended_total{class=\"paid\",end=\"failed\"} 1"])
        .await;
}

#[tokio::test]
async fn an_answer_that_is_none_is_told_and_not_passed_on() {
    let engine = Engine::start().await;
    let front = Front::of(&engine).await;
    for (status, body) in [
        (200, "<html>"),
        (200, ""),
        (200, "[1]"),
        (500, "{}"),
        (502, "bad gateway"),
        (302, ""),
    ] {
        engine.next(Reply::Json(status, vec![], body.to_owned()));
        let answer = front.server.post(CHAT, chat(false)).await;
        assert_eq!(answer.status, 500, "{status} {body}");
        assert_eq!(answer.json()["error"]["code"], "backend_error");
    }
    front.settled().await;
    assert_eq!(front.state().await, "ready", "it makes tokens all the same");
}

/// What has not reached the engine is sent once more; what may have, is not: the engine may have done it, or died of it.
#[tokio::test]
async fn only_what_was_never_sent_is_sent_again_and_once() {
    let engine = Engine::start().await;
    let front = Front::of(&engine).await;
    // It dies of the request.
    engine.seen();
    let (stream, reply) = Stream::new();
    drop(stream);
    engine.next(reply);
    let answer = front.server.post(CHAT, chat(false)).await;
    assert_eq!(answer.json()["error"]["code"], "backend_error");
    let asked = engine.seen();
    let real = asked
        .iter()
        .filter(|seen| seen.json()["messages"][0]["content"] == "hi");
    assert_eq!(real.count(), 1);
    let retries = |metrics: &str| metrics.contains("serve_upstream_retries_total 0\n");
    assert!(retries(&front.server.get("/metrics").await.body));
    // It is not there.
    let engine = Engine::start().await;
    let front = Front::of(&engine).await;
    engine.die().await;
    let answer = front.server.post(CHAT, chat(false)).await;
    assert_eq!(answer.status, 503);
    assert_eq!(answer.json()["error"]["code"], "engine_unreachable");
    front
        .shows(&[
            "serve_upstream_retries_total 1",
            "serve_upstream_requests_total{outcome=\"unreachable\"} 1",
        ])
        .await;
}

/// A crowd that finds the engine gone does not come twice.
#[tokio::test]
async fn retries_are_few_whatever_comes() {
    let engine = Engine::start().await;
    let front = Front::of(&engine).await;
    engine.die().await;
    let unreachable = Arc::new(AtomicU32::new(0));
    let mut asked = Vec::new();
    for _ in 0..40 {
        let (server, count) = (front.server.clone(), Arc::clone(&unreachable));
        asked.push(tokio::spawn(async move {
            let answer = server.post(CHAT, chat(false)).await;
            let code = answer.json()["error"]["code"].clone();
            count.fetch_add(u32::from(code == "engine_unreachable"), Ordering::SeqCst);
        }));
    }
    for asked in asked {
        asked.await.unwrap();
    }
    let sent = unreachable.load(Ordering::SeqCst);
    let metrics = front.server.get("/metrics").await.body;
    let line = metrics
        .lines()
        .find_map(|line| line.strip_prefix("serve_upstream_retries_total "));
    let retries: u32 = line.unwrap().parse().unwrap();
    assert!(retries <= 3 + sent / 10, "{retries} of {sent}");
}

/// The server says so, refuses what comes meanwhile, and takes requests again when a token has come.
#[tokio::test]
async fn an_engine_that_goes_is_missed_and_one_that_comes_back_is_found() {
    let engine = Engine::start().await;
    let front = Front::of(&engine).await;
    let (stream, reply) = Stream::new();
    engine.next(reply);
    let mut reader = open(&front, &chat(true)).await;
    stream.token("one");
    reader.next().await.unwrap();
    engine.die().await;
    assert!(reader.rest().await.contains("backend_error"));
    while front.state().await != "rebuilding" {
        tokio::time::sleep(std::time::Duration::from_millis(5)).await;
    }
    let refused = front.server.post(CHAT, chat(false)).await;
    assert_eq!(refused.json()["error"]["code"], "not_ready");
    assert_eq!(front.server.get("/health/live").await.status, 200);
    engine.does(|_| Reply::Usual);
    engine.come_back().await;
    while front.state().await != "ready" {
        tokio::time::sleep(std::time::Duration::from_millis(5)).await;
    }
    assert_eq!(front.server.post(CHAT, chat(false)).await.status, 200);
    until("nothing is left", || front.gate().stats().running == 0).await;
}

/// As llama-server does after a stream: what came next on the connection would fail, though the engine is well.
#[tokio::test]
async fn an_engine_that_closes_connections_without_a_word_fails_no_request() {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    tokio::spawn(async move {
        loop {
            let (mut socket, _) = listener.accept().await.unwrap();
            tokio::spawn(async move {
                let mut text = String::new();
                let mut buffer = [0; 4_096];
                while !text.contains("}") && !text.starts_with("GET") {
                    let read = socket.read(&mut buffer).await.unwrap();
                    text += std::str::from_utf8(&buffer[..read]).unwrap();
                }
                let (kind, body) = match text.contains("\"stream\":true") {
                    true => (
                        "text/event-stream",
                        "data: {\"choices\":[{\"finish_reason\":\"stop\"}]}\n\ndata: [DONE]\n\n",
                    ),
                    false => (
                        "application/json",
                        "{\"data\":[{\"id\":\"m\"}],\"choices\":[{}]}",
                    ),
                };
                let length = body.len();
                let answer = format!(
                    "HTTP/1.1 200 OK\r\ncontent-type: {kind}\r\ncontent-length: {length}\r\n\r\n{body}"
                );
                socket.write_all(answer.as_bytes()).await.unwrap();
                // It takes in another request, and goes.
                let _ = socket.read(&mut buffer).await;
            });
        }
    });
    let settings = serve_http::UpstreamSettings {
        place: serve_http::UpstreamPlace::At(url.parse().unwrap()),
        ..super::settings(&Engine::start().await)
    };
    let front = Front::with(settings, serve_http::EdgeSettings::default()).await;
    for n in 0..20 {
        let answer = front.server.post(CHAT, chat(n % 2 == 0)).await;
        assert_eq!(answer.status, 200, "{n}: {}", answer.body);
    }
}
