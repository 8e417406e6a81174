//! A request that is late is answered, and if it still waits it is never run.

use std::sync::mpsc::SyncSender;
use std::time::Duration;

use serde_json::json;
use serve_http::EdgeSettings;

use crate::support::{Answer, LIMITS, ROOMY, Script, Server, Word, post, serving};

const COMPLETION: &str = "/v1/completions";

async fn gated(settings: EdgeSettings) -> (Server, SyncSender<Word>) {
    let (script, gate) = Script::saying(&"a".repeat(9_000)).within(ROOMY).gated();
    gate.send(Word::Run).unwrap();
    gate.send(Word::Run).unwrap();
    (serving(script, settings).await, gate)
}

/// Opens as many long streams as can run at once, a step now and then: nobody reads them, and one with too much
/// unread is cut.
async fn fill(server: &Server, gate: &SyncSender<Word>) -> Vec<axum::response::Response> {
    let long = json!({"prompt": "x", "max_tokens": 9_000, "stream": true});
    let mut running = Vec::new();
    // Where the server limits waits, one may be refused on a busy machine before it has begun.
    while running.len() < LIMITS.sequences_max as usize {
        let asked = server.clone();
        let body = long.to_string();
        let open = tokio::spawn(async move { asked.open(post(COMPLETION, body)).await });
        while !open.is_finished() {
            let _ = gate.try_send(Word::Run);
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        let opened = open.await.unwrap();
        running.extend(opened.status().is_success().then_some(opened));
    }
    let worker = server.service.serving().unwrap().worker();
    while worker.stats().running < LIMITS.sequences_max {
        let _ = gate.try_send(Word::Run);
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    running
}

/// Lets a step run now and then until the answer is there: so few that nothing else ends meanwhile.
async fn answered(gate: &SyncSender<Word>, asked: tokio::task::JoinHandle<Answer>) -> Answer {
    while !asked.is_finished() {
        let _ = gate.try_send(Word::Run);
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    asked.await.unwrap()
}

#[tokio::test]
async fn a_waiting_request_whose_time_is_up_is_answered_and_never_run() {
    let (server, gate) = gated(EdgeSettings::default()).await;
    let running = fill(&server, &gate).await;
    let worker = server.service.serving().unwrap().worker();
    let before = worker.stats().counters;
    for by_header in [true, false] {
        let mut body = json!({"prompt": "some words", "max_tokens": 4});
        let mut request = post(COMPLETION, body.to_string());
        if by_header {
            let millis = "20".parse().unwrap();
            request.headers_mut().insert("x-request-timeout-ms", millis);
        } else {
            body["timeout_ms"] = 20.into();
            request = post(COMPLETION, body.to_string());
        }
        let asked = server.clone();
        let asked = tokio::spawn(async move { asked.send(request).await });
        let late = answered(&gate, asked).await;
        assert_eq!(late.status, 504, "{}", late.body);
        assert_eq!(late.json()["error"]["code"], "deadline_exceeded");
    }
    let after = worker.stats().counters;
    assert_eq!(
        after.prefill_tokens, before.prefill_tokens,
        "no prompt was run"
    );
    assert_eq!(
        after.cancelled + after.refused,
        before.cancelled + before.refused + 2
    );
    drop((running, gate));
    server.settled().await;
}

#[tokio::test]
async fn a_request_that_waits_longer_than_it_may_is_answered_and_never_run() {
    // (server's limit, header, body), of which the shortest holds; 20 ms in each row.
    let table = [
        (None, Some("20"), None),
        (None, None, Some(20)),
        (Some(20), None, None),
        (Some(20), Some("86400000"), Some(86_400_000)),
        (Some(86_000_000), None, Some(20)),
    ];
    for (server_ms, header, body_ms) in table {
        let settings = EdgeSettings {
            queue_timeout: server_ms.map(Duration::from_millis),
            ..EdgeSettings::default()
        };
        let (server, gate) = gated(settings).await;
        let running = fill(&server, &gate).await;
        let worker = server.service.serving().unwrap().worker();
        let before = worker.stats().counters;
        let body = json!({"prompt": "some words", "max_tokens": 4, "queue_timeout_ms": body_ms});
        let mut request = post(COMPLETION, body.to_string());
        if let Some(millis) = header {
            let name = "x-request-queue-timeout-ms";
            request.headers_mut().insert(name, millis.parse().unwrap());
        }
        let asked = server.clone();
        let asked = tokio::spawn(async move { asked.send(request).await });
        let late = answered(&gate, asked).await;
        assert_eq!(late.status, 429, "{}", late.body);
        assert_eq!(late.json()["error"]["code"], "queue_timeout");
        let after = worker.stats().counters;
        assert_eq!(after.prefill_tokens, before.prefill_tokens, "it was run");
        assert_eq!(after.cancelled, before.cancelled + 1);
        assert_eq!(worker.stats().running, LIMITS.sequences_max, "others go on");
        drop((running, gate));
        server.settled().await;
    }
}

#[tokio::test]
async fn the_servers_own_limit_ends_what_runs_too_long() {
    let settings = EdgeSettings {
        request_timeout: Some(Duration::from_millis(20)),
        ..EdgeSettings::default()
    };
    let (server, gate) = gated(settings).await;
    // A client cannot ask for more than that.
    for timeout_ms in [None, Some(86_400_000)] {
        let body = json!({"prompt": "x", "max_tokens": 9_000, "timeout_ms": timeout_ms});
        let asked = server.clone();
        let asked = tokio::spawn(async move { asked.post(COMPLETION, body).await });
        // One step in twenty milliseconds cannot be enough for 9,000 tokens.
        while !asked.is_finished() {
            let _ = gate.try_send(Word::Run);
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        let late = asked.await.unwrap();
        assert_eq!(late.status, 504, "{}", late.body);
        assert_eq!(late.json()["error"]["code"], "deadline_exceeded");
    }
    drop(gate);
    server.settled().await;
}

#[tokio::test]
async fn a_wrong_time_limit_is_refused_by_its_name() {
    let server = serving(Script::saying("a"), EdgeSettings::default()).await;
    for name in ["x-request-timeout-ms", "x-request-queue-timeout-ms"] {
        for wrong in ["0", "-1", "1.5", "soon", "86400001", "\u{e9}"] {
            let mut request = post(COMPLETION, json!({"prompt": "x"}).to_string());
            let value = axum::http::HeaderValue::from_bytes(wrong.as_bytes()).unwrap();
            request.headers_mut().insert(name, value);
            let answer = server.send(request).await;
            assert_eq!(answer.status, 400, "{name}: {wrong}");
            assert_eq!(answer.json()["error"]["param"], name, "{wrong}");
        }
    }
    for name in ["timeout_ms", "queue_timeout_ms"] {
        for wrong in [json!(0), json!(86_400_001), json!("5"), json!(1.5)] {
            let mut body = json!({"prompt": "x"});
            body[name] = wrong.clone();
            let answer = server.post(COMPLETION, body).await;
            assert_eq!(answer.status, 400, "{name}: {wrong}");
            assert_eq!(answer.json()["error"]["param"], name, "{wrong}");
        }
    }
    let mut request = post(
        COMPLETION,
        json!({"prompt": "x", "timeout_ms": 5}).to_string(),
    );
    request
        .headers_mut()
        .insert("x-request-timeout-ms", "6".parse().unwrap());
    let answer = server.send(request).await;
    assert_eq!(answer.json()["error"]["code"], "conflicting_parameters");
    server.settled().await;
}
