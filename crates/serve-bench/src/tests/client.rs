//! What the client notes of each kind of answer.

use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::store::record::{Outcome, Record};
use crate::transport::drive::{Driving, Timer, drive};
use crate::transport::http::connection::{Dial, Stream};
use crate::transport::http::{HttpClient, Target};
use crate::workload::Workload;
use crate::workload::spec::Spec;
use futures::FutureExt;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::sync::watch;
use tokio::time::Instant;

use crate::tests::server::{Part, Script, Server, end, event, head, status, text};

/// Rows of a workload in the order of its requests.
async fn rows(address: &str, spec: &str) -> Vec<Record> {
    let workload = Workload::new(Spec::parse("test", spec).unwrap(), Path::new(".")).unwrap();
    let target = Target::new(address, Some("scripted".to_owned()), None)
        .await
        .unwrap();
    rows_with(&workload, &target).await
}

async fn rows_with(workload: &Workload, target: &Target) -> Vec<Record> {
    let client = HttpClient::new(target, workload.spec()).unwrap();
    let (_keep, stop) = watch::channel(false);
    let driving = Driving {
        origin: Instant::now(),
        patience: Duration::from_secs(60),
        timer: Timer::Thread,
        stop,
    };
    let mut rows = Vec::new();
    drive(workload, client, driving, |row| rows.push(row)).await;
    rows.sort_by_key(|row| (row.request, row.attempt));
    rows
}

const ONE: &str = "requests = 1\n[arrivals.closed]\nclients = 1\n";

async fn one(script: Script) -> Record {
    let server = Server::start(vec![script]).await;
    rows(&server.url(), ONE).await.remove(0)
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
    let prompts =
        "[[prompts]]\nname = \"a\"\ntokens = { fixed = 3 }\noutput_tokens = { fixed = 7 }\n";
    rows(&server.url(), &format!("{ONE}{prompts}")).await;
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

/// A chunk whose delta is this.
fn delta(delta: &str) -> Part {
    event(0, &format!(r#"{{"choices":[{{"delta":{delta}}}]}}"#))
}

#[tokio::test]
async fn a_thought_is_one_chunk_under_whichever_names_it_comes() {
    for (said, chunks) in [
        (r#"{"reasoning_content":"a"}"#, 1),
        (r#"{"reasoning":"a"}"#, 1),
        (r#"{"reasoning":"a","reasoning_content":"a"}"#, 1),
        (r#"{"reasoning_content":"a","reasoning":"a"}"#, 1),
        (r#"{"reasoning_content":"a","reasoning":""}"#, 1),
        (r#"{"reasoning_content":"","reasoning":"a"}"#, 1),
        (r#"{"reasoning_content":null,"reasoning":"a"}"#, 1),
        (r#"{"reasoning_content":"a","reasoning":null}"#, 1),
        (
            r#"{"content":null,"reasoning_content":"a","reasoning":{"summary":[]}}"#,
            1,
        ),
        (r#"{"content":"","reasoning_content":"","reasoning":""}"#, 0),
        (
            r#"{"content":"b","reasoning_content":"","reasoning":""}"#,
            1,
        ),
        (
            r#"{"content":"b","reasoning_content":"a","reasoning":"a"}"#,
            1,
        ),
        (r#"{"role":"assistant","reasoning":[{"text":"a"}]}"#, 0),
    ] {
        let row = one(vec![head(), delta(said), text(0, "end"), end(2)]).await;
        assert_eq!(row.outcome, Outcome::Ok, "{said}: {row:?}");
        assert_eq!(row.chunks.len(), chunks + 1, "{said}");
        let whole = format!(
            r#"{{"choices":[{{"message":{said},"finish_reason":"stop"}}],"usage":{{"completion_tokens":2}}}}"#
        );
        let server = Server::start(vec![status("200 OK", &whole)]).await;
        let spec = format!("{ONE}[request]\nstream = false\n");
        let row = rows(&server.url(), &spec).await.remove(0);
        assert_eq!(row.outcome, Outcome::Ok, "{said}: {row:?}");
        assert_eq!(row.chunks.len(), chunks, "{said}");
    }
}

#[tokio::test]
async fn no_stream_that_breaks_off_is_a_whole_answer_however_politely_it_ends() {
    let finish = r#"data: {"choices":[{"delta":{},"finish_reason":"stop"}]}"#;
    let flat = r#"data: {"object":"error","message":"engine died","type":"x","code":500}"#;
    let nested = r#"data: {"error":{"message":"engine died"}}"#;
    let named = "event: error\ndata: engine died";
    let named_json = "event: error\ndata: {\"detail\":\"engine died\"}";
    let aborted =
        r#"data: {"choices":[{"delta":{"content":"engine died"},"finish_reason":"abort"}]}"#;
    let nothing = r#"data: {"detail":"engine died"}"#;
    let null = r#"data: {"choices":null,"usage":{"completion_tokens":1}}"#;
    let done = "data: [DONE]";
    for (events, cause) in [
        (&[finish, done][..], None),
        (&[finish], None),
        (&[finish, null, done], None),
        (&[finish, "event: message\ndata: {}", done], None),
        (&[finish, "data: [DONE] "], None),
        (&[done], Some("cut_short")),
        (&[], Some("cut_short")),
        (&[null, done], Some("cut_short")),
        (&[nothing, done], Some("cut_short")),
        (&[flat, done], Some("server_error")),
        (&[flat], Some("server_error")),
        (&[finish, flat, done], Some("server_error")),
        (&[nested, done], Some("server_error")),
        (&[named, done], Some("server_error")),
        (&[named_json, done], Some("server_error")),
        (&[finish, named, done], Some("server_error")),
        (&[aborted, done], Some("server_error")),
    ] {
        let events = events.iter().map(|event| format!("{event}\n\n"));
        let rest = (Duration::ZERO, events.collect::<String>());
        let row = one(vec![head(), text(0, "a"), rest]).await;
        assert_eq!(row.cause.as_deref(), cause, "{row:?}");
        let outcome = if cause.is_none() {
            Outcome::Ok
        } else {
            Outcome::Failed
        };
        assert_eq!(row.outcome, outcome);
        assert!(!row.chunks.is_empty(), "what came is kept");
        if cause == Some("server_error") && row.finish_reason.as_deref() != Some("abort") {
            assert!(
                row.error.as_deref().unwrap().contains("engine died"),
                "{row:?}"
            );
        }
    }
    for body in [
        r#"{"object":"error","message":"engine died"}"#,
        r#"{"error":"engine died"}"#,
        r#"{"detail":"engine died"}"#,
        r#"{"choices":[]}"#,
        "[]",
    ] {
        let server = Server::start(vec![status("200 OK", body)]).await;
        let spec = format!("{ONE}[request]\nstream = false\n");
        let row = rows(&server.url(), &spec).await.remove(0);
        assert_eq!(row.outcome, Outcome::Failed, "{body}: {row:?}");
    }
}

#[tokio::test]
async fn nobody_listening_is_a_failure_with_its_cause() {
    let rows = rows("http://127.0.0.1:9", ONE).await;
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
    let rows = rows(
        &server.url(),
        "requests = 40\n[arrivals.poisson]\nrate_per_s = 200\n",
    )
    .await;
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

#[tokio::test]
async fn a_connection_that_is_reset_mid_stream_is_a_failure_that_says_so() {
    let listener = tokio::net::TcpListener::bind(("127.0.0.1", 0))
        .await
        .unwrap();
    let address = format!("http://{}", listener.local_addr().unwrap());
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            stream.readable().await.unwrap();
            let answer = head().1 + &text(0, "a").1;
            stream.write_all(answer.as_bytes()).await.unwrap();
            tokio::time::sleep(Duration::from_millis(50)).await;
            // Closing a socket with unread bytes in it, here the request's, resets the connection.
            drop(stream);
        }
    });
    let row = rows(&address, ONE).await.remove(0);
    assert_eq!(
        (row.outcome, row.cause.as_deref()),
        (Outcome::Failed, Some("cut_short")),
        "{row:?}"
    );
    assert!(row.error.as_deref().unwrap().contains("reset"), "{row:?}");
    assert_eq!(row.chunks.len(), 1);
}

/// A way to a server that answers everything, and what it hears.
fn hearing() -> (Dial, Arc<Mutex<String>>) {
    let seen = Arc::new(Mutex::new(String::new()));
    let heard = Arc::clone(&seen);
    let dial = Dial::new(move || {
        let (client, mut server) = tokio::io::duplex(1 << 16);
        let heard = Arc::clone(&heard);
        tokio::spawn(async move {
            let mut buffer = [0; 4096];
            while let Ok(read @ 1..) = server.read(&mut buffer).await {
                heard
                    .lock()
                    .unwrap()
                    .push_str(&String::from_utf8_lossy(&buffer[..read]));
                let body = text(0, "a").1 + &end(1).1;
                let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n", body.len());
                let _ = server.write_all((head + &body).as_bytes()).await;
            }
        });
        async move { Ok(Box::new(client) as Box<dyn Stream>) }.boxed()
    });
    (dial, seen)
}

#[tokio::test]
async fn a_tenant_sends_the_key_that_the_server_was_started_with_for_it() {
    let (dial, seen) = hearing();
    let spec = "requests = 30\n[arrivals.closed]\nclients = 1\n\
        [[tenants]]\nname = \"light\"\n[[tenants]]\nname = \"flood\"\n[[tenants]]\nname = \"other\"\n";
    let workload = Workload::new(Spec::parse("test", spec).unwrap(), Path::new(".")).unwrap();
    let key = Some("secret".to_owned());
    let target = Target::over(Some(dial), "http://memory", Some("m".to_owned()), key);
    let keys = ["light", "flood"].map(|name| (name.to_owned(), format!("key-of-{name}")));
    let target = target.await.unwrap().with_keys(keys).unwrap();
    seen.lock().unwrap().clear();
    let rows = rows_with(&workload, &target).await;
    let seen = seen.lock().unwrap();
    for (tenant, key) in [
        ("light", "key-of-light"),
        ("flood", "key-of-flood"),
        ("other", "secret"),
    ] {
        let of_tenant = rows
            .iter()
            .filter(|row| row.tenant.as_deref() == Some(tenant));
        let (asked, header) = (
            of_tenant.count(),
            format!("authorization: Bearer {key}\r\n"),
        );
        assert!(asked > 0, "{tenant}");
        assert_eq!(seen.matches(&header).count(), asked, "{tenant}\n{seen}");
    }
}

#[tokio::test]
async fn a_connection_is_kept_for_the_next_request_and_headers_say_who_asks() {
    let (dial, seen) = hearing();
    let spec = "requests = 2\n[arrivals.closed]\nclients = 1\n[request]\nextra = { priority = 3 }\n\
        [[classes]]\nname = \"paid\"\ndeadline_ms = 5000\n";
    let workload = Workload::new(Spec::parse("test", spec).unwrap(), Path::new(".")).unwrap();
    let key = Some("secret".to_owned());
    let target = Target::over(Some(dial), "http://memory", Some("m".to_owned()), key)
        .await
        .unwrap();
    seen.lock().unwrap().clear();
    let rows = rows_with(&workload, &target).await;
    assert!(
        rows.iter()
            .all(|row| row.outcome == Outcome::Ok && row.connected_ns.is_some()),
        "{rows:?}"
    );
    let seen = seen.lock().unwrap();
    assert_eq!(
        seen.matches("POST /v1/chat/completions").count(),
        2,
        "{seen}"
    );
    for header in [
        "authorization: Bearer secret",
        "x-request-class: paid",
        "x-request-timeout-ms: 49",
        "host: memory",
    ] {
        assert!(
            seen.contains(header)
                || header.ends_with("49") && seen.contains("x-request-timeout-ms: 5000"),
            "{header}\n{seen}"
        );
    }
    assert!(seen.contains(r#""priority":3"#), "{seen}");
}
