//! What a rate pays for: the tokens that texts are made, whatever becomes of their requests.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc::SyncSender;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use serve_sched::Settings;

use crate::refusals::counting;
use crate::support::{Server, Word};

const PER_S: f64 = 0.01;
const BURST_S: f64 = 80_000.0;

/// A server whose engine gets no further, with a token rate of `PER_S`, and how many tokens it has made of texts.
async fn rated(scope: &str, more: &[(&str, &str)]) -> (Server, Arc<AtomicU32>, SyncSender<Word>) {
    let mut settings = Settings::default();
    let (per_s, burst_s) = (PER_S.to_string(), BURST_S.to_string());
    for (name, value) in [(scope, &*per_s), ("rate_burst", &*burst_s)]
        .iter()
        .chain(more)
    {
        settings.set_text(name, value).unwrap();
    }
    counting(&settings, |text| &text.tokens).await
}

/// Tokens of the longest text below.
const LONGEST: u32 = 400;

/// Requests whose texts are made tokens, and that are then refused by their client's own doing, or left.
fn asks() -> Vec<(&'static str, Value)> {
    const COMPLETION: &str = "/v1/completions";
    let empty = json!({"role": "user", "content": ""});
    vec![
        // One request holds 128 tokens.
        (COMPLETION, json!({"prompt": "x".repeat(LONGEST as usize)})),
        (
            COMPLETION,
            json!({"prompt": "x".repeat(100), "max_tokens": 100}),
        ),
        (
            COMPLETION,
            json!({"prompt": "x".repeat(100), "max_tokens": 5, "timeout_ms": 1}),
        ),
        (
            COMPLETION,
            json!({"prompt": "x".repeat(100), "max_tokens": 5, "queue_timeout_ms": 1}),
        ),
        (
            COMPLETION,
            json!({"prompt": "x".repeat(60), "max_tokens": 5}),
        ),
        ("/v1/chat/completions", json!({"messages": vec![empty; 50]})),
    ]
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_more_texts_are_made_tokens_than_the_rate_pays_for() {
    for scope in ["tenant_tokens_per_s", "tokens_per_s"] {
        for (path, body) in asks() {
            let start = Instant::now();
            let (server, tokens, gate) = rated(scope, &[]).await;
            // Clients come eight at once, and each leaves after a while.
            for _ in 0..25 {
                let clients = (0..8).map(|index| {
                    let (server, body) = (server.clone(), body.clone());
                    tokio::spawn(async move {
                        let patience = Duration::from_millis(2 * index);
                        let answer = tokio::time::timeout(patience, server.post(path, body));
                        answer.await.ok().map(|answer| answer.status.as_u16())
                    })
                });
                for status in futures::future::join_all(clients).await {
                    let status = status.unwrap().unwrap_or(0);
                    assert_ne!(status, 200, "the engine gets no further");
                }
            }
            drop(gate);
            server.settled().await;
            let burst = PER_S * BURST_S;
            let paid = burst + PER_S * start.elapsed().as_secs_f64() + f64::from(LONGEST);
            let made = tokens.load(Ordering::SeqCst);
            assert!(f64::from(made) <= paid, "{scope}: {made} tokens of {body}");
            assert!(
                f64::from(made) >= burst / 2.0,
                "{scope}: {made} tokens of {body}"
            );
        }
    }
}

/// Where there is no room, a text has been made tokens in vain, and its client is not to blame.
#[tokio::test]
async fn what_is_refused_for_want_of_room_costs_nothing() {
    let (server, tokens, gate) = rated("tenant_tokens_per_s", &[("queue_cap", "1")]).await;
    let body = json!({"prompt": "x", "max_tokens": 1});
    let mut waiting = Vec::new();
    let live = || server.service.serving().unwrap().worker().live();
    // Until the queue is full.
    loop {
        let (before, server, body) = (live(), server.clone(), body.clone());
        let ask = tokio::spawn(async move { server.post("/v1/completions", body).await });
        while live() == before && !ask.is_finished() {
            tokio::task::yield_now().await;
        }
        if ask.is_finished() {
            break;
        }
        waiting.push(ask);
    }
    let before = tokens.load(Ordering::SeqCst);
    for _ in 0..100 {
        let long = json!({"prompt": "x".repeat(50), "max_tokens": 1});
        let refused = server.post("/v1/completions", long).await;
        assert_eq!(refused.json()["error"]["code"], "overloaded");
    }
    assert_eq!(tokens.load(Ordering::SeqCst) - before, 5_000);
    drop(gate);
    for answer in waiting {
        assert_eq!(answer.await.unwrap().status, 200);
    }
}
