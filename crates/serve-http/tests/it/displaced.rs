//! A request that waits can still be refused: it is answered with a status, whether or not it asks for a
//! stream, and a flood of one tenant's leaves room for another's.

use std::sync::mpsc::SyncSender;
use std::time::Duration;

use axum::body::Body;
use axum::http::Request;
use serde_json::{Value, json};
use serve_core::{Class, TenantId};
use serve_http::auth::{Identity, KeyHash, Keys};
use serve_http::{EdgeSettings, Loaded, Service};
use serve_sched::Policies;
use serve_sched::admit::QueueCap;
use serve_sched::order::{FairTenants, Fifo, Order};
use tokio::task::JoinHandle;

use crate::metrics::Scrape;
use crate::support::{Answer, LIMITS, ROOMY, Script, Server, Word, loaded};

const QUEUE_CAP: u32 = 3;

/// Requests of one tenant that fit in.
const PLACES: usize = (LIMITS.sequences_max + QUEUE_CAP) as usize;

/// A gated server whose queue is as short as its settings say, as that of the binary is.
async fn gated(order: Box<dyn Order>) -> (Server, SyncSender<Word>) {
    let identity = |tenant| Identity {
        tenant: TenantId::new(tenant),
        class: Class::HIGHEST,
    };
    let service = Service::new(EdgeSettings {
        queue_cap: QUEUE_CAP,
        keys: Keys::default()
            .with(KeyHash::of("flood"), identity(1))
            .with(KeyHash::of("light"), identity(2)),
        ..EdgeSettings::default()
    });
    let (script, gate) = Script::saying(&"a".repeat(9_000)).within(ROOMY).gated();
    gate.send(Word::Run).unwrap();
    gate.send(Word::Run).unwrap();
    let policies = Policies {
        admit: vec![Box::new(QueueCap::new(QUEUE_CAP))],
        order,
        ..Policies::default()
    };
    let loaded = Loaded {
        policies,
        ..loaded(script)
    };
    service.launch(loaded).await.unwrap();
    (Server::over(service), gate)
}

fn ask(server: &Server, key: &str, body: &Value) -> JoinHandle<Answer> {
    let request = Request::post("/v1/completions")
        .header("content-type", "application/json")
        .header("authorization", format!("Bearer {key}"))
        .body(Body::from(body.to_string()))
        .unwrap();
    let server = server.clone();
    tokio::spawn(async move { server.send(request).await })
}

fn long(stream: bool) -> Value {
    json!({"prompt": "x", "max_tokens": 9_000, "stream": stream})
}

/// Fills every place with requests of the flooding tenant, the newest last.
async fn flood(server: &Server, stream: bool) -> Vec<JoinHandle<Answer>> {
    let worker = server.service.serving().unwrap().worker();
    let mut asked = Vec::new();
    while asked.len() < PLACES {
        asked.push(ask(server, "flood", &long(stream)));
        while worker.live() < asked.len() {
            tokio::task::yield_now().await;
        }
    }
    asked
}

/// Lets steps run until there is an answer.
async fn answered(gate: &SyncSender<Word>, asked: JoinHandle<Answer>) -> Answer {
    while !asked.is_finished() {
        let _ = gate.try_send(Word::Run);
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    asked.await.unwrap()
}

/// It is an answer as to a request that has just come, and no stream.
fn assert_refused(answer: &Answer, status: u16, code: &str) {
    assert_eq!(answer.status, status, "{}", answer.body);
    assert_eq!(answer.headers["content-type"], "application/json");
    assert_eq!(answer.json()["error"]["code"], code);
}

async fn end(server: Server, gate: SyncSender<Word>, asked: Vec<JoinHandle<Answer>>) {
    for request in &asked {
        request.abort();
    }
    drop(gate);
    server.settled().await;
    let worker = server.service.serving().unwrap().worker();
    let emptied = tokio::time::timeout(Duration::from_secs(60), worker.idle()).await;
    assert!(emptied.is_ok(), "a place has not come back");
}

#[tokio::test]
async fn a_flood_makes_room_for_another_tenant_where_the_order_is_fair() {
    for stream in [false, true] {
        let (server, gate) = gated(Box::new(FairTenants::default())).await;
        let short = json!({"prompt": "x", "max_tokens": 2});
        // So that it is known how long a request takes.
        let first = answered(&gate, ask(&server, "flood", &short)).await;
        assert_eq!(first.status, 200, "{}", first.body);
        let mut flooding = flood(&server, stream).await;
        let newest = ask(&server, "flood", &long(stream)).await.unwrap();
        assert_refused(&newest, 429, "overloaded");

        let worker = server.service.serving().unwrap().worker();
        let live = worker.live();
        let light = ask(&server, "light", &long(stream));
        while worker.live() == live && !light.is_finished() {
            tokio::task::yield_now().await;
        }
        assert!(!light.is_finished(), "it was refused");
        let displaced = answered(&gate, flooding.pop().unwrap()).await;
        assert_refused(&displaced, 429, "overloaded");
        assert!(displaced.headers.contains_key("retry-after"));
        assert!(flooding.iter().all(|request| !request.is_finished()));
        let failed = Scrape::of(&server).await;
        assert_eq!(
            failed.get("serve_requests_in_flight"),
            PLACES as f64,
            "the displaced request has ended"
        );
        flooding.push(light);
        end(server, gate, flooding).await;
    }
}

#[tokio::test]
async fn in_order_of_arrival_the_last_to_come_is_refused() {
    let (server, gate) = gated(Box::new(Fifo)).await;
    let flooding = flood(&server, true).await;
    for key in ["flood", "light"] {
        let refused = ask(&server, key, &long(true)).await.unwrap();
        assert_refused(&refused, 429, "overloaded");
    }
    assert!(flooding.iter().all(|request| !request.is_finished()));
    end(server, gate, flooding).await;
}

#[tokio::test]
async fn a_stream_that_never_starts_is_answered_with_the_status_of_its_end() {
    let table = [
        ("queue_timeout_ms", 429, "queue_timeout"),
        ("timeout_ms", 504, "deadline_exceeded"),
    ];
    for (limit, status, code) in table {
        let (server, gate) = gated(Box::new(Fifo)).await;
        let mut flooding = flood(&server, true).await;
        // Its place is the next one's.
        flooding.pop().unwrap().abort();
        let worker = server.service.serving().unwrap().worker();
        while worker.live() == PLACES {
            let _ = gate.try_send(Word::Run);
            tokio::task::yield_now().await;
        }
        let mut body = long(true);
        body[limit] = 20.into();
        let late = answered(&gate, ask(&server, "light", &body)).await;
        assert_refused(&late, status, code);
        end(server, gate, flooding).await;
    }
}

#[tokio::test]
async fn a_waiting_stream_whose_client_goes_away_is_cancelled() {
    let (server, gate) = gated(Box::new(Fifo)).await;
    let mut flooding = flood(&server, true).await;
    let worker = server.service.serving().unwrap().worker();
    let before = worker.stats().counters.cancelled;
    flooding.pop().unwrap().abort();
    while worker.live() == PLACES {
        let _ = gate.try_send(Word::Run);
        tokio::task::yield_now().await;
    }
    assert_eq!(worker.stats().counters.cancelled, before + 1);
    end(server, gate, flooding).await;
}
