//! A client that goes away frees everything that its request held, wherever the request was.

use std::sync::mpsc::SyncSender;
use std::task::Poll;

use axum::body::{Body, HttpBody};
use futures::{FutureExt, StreamExt, poll};
use serde_json::json;
use serve_http::EdgeSettings;

use crate::support::{LIMITS, ROOMY, Script, Server, Word, post, serving};

const COMPLETION: &str = "/v1/completions";

/// A server whose steps wait for a word, past its warm-up.
async fn gated(settings: EdgeSettings) -> (Server, SyncSender<Word>) {
    let (script, gate) = Script::saying(&"a".repeat(9_000)).within(ROOMY).gated();
    gate.send(Word::Run).unwrap();
    gate.send(Word::Run).unwrap();
    (serving(script, settings).await, gate)
}

/// Opens a stream while the thread may be in a step that waits for a word.
async fn open(server: &Server, gate: &SyncSender<Word>) -> Body {
    let mut response = std::pin::pin!(server.open(post(COMPLETION, long(true))));
    loop {
        if let Poll::Ready(response) = poll!(response.as_mut()) {
            assert_eq!(response.status(), 200);
            return response.into_body();
        }
        let _ = gate.try_send(Word::Run);
        tokio::task::yield_now().await;
    }
}

/// Checks that everything has gone within a few steps: far fewer than a request has tokens, so it
/// can only have ended by being cancelled.
async fn settled(server: &Server, gate: &SyncSender<Word>) {
    let steps = server
        .service
        .serving()
        .unwrap()
        .worker()
        .stats()
        .counters
        .steps;
    while server.service.serving().unwrap().worker().live() > 0 {
        let _ = gate.try_send(Word::Run);
        tokio::task::yield_now().await;
    }
    server.settled().await;
    let stats = server.service.serving().unwrap().worker().stats();
    assert!(stats.counters.steps - steps < 4_000, "{stats:?}");
}

fn long(stream: bool) -> String {
    json!({"prompt": "x", "max_tokens": 9_000, "stream": stream}).to_string()
}

#[tokio::test]
async fn a_dropped_stream_stops_its_request() {
    let (server, gate) = gated(EdgeSettings::default()).await;
    gate.send(Word::Run).unwrap();
    let response = server.open(post(COMPLETION, long(true))).await;
    let mut body = response.into_body().into_data_stream();
    let first = body.next().await.unwrap().unwrap();
    assert!(first.starts_with(b"data: {"));
    drop(body);
    settled(&server, &gate).await;
}

#[tokio::test]
async fn a_dropped_handler_stops_its_request() {
    let (server, gate) = gated(EdgeSettings::default()).await;
    {
        let mut answer = std::pin::pin!(server.send(post(COMPLETION, long(false))));
        let worker = server.service.serving().unwrap().worker();
        while worker.live() == 0 {
            assert!(poll!(answer.as_mut()).is_pending());
        }
        assert!(answer.as_mut().now_or_never().is_none());
    }
    settled(&server, &gate).await;
}

/// However a request that runs is cancelled, the step in flight is the last that holds anything of it.
#[tokio::test]
async fn everything_is_released_within_one_step() {
    for way in ["disconnect", "abort", "deadline"] {
        let (server, gate) = gated(EdgeSettings::default()).await;
        gate.send(Word::Run).unwrap();
        let mut body = json!({"prompt": "x", "max_tokens": 9_000, "stream": true});
        if way == "deadline" {
            body["timeout_ms"] = 400.into();
        }
        let response = server.open(post(COMPLETION, body.to_string())).await;
        let mut stream = response.into_body().into_data_stream();
        let first = stream.next().await.unwrap().unwrap();
        match way {
            "disconnect" => drop(stream),
            "abort" => {
                let first = String::from_utf8_lossy(&first);
                let (_, id) = first.split_once("\"id\":\"").unwrap();
                let id = id.split('"').next().unwrap();
                let path = format!("/v1/requests/{id}/cancel");
                assert_eq!(server.post(&path, json!({})).await.status, 200);
            }
            _ => tokio::time::sleep(std::time::Duration::from_millis(450)).await,
        }
        let worker = server.service.serving().unwrap().worker();
        let steps = worker.stats().counters.steps;
        // Without this word the step would never end, and without another no step would follow.
        gate.send(Word::Run).unwrap();
        server.settled().await;
        assert!(worker.stats().counters.steps <= steps + 1, "{way}");
        let lag = crate::metrics::Scrape::of(&server).await;
        assert_eq!(lag.get("serve_release_lag_seconds_count"), 1.0, "{way}");
    }
}

#[tokio::test]
async fn those_that_wait_leave_the_queue() {
    let (server, gate) = gated(EdgeSettings::default()).await;
    let slots = LIMITS.sequences_max as usize;
    let mut streams = Vec::new();
    for _ in 0..slots {
        streams.push(open(&server, &gate).await);
    }
    let ask = || {
        let handle = server.clone();
        tokio::spawn(async move { handle.open(post(COMPLETION, long(true))).await })
    };
    let waiting: Vec<_> = (0..6).map(|_| ask()).collect();
    let worker = server.service.serving().unwrap().worker();
    while worker.live() < slots + waiting.len() {
        tokio::task::yield_now().await;
    }
    assert_eq!(worker.stats().waiting, 6);
    assert!(!streams[0].is_end_stream());
    for request in &waiting {
        assert!(!request.is_finished(), "a stream begins with its request");
        request.abort();
    }
    drop(streams);
    settled(&server, &gate).await;
}

#[tokio::test]
async fn no_more_get_in_than_there_are_places_and_each_place_comes_back() {
    let settings = EdgeSettings {
        queue_cap: 2,
        ..EdgeSettings::default()
    };
    let (server, gate) = gated(settings).await;
    let places = LIMITS.sequences_max as usize + 2;
    let mut held = Vec::new();
    for _ in 0..places {
        let handle = server.clone();
        let request = async move { handle.send(post(COMPLETION, long(false))).await };
        held.push(tokio::spawn(request));
    }
    while server.service.serving().unwrap().worker().live() < places {
        tokio::task::yield_now().await;
    }
    let refused = server.send(post(COMPLETION, long(false))).await;
    assert_eq!(refused.status, 429);
    assert_eq!(refused.json()["error"]["code"], "overloaded");
    // A place is needed before anything is tokenised, and given back when that fails.
    for request in &held {
        request.abort();
    }
    drop(gate);
    server.settled().await;
    for _ in 0..2 * places {
        let too_long = json!({"prompt": "x".repeat(20_000)}).to_string();
        let answer = server.send(post(COMPLETION, too_long)).await;
        assert_eq!(answer.status, 400);
    }
    let answer = server.send(post(COMPLETION, long(false))).await;
    assert_eq!(answer.status, 200);
}

#[tokio::test]
async fn a_client_that_stops_reading_is_cancelled() {
    // The whole answer is longer than what is kept for one client.
    let script = Script::saying(&"a".repeat(9_000)).within(ROOMY);
    let server = serving(script, EdgeSettings::default()).await;
    let body = json!({"prompt": "x", "max_tokens": 9_000, "stream": true});
    let response = server.open(post(COMPLETION, body.to_string())).await;
    server.settled().await;
    let bytes = axum::body::to_bytes(response.into_body(), usize::MAX)
        .await
        .unwrap();
    let events = crate::support::events(std::str::from_utf8(&bytes).unwrap());
    let crate::support::Event::Data(last) = events.last().unwrap() else {
        panic!("the stream claims to be complete")
    };
    assert_eq!(last["error"]["code"], "slow_reader");
}
