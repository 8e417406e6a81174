//! `Idempotency-Key`: one answer for one key, and its work done once.

use std::sync::mpsc::SyncSender;
use std::time::Duration;

use axum::body::Body;
use axum::http::Request;
use futures::poll;
use serde_json::{Value, json};
use serve_core::{Class, TenantId};
use serve_http::EdgeSettings;
use serve_http::auth::{Identity, KeyHash, Keys};
use tokio::task::JoinHandle;

use crate::support::{Answer, ROOMY, Script, Server, Word, post, serving, user};

const COMPLETION: &str = "/v1/completions";
const CHAT: &str = "/v1/chat/completions";

fn body() -> Value {
    json!({"prompt": "x", "max_tokens": 50})
}

fn keyed(path: &str, key: &str, body: &Value) -> Request<Body> {
    let mut request = post(path, body.to_string());
    request
        .headers_mut()
        .insert("idempotency-key", key.parse().unwrap());
    request
}

async fn plain(settings: EdgeSettings) -> Server {
    serving(Script::saying("hello"), settings).await
}

/// A server whose steps wait for a word, past its warm-up.
async fn gated() -> (Server, SyncSender<Word>) {
    let (script, gate) = Script::saying(&"a".repeat(9_000)).within(ROOMY).gated();
    gate.send(Word::Run).unwrap();
    gate.send(Word::Run).unwrap();
    (serving(script, EdgeSettings::default()).await, gate)
}

fn ask(server: &Server, key: &str) -> JoinHandle<Answer> {
    let server = server.clone();
    let request = keyed(COMPLETION, key, &body());
    tokio::spawn(async move { server.send(request).await })
}

/// Lets the tasks that are there get as far as they can without a step.
async fn turns() {
    for _ in 0..100 {
        tokio::task::yield_now().await;
    }
}

fn live(server: &Server) -> usize {
    server.service.serving().unwrap().worker().live()
}

async fn begun(server: &Server) {
    while live(server) == 0 {
        tokio::task::yield_now().await;
    }
}

/// Requests that have finished, the warm-up among them.
fn finished(server: &Server) -> u64 {
    let worker = server.service.serving().unwrap().worker();
    worker.stats().counters.finished
}

fn is_replayed(answer: &Answer) -> bool {
    let header = answer.headers.get("idempotent-replayed");
    header.is_some_and(|value| value == "true")
}

#[tokio::test]
async fn the_same_request_again_is_given_the_first_answer() {
    let server = plain(EdgeSettings::default()).await;
    let chat = json!({"messages": user("x"), "temperature": 1});
    for (path, body) in [(COMPLETION, body()), (CHAT, chat)] {
        let first = server.send(keyed(path, "k", &body)).await;
        assert_eq!(first.status, 200, "{}", first.body);
        assert!(!is_replayed(&first));
        assert_eq!(first.headers["content-type"], "application/json");
        let again = server.send(keyed(path, "k", &body)).await;
        assert_eq!(again.status, 200);
        assert!(is_replayed(&again));
        assert_eq!(again.headers["content-type"], "application/json");
        assert_eq!(again.body, first.body, "its id too");
        assert_ne!(again.headers["x-request-id"], first.headers["x-request-id"]);
        let other = server.send(keyed(path, "other", &body)).await;
        assert_ne!(other.json()["id"], first.json()["id"]);
        assert!(!is_replayed(&other));
    }
}

#[tokio::test]
async fn another_body_under_the_same_key_is_refused() {
    let server = plain(EdgeSettings::default()).await;
    let first = server.send(keyed(COMPLETION, "k", &body())).await;
    assert_eq!(first.status, 200);
    let other = json!({"prompt": "y", "max_tokens": 50});
    let refused = server.send(keyed(COMPLETION, "k", &other)).await;
    assert_eq!(refused.status, 422);
    assert_eq!(refused.json()["error"]["code"], "idempotency_key_reused");
    let again = server.send(keyed(COMPLETION, "k", &body())).await;
    assert_eq!(again.body, first.body);
}

#[tokio::test]
async fn a_key_belongs_to_its_tenant() {
    let identity = |tenant| Identity {
        tenant: TenantId::new(tenant),
        class: Class::default(),
    };
    let keys = Keys::default()
        .with(KeyHash::of("one"), identity(1))
        .with(KeyHash::of("two"), identity(2));
    let server = plain(EdgeSettings {
        keys,
        ..EdgeSettings::default()
    })
    .await;
    let of = |who: &str| {
        let mut request = keyed(COMPLETION, "k", &body());
        let bearer = format!("Bearer {who}").parse().unwrap();
        request.headers_mut().insert("authorization", bearer);
        server.send(request)
    };
    let (one, two) = (of("one").await, of("two").await);
    assert_eq!((one.status.as_u16(), two.status.as_u16()), (200, 200));
    assert!(!is_replayed(&two));
    assert_ne!(one.json()["id"], two.json()["id"]);
}

#[tokio::test]
async fn the_same_request_at_once_is_run_once() {
    let (server, gate) = gated().await;
    let before = finished(&server);
    let asked: Vec<_> = (0..8).map(|_| ask(&server, "k")).collect();
    begun(&server).await;
    turns().await;
    assert_eq!(live(&server), 1);
    drop(gate);
    let mut answers = Vec::new();
    for asked in asked {
        answers.push(asked.await.unwrap());
    }
    assert!(answers.iter().all(|answer| answer.status == 200));
    assert!(answers.iter().all(|answer| answer.body == answers[0].body));
    let own = answers.iter().filter(|answer| !is_replayed(answer));
    assert_eq!(own.count(), 1, "one of them was first");
    server.settled().await;
    assert_eq!(finished(&server) - before, 1);
}

#[tokio::test]
async fn the_work_goes_on_for_those_who_wait_when_the_first_goes_away() {
    let (server, gate) = gated().await;
    let before = finished(&server);
    let first = ask(&server, "k");
    begun(&server).await;
    let second = ask(&server, "k");
    turns().await;
    first.abort();
    assert!(first.await.unwrap_err().is_cancelled());
    assert_eq!(live(&server), 1);
    drop(gate);
    let answer = second.await.unwrap();
    assert_eq!(answer.status, 200, "{}", answer.body);
    server.settled().await;
    assert_eq!(finished(&server) - before, 1);
}

#[tokio::test]
async fn the_work_is_cancelled_when_the_last_goes_away_and_a_retry_runs_anew() {
    let (server, gate) = gated().await;
    let before = finished(&server);
    let asked = [ask(&server, "k"), ask(&server, "k")];
    begun(&server).await;
    turns().await;
    for asked in asked {
        asked.abort();
        assert!(asked.await.unwrap_err().is_cancelled());
    }
    drop(gate);
    server.settled().await;
    assert_eq!(finished(&server), before);
    let again = server.send(keyed(COMPLETION, "k", &body())).await;
    assert_eq!(again.status, 200);
    assert!(!is_replayed(&again));
}

#[tokio::test]
async fn a_failure_is_told_to_all_who_wait_and_not_stored() {
    let (server, gate) = gated().await;
    let asked = [ask(&server, "k"), ask(&server, "k")];
    begun(&server).await;
    turns().await;
    gate.send(Word::Fail).unwrap();
    for asked in asked {
        let failed = asked.await.unwrap();
        assert_eq!(failed.status, 500);
        assert_eq!(failed.json()["error"]["code"], "backend_error");
        assert!(!is_replayed(&failed));
    }
    drop(gate);
    let again = server.send(keyed(COMPLETION, "k", &body())).await;
    assert_eq!(again.status, 200);
    assert!(!is_replayed(&again));
}

#[tokio::test]
async fn a_request_that_waits_for_anothers_work_has_a_time_limit_of_its_own() {
    let (server, gate) = gated().await;
    let mut first = std::pin::pin!(server.send(keyed(COMPLETION, "k", &body())));
    while live(&server) == 0 {
        assert!(poll!(first.as_mut()).is_pending());
        tokio::task::yield_now().await;
    }
    let mut hurried = keyed(COMPLETION, "k", &body());
    let millis = "20".parse().unwrap();
    hurried.headers_mut().insert("x-request-timeout-ms", millis);
    let late = server.send(hurried).await;
    assert_eq!(late.status, 504);
    assert_eq!(late.json()["error"]["code"], "deadline_exceeded");
    drop(gate);
    assert_eq!(first.await.status, 200);
}

#[tokio::test]
async fn a_key_that_cannot_be_kept_is_refused_by_name() {
    let server = plain(EdgeSettings::default()).await;
    for key in ["", "a b", &"k".repeat(256)] {
        let refused = server.send(keyed(COMPLETION, key, &body())).await;
        assert_eq!(refused.status, 400, "{key}");
        let error = &refused.json()["error"];
        assert_eq!(error["code"], "invalid_value");
        assert_eq!(error["param"], "Idempotency-Key");
    }
    let stream = json!({"prompt": "x", "stream": true});
    let refused = server.send(keyed(COMPLETION, "k", &stream)).await;
    assert_eq!(refused.status, 400);
    let error = &refused.json()["error"];
    assert_eq!(error["code"], "conflicting_parameters");
    assert_eq!(error["param"], "stream");
    assert!(
        error["message"]
            .as_str()
            .unwrap()
            .contains("Idempotency-Key")
    );
}

#[tokio::test]
async fn the_settings_turn_it_off_and_bound_what_is_kept() {
    let off = EdgeSettings {
        idempotency_ttl: Duration::ZERO,
        ..EdgeSettings::default()
    };
    let tight = EdgeSettings {
        idempotency_bytes_max: 1,
        ..EdgeSettings::default()
    };
    for settings in [off, tight] {
        let server = plain(settings).await;
        let first = server.send(keyed(COMPLETION, "k", &body())).await;
        let again = server.send(keyed(COMPLETION, "k", &body())).await;
        assert_eq!((first.status.as_u16(), again.status.as_u16()), (200, 200));
        assert!(!is_replayed(&again));
        assert_ne!(first.json()["id"], again.json()["id"]);
    }
}
