//! What the client notes of each kind of answer.

use std::time::Duration;

use serve_bench::drive::drive;
use serve_bench::http::Target;
use serve_bench::record::{Outcome, Record};
use serve_bench::workload::{Arrivals, Prompts, Workload};
use tokio::sync::watch;

use crate::server::{Script, Server, end, event, head, status, text};

async fn rows(server: &Server, arrivals: Arrivals, requests: u64) -> Vec<Record> {
    let workload = Workload::new(arrivals, Prompts::builtin(), requests, 7, 1).unwrap();
    let target = Target::new(&server.url(), None, None).await.unwrap();
    let (_keep, stop) = watch::channel(false);
    let mut rows = Vec::new();
    let patience = Duration::from_secs(60);
    drive(&workload, target, patience, stop, |row| rows.push(row)).await;
    rows.sort_by_key(|row| row.request);
    rows
}

async fn one(script: Script) -> Record {
    let server = Server::start(vec![script]).await;
    rows(&server, Arrivals::Closed { clients: 1 }, 1)
        .await
        .remove(0)
}

#[tokio::test]
async fn a_whole_answer_is_noted_in_order() {
    let role = event(
        0,
        r#"{"choices":[{"delta":{"role":"assistant","content":""}}]}"#,
    );
    let script = vec![
        head(),
        role,
        text(30, "a"),
        text(60, "bc"),
        text(30, "d"),
        end(4),
    ];
    let row = one(script).await;
    assert_eq!(row.outcome, Outcome::Ok, "{row:?}");
    assert_eq!(
        (row.status, row.finish_reason.as_deref()),
        (Some(200), Some("length"))
    );
    assert_eq!((row.prompt_tokens, row.output_tokens), (Some(5), Some(4)));
    assert_eq!(row.chunks.len(), 3, "the role alone is no text");
    let mut times = vec![
        row.scheduled_ns,
        row.sent_ns.unwrap(),
        row.headers_ns.unwrap(),
    ];
    times.extend(row.chunks.iter().map(|chunk| chunk.at_ns));
    times.push(row.end_ns.unwrap());
    assert!(times.is_sorted(), "{times:?}");
    // A sleep never ends early, so the script's waits are lower bounds.
    assert!(
        row.chunks[2].at_ns - row.sent_ns.unwrap() >= 120_000_000,
        "{row:?}"
    );
}

#[tokio::test]
async fn the_request_asks_for_what_was_planned() {
    let server = Server::start(vec![vec![head(), text(0, "a"), end(1)]]).await;
    rows(&server, Arrivals::Closed { clients: 1 }, 1).await;
    let body = server.bodies.lock().unwrap().remove(0);
    let body: serde_json::Value = serde_json::from_str(&body).unwrap();
    assert_eq!(body["model"], "scripted");
    assert_eq!(body["max_tokens"], 7);
    assert_eq!(body["stream"], true);
    assert_eq!(body["messages"][0]["role"], "user");
}

#[tokio::test]
async fn too_busy_is_a_refusal_and_any_other_status_a_failure() {
    let error = r#"{"error":{"message":"the queue is full","type":"overloaded"}}"#;
    for (line, outcome) in [
        ("503 Service Unavailable", Outcome::Refused),
        ("429 Too Many Requests", Outcome::Refused),
        ("500 Internal Server Error", Outcome::Failed),
        ("404 Not Found", Outcome::Failed),
    ] {
        let row = one(status(line, error)).await;
        assert_eq!(row.outcome, outcome, "{line}");
        assert_eq!(row.error, Some(format!("{line}: the queue is full")));
        assert!(row.chunks.is_empty());
    }
    assert_eq!(
        one(status("503 Busy", "plain")).await.outcome,
        Outcome::Refused
    );
}

#[tokio::test]
async fn an_answer_that_is_cut_short_is_a_failure_that_keeps_its_chunks() {
    let cut = one(vec![head(), text(0, "a"), text(0, "b")]).await;
    assert_eq!(cut.outcome, Outcome::Failed);
    assert_eq!(
        cut.error.as_deref(),
        Some("the stream ended without a finish reason")
    );
    assert!(!cut.chunks.is_empty());

    let error = event(0, r#"{"error":{"message":"device lost"}}"#);
    let error = one(vec![head(), text(0, "a"), error, end(1)]).await;
    assert_eq!(error.outcome, Outcome::Failed);
    assert!(error.error.unwrap().contains("device lost"));

    let garbage = one(vec![head(), event(0, "{oops"), end(1)]).await;
    assert_eq!(garbage.outcome, Outcome::Failed);
    assert!(
        garbage
            .error
            .unwrap()
            .starts_with("a chunk is no JSON object")
    );
}

#[tokio::test]
async fn a_stream_without_its_last_word_is_whole_if_it_gave_a_reason() {
    let finish = event(
        0,
        r#"{"choices":[{"delta":{"content":"a"},"finish_reason":"stop"}]}"#,
    );
    let row = one(vec![head(), finish]).await;
    assert_eq!(row.outcome, Outcome::Ok, "{row:?}");
    assert_eq!((row.output_tokens, row.chunks.len()), (None, 1));
}

#[tokio::test]
async fn nobody_listening_is_a_failure_with_its_cause() {
    let server = Server::start(vec![vec![]]).await;
    let target = Target::new("http://127.0.0.1:9", Some("m".to_owned()), None)
        .await
        .unwrap();
    drop(server);
    let arrivals = Arrivals::Closed { clients: 1 };
    let workload = Workload::new(arrivals, Prompts::builtin(), 1, 1, 0).unwrap();
    let (_keep, stop) = watch::channel(false);
    let mut rows = Vec::new();
    drive(&workload, target, Duration::from_secs(60), stop, |row| {
        rows.push(row)
    })
    .await;
    assert_eq!(
        (rows.len(), rows[0].outcome, rows[0].status),
        (1, Outcome::Failed, None)
    );
    assert!(
        rows[0]
            .error
            .as_deref()
            .unwrap()
            .to_lowercase()
            .contains("refused"),
        "{rows:?}"
    );
}

#[tokio::test]
async fn every_request_of_an_open_loop_has_its_row_and_its_count() {
    let ok = vec![head(), text(5, "a"), end(1)];
    let scripts = vec![
        ok.clone(),
        status("503 Busy", "{}"),
        status("500 Bad", "{}"),
        ok,
    ];
    let server = Server::start(scripts).await;
    let rows = rows(&server, Arrivals::Poisson { rate_per_s: 200.0 }, 40).await;
    assert_eq!(rows.len(), 40);
    assert!(rows.iter().map(|row| row.request).eq(0..40));
    let count = |outcome| rows.iter().filter(|row| row.outcome == outcome).count();
    let counts = [Outcome::Ok, Outcome::Refused, Outcome::Failed].map(count);
    assert_eq!(counts, [38, 1, 1]);
    assert!(
        rows.iter()
            .all(|row| row.sent_ns.unwrap() >= row.scheduled_ns)
    );
    assert_eq!(server.bodies.lock().unwrap().len(), 40);
}
