//! Work that nobody waits for ends at the engine.

use axum::http::StatusCode;
use serde_json::json;
use serve_http::EdgeSettings;

use super::engine::{Engine, Reply, Stream};
use super::passing::open;
use super::{CHAT, Front, chat, settings, until};
use crate::support::{post, user};

/// Worst where nothing streams: the engine would work to the end for nobody.
#[tokio::test]
async fn a_client_that_leaves_cancels_at_the_engine_streaming_or_not() {
    let engine = Engine::start().await;
    let front = Front::of(&engine).await;
    for stream in [false, true] {
        engine.next(Reply::Never);
        let asking = front.server.clone();
        let asking = tokio::spawn(async move { asking.post(CHAT, chat(stream)).await });
        until("the engine works", || engine.working() == 1).await;
        asking.abort();
        until("the engine has been told", || engine.working() == 0).await;
        front.settled().await;
    }
    // In mid-stream.
    let (stream, reply) = Stream::new();
    engine.next(reply);
    let mut reader = open(&front, &chat(true)).await;
    stream.token("one");
    reader.next().await.unwrap();
    assert_eq!(engine.working(), 1);
    drop(reader);
    until("the engine has been told", || engine.working() == 0).await;
    front.settled().await;
    assert_eq!(front.gate().stats().counters.cancelled, 3);
    assert_eq!(
        front.state().await,
        "ready",
        "that says nothing against the engine"
    );
    front
        .shows(&["serve_requests_ended_total{class=\"paid\",end=\"cancelled\"} 3"])
        .await;
}

#[tokio::test]
async fn who_leaves_the_queue_is_never_sent() {
    let engine = Engine::start().await;
    let front = Front::of(&engine).await;
    let working = front.filled(&engine, false).await;
    let waiting = front.asks(false);
    until("one waits", || front.gate().stats().waiting == 1).await;
    waiting.abort();
    until("none waits", || front.gate().stats().waiting == 0).await;
    working.iter().for_each(tokio::task::JoinHandle::abort);
    front.settled().await;
    assert_eq!(engine.seen().len(), 2);
}

/// An engine that fails when its client leaves has its answer read to the end instead, and its slot taken until then.
#[tokio::test]
async fn an_engine_that_does_not_survive_a_cancellation_is_left_to_finish() {
    let engine = Engine::start().await;
    let settings = serve_http::UpstreamSettings {
        finish_cancelled: true,
        ..settings(&engine)
    };
    let front = Front::with(settings, EdgeSettings::default()).await;
    let (stream, reply) = Stream::new();
    engine.next(reply);
    let mut reader = open(&front, &chat(true)).await;
    stream.token("one");
    reader.next().await.unwrap();
    drop(reader);
    for _ in 0..100 {
        stream.token("more");
        tokio::task::yield_now().await;
    }
    let stats = front.gate().stats();
    assert_eq!((engine.working(), stats.running + stats.aborting), (1, 1));
    stream.end();
    front.settled().await;
    assert_eq!(engine.working(), 0);
    assert_eq!(front.gate().stats().counters.cancelled, 1);
    // Its deadline is told at once all the same.
    let (stream, reply) = Stream::new();
    engine.next(reply);
    let body = json!({"messages": user("hi"), "timeout_ms": 50, "stream": true});
    let text = open(&front, &body).await.rest().await;
    assert!(text.contains("deadline_exceeded"), "{text}");
    assert_eq!(engine.working(), 1);
    stream.end();
    front.settled().await;
}

#[tokio::test]
async fn a_request_is_cancelled_by_its_name_and_by_the_id_of_its_answer() {
    let engine = Engine::start().await;
    let front = Front::of(&engine).await;
    // Waiting or at work, by its x-request-id.
    engine.next(Reply::Never);
    let mut request = post(CHAT, chat(false).to_string());
    request
        .headers_mut()
        .insert("x-request-id", "mine".parse().unwrap());
    let server = front.server.clone();
    let asking = tokio::spawn(async move { server.send(request).await });
    until("the engine works", || engine.working() == 1).await;
    let cancel = |id: &str| {
        let server = front.server.clone();
        let path = format!("/v1/requests/{id}/cancel");
        async move { server.post(&path, json!({})).await }
    };
    assert_eq!(cancel("mine").await.json()["cancelled"], 1);
    let answer = asking.await.unwrap();
    assert_eq!(answer.status, StatusCode::BAD_REQUEST);
    assert_eq!(answer.json()["error"]["code"], "cancelled");
    until("the engine has been told", || engine.working() == 0).await;
    // By the engine's id, once a chunk has told it.
    let (stream, reply) = Stream::new();
    engine.next(reply);
    let mut reader = open(&front, &chat(true)).await;
    stream.token("one");
    reader.next().await.unwrap();
    assert_eq!(cancel("chatcmpl-engine").await.json()["cancelled"], 1);
    let rest = reader.rest().await;
    assert!(rest.contains("\"code\":\"cancelled\""), "{rest}");
    until("the engine has been told", || engine.working() == 0).await;
    assert_eq!(
        cancel("chatcmpl-engine").await.status,
        404,
        "nothing is kept"
    );
    front.settled().await;
}
