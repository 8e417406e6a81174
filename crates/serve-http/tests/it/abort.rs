//! A request that its client cancels by name, wherever it is.

use std::sync::mpsc::SyncSender;

use axum::body::Body;
use axum::http::Request;
use futures::StreamExt;
use serde_json::{Value, json};
use serve_core::{Class, TenantId};
use serve_http::EdgeSettings;
use serve_http::auth::{Identity, KeyHash, Keys};

use crate::support::{Answer, LIMITS, ROOMY, Script, Server, Word, serving};

async fn gated() -> (Server, SyncSender<Word>) {
    let identity = |tenant| Identity {
        tenant: TenantId::new(tenant),
        class: Class::HIGHEST,
    };
    let settings = EdgeSettings {
        keys: Keys::default()
            .with(KeyHash::of("a"), identity(1))
            .with(KeyHash::of("b"), identity(2)),
        ..EdgeSettings::default()
    };
    let (script, gate) = Script::saying(&"a".repeat(9_000)).within(ROOMY).gated();
    gate.send(Word::Run).unwrap();
    gate.send(Word::Run).unwrap();
    (serving(script, settings).await, gate)
}

fn completion(name: &str, stream: bool) -> Request<Body> {
    let body = json!({"prompt": "x", "max_tokens": 9_000, "stream": stream});
    Request::post("/v1/completions")
        .header("content-type", "application/json")
        .header("authorization", "Bearer a")
        .header("x-request-id", name)
        .body(Body::from(body.to_string()))
        .unwrap()
}

async fn cancel(server: &Server, key: &str, id: &str) -> Answer {
    let request = Request::post(format!("/v1/requests/{id}/cancel"))
        .header("authorization", format!("Bearer {key}"))
        .body(Body::empty())
        .unwrap();
    server.send(request).await
}

fn last_error(body: &[u8]) -> Value {
    let text = std::str::from_utf8(body).unwrap();
    let last = text.trim_end().rsplit("\n\n").next().unwrap();
    serde_json::from_str(last.strip_prefix("data: ").unwrap()).unwrap()
}

#[tokio::test]
async fn a_stream_is_cancelled_by_its_own_id_and_only_by_its_own_tenant() {
    let (server, gate) = gated().await;
    gate.send(Word::Run).unwrap();
    let response = server.open(completion("one", true)).await;
    let mut body = response.into_body().into_data_stream();
    let first = body.next().await.unwrap().unwrap();
    let first = std::str::from_utf8(&first).unwrap().trim_end();
    let first: Value = serde_json::from_str(first.strip_prefix("data: ").unwrap()).unwrap();
    let id = first["id"].as_str().unwrap();

    let foreign = cancel(&server, "b", id).await;
    assert_eq!(foreign.status, 404);
    assert_eq!(foreign.json()["error"]["code"], "request_not_found");
    let own = cancel(&server, "a", id).await;
    assert_eq!(
        (own.status.as_u16(), own.json()),
        (200, json!({"id": id, "cancelled": 1}))
    );

    let rest = tokio::spawn(async move {
        let chunks: Vec<_> = body.map(Result::unwrap).collect().await;
        chunks.concat()
    });
    while !rest.is_finished() {
        let _ = gate.try_send(Word::Run);
        tokio::task::yield_now().await;
    }
    assert_eq!(
        last_error(&rest.await.unwrap())["error"]["code"],
        "cancelled"
    );
    server.settled().await;
    assert_eq!(
        cancel(&server, "a", id).await.status,
        404,
        "its name has gone with it"
    );
    let worker = server.service.serving().unwrap().worker();
    assert!(
        worker.stats().counters.output_tokens < 4_000,
        "it ended early"
    );
}

#[tokio::test]
async fn a_waiting_request_is_cancelled_by_the_name_that_its_client_gave() {
    let (server, gate) = gated().await;
    let mut running = Vec::new();
    let mut asked = Vec::new();
    for index in 0..=LIMITS.sequences_max {
        let (handle, name) = (server.clone(), format!("r{index}"));
        let stream = index < LIMITS.sequences_max;
        let task = tokio::spawn(async move { handle.open(completion(&name, stream)).await });
        if stream {
            while !task.is_finished() {
                let _ = gate.try_send(Word::Run);
                tokio::task::yield_now().await;
            }
            running.push(task.await.unwrap());
        } else {
            asked.push(task);
        }
    }
    let worker = server.service.serving().unwrap().worker();
    while (worker.stats().running, worker.stats().waiting) != (LIMITS.sequences_max, 1) {
        let _ = gate.try_send(Word::Run);
        tokio::task::yield_now().await;
    }
    let waiting = format!("r{}", LIMITS.sequences_max);
    assert_eq!(cancel(&server, "b", &waiting).await.status, 404);
    assert_eq!(cancel(&server, "a", &waiting).await.status, 200);
    let task = asked.pop().unwrap();
    while !task.is_finished() {
        let _ = gate.try_send(Word::Run);
        tokio::task::yield_now().await;
    }
    let response = task.await.unwrap();
    assert_eq!(response.status(), 400);
    let bytes = axum::body::to_bytes(response.into_body(), usize::MAX)
        .await
        .unwrap();
    let error: Value = serde_json::from_slice(&bytes).unwrap();
    assert_eq!(error["error"]["code"], "cancelled");
    let stats = worker.stats();
    assert_eq!(
        (stats.waiting, stats.running),
        (0, LIMITS.sequences_max),
        "{stats:?}"
    );
    drop((running, gate));
    server.settled().await;
}
