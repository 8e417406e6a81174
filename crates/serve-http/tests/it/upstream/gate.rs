//! The gate in front of the engine: class, deadline, limit, what the engine says of its load, drain.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};

use serde_json::json;
use serve_http::EdgeSettings;

use super::engine::{Engine, Reply, Stream};
use super::passing::open;
use super::{CHAT, Front, chat, settings, until};
use crate::support::{post, user};

/// Taken for dead, a busy engine would be asked no more, and one after the other all that are merely full.
#[tokio::test]
async fn a_busy_engine_is_busy_and_not_dead_and_its_hint_reaches_the_client() {
    for (status, hint) in [
        (429, "7"),
        (503, "7"),
        (503, "Wed, 21 Oct 2026 07:28:00 GMT"),
        (529, "1"),
    ] {
        let engine = Engine::start().await;
        let front = Front::of(&engine).await;
        let body = r#"{"error":{"message":"the queue is full"}}"#.to_owned();
        engine.does(move |_| Reply::Json(status, vec![("retry-after", hint)], body.clone()));
        for stream in [false, true] {
            let mut body = chat(stream);
            body["timeout_ms"] = json!(200);
            let answer = front.server.post(CHAT, body).await;
            if !stream {
                assert_eq!(answer.status, 429, "{status}");
                assert_eq!(answer.headers["retry-after"], hint);
                let error = &answer.json()["error"];
                assert_eq!(
                    (&error["code"], &error["type"]),
                    (&json!("overloaded"), &json!("server_error"))
                );
                assert!(
                    error["message"]
                        .as_str()
                        .unwrap()
                        .contains("the queue is full")
                );
            }
        }
        assert_eq!(front.state().await, "ready");
        let metrics = front.server.get("/metrics").await.body;
        assert!(metrics.contains("serve_state{state=\"ready\"} 1\n"));
        assert!(metrics.contains("serve_upstream_requests_total{outcome=\"overloaded\"}"));
        assert!(metrics.contains("serve_upstream_requests_total{outcome=\"broken\"} 0\n"));
    }
}

/// While the engine wants to be left alone the next one waits here, where a policy can refuse it and a deadline ends it.
#[tokio::test]
async fn nothing_is_sent_to_an_engine_that_wants_to_be_left_alone() {
    let engine = Engine::start().await;
    let front = Front::of(&engine).await;
    engine.seen();
    engine.next(Reply::Json(
        503,
        vec![("retry-after", "30")],
        "{}".to_owned(),
    ));
    assert_eq!(front.server.post(CHAT, chat(false)).await.status, 429);
    let body = json!({"messages": user("hi"), "timeout_ms": 50});
    let answer = front.server.post(CHAT, body).await;
    assert_eq!((answer.status.as_u16(), engine.seen().len()), (504, 1));
}

#[tokio::test]
async fn capacity_has_the_status_that_the_settings_ask_for() {
    let engine = Engine::start().await;
    let edge = EdgeSettings {
        capacity_status: serve_http::CapacityStatus::Unavailable,
        ..EdgeSettings::default()
    };
    let front = Front::with(settings(&engine), edge).await;
    engine.next(Reply::Json(429, vec![("retry-after", "3")], String::new()));
    let answer = front.server.post(CHAT, chat(false)).await;
    assert_eq!(answer.status, 503);
    assert_eq!(answer.headers["retry-after"], "3");
    assert_eq!(answer.json()["error"]["code"], "overloaded");
}

#[tokio::test]
async fn no_more_than_the_limit_are_with_the_engine_and_the_queue_is_kept_here() {
    let engine = Engine::start().await;
    let front = Front::of(&engine).await;
    engine.seen();
    let most = Arc::new(AtomicU32::new(0));
    let streams: Arc<Mutex<Vec<Stream>>> = Arc::default();
    let (held, at_most) = (Arc::clone(&streams), Arc::clone(&most));
    engine.does(move |_| {
        let (stream, reply) = Stream::new();
        let mut held = held.lock().unwrap();
        held.push(stream);
        at_most.fetch_max(held.len() as u32, Ordering::SeqCst);
        reply
    });
    let asked: Vec<_> = (0..9)
        .map(|n| {
            let server = front.server.clone();
            let mut request = post(CHAT, chat(true).to_string());
            let class = if n == 4 { "paid" } else { "free" };
            request
                .headers_mut()
                .insert("x-request-class", class.parse().unwrap());
            tokio::spawn(async move { server.send(request).await })
        })
        .collect();
    let ended = async {
        let mut statuses = Vec::new();
        for asked in asked {
            statuses.push(asked.await.unwrap().status.as_u16());
        }
        statuses
    };
    let finishing = async {
        loop {
            let stream = streams.lock().unwrap().pop();
            if let Some(stream) = stream {
                stream.end();
            }
            tokio::time::sleep(std::time::Duration::from_millis(5)).await;
        }
    };
    let statuses = tokio::select! {
        statuses = ended => statuses,
        () = finishing => panic!("it never ends"),
    };
    let of = |status| statuses.iter().filter(|&&it| it == status).count();
    assert_eq!(of(200) + of(429), 9, "{statuses:?}");
    assert!(of(200) >= 4 && of(429) > 0, "{statuses:?}");
    assert_eq!(
        statuses[4], 200,
        "the paid one takes a place from a free one"
    );
    assert!(most.load(Ordering::SeqCst) <= 2);
    assert_eq!(engine.seen().len(), of(200));
    front.settled().await;
}

/// What is left goes with the request, in a header and as the end of the wait.
#[tokio::test]
async fn what_is_left_of_a_deadline_goes_with_the_request_and_ends_it() {
    let engine = Engine::start().await;
    let front = Front::of(&engine).await;
    engine.seen();
    engine.does(|_| Reply::Never);
    let body = json!({"messages": user("hi"), "timeout_ms": 120});
    let answer = front.server.post(CHAT, body).await;
    assert_eq!(answer.status, 504);
    assert_eq!(answer.json()["error"]["code"], "deadline_exceeded");
    let left: u64 = engine.seen()[0].headers["x-request-timeout-ms"]
        .to_str()
        .unwrap()
        .parse()
        .unwrap();
    assert!((1..=120).contains(&left), "{left}");
    until("the engine has been told", || engine.working() == 0).await;
    // In mid-stream it is an event.
    let (stream, reply) = Stream::new();
    engine.next(reply);
    stream.token("one");
    let body = json!({"messages": user("hi"), "timeout_ms": 120, "stream": true});
    let text = open(&front, &body).await.rest().await;
    assert!(
        text.contains("one") && text.contains("\"code\":\"deadline_exceeded\""),
        "{text}"
    );
    until("the engine has been told", || engine.working() == 0).await;
    // Without one, nothing is said.
    engine.next(Reply::Usual);
    engine.seen();
    front.server.post(CHAT, chat(false)).await;
    assert!(
        !engine.seen()[0]
            .headers
            .contains_key("x-request-timeout-ms")
    );
    front.settled().await;
}

#[tokio::test]
async fn who_waits_too_long_is_told_and_never_sent() {
    let engine = Engine::start().await;
    let front = Front::of(&engine).await;
    let working = front.filled(&engine, true).await;
    let body = json!({"messages": user("hi"), "queue_timeout_ms": 30, "stream": true});
    let answer = front.server.post(CHAT, body).await;
    assert_eq!(
        answer.status, 429,
        "a stream that has not begun has the status of a refusal"
    );
    assert_eq!(answer.json()["error"]["code"], "queue_timeout");
    assert_eq!(engine.seen().len(), 2);
    working.iter().for_each(tokio::task::JoinHandle::abort);
    front.settled().await;
}

/// The engine is not told before the server's own drain is over: one that aborts at SIGTERM cuts nobody off.
#[tokio::test]
async fn a_drain_lets_streams_end_and_cuts_them_when_its_time_is_up() {
    for in_time in [true, false] {
        let engine = Engine::start().await;
        let edge = EdgeSettings {
            drain_timeout: match in_time {
                true => std::time::Duration::from_secs(60),
                false => std::time::Duration::from_millis(50),
            },
            ..EdgeSettings::default()
        };
        let front = Front::with(settings(&engine), edge).await;
        let (stream, reply) = Stream::new();
        engine.next(reply);
        let mut reader = open(&front, &chat(true)).await;
        stream.token("one");
        reader.next().await.unwrap();
        let service = Arc::clone(&front.server.service);
        let draining = tokio::spawn(async move { service.drain().await });
        while front.state().await != "draining" {
            tokio::task::yield_now().await;
        }
        let refused = front.server.post(CHAT, chat(false)).await;
        assert_eq!(refused.json()["error"]["code"], "shutting_down");
        let text = match in_time {
            true => {
                stream.end();
                reader.rest().await
            }
            false => reader.rest().await,
        };
        let says = match in_time {
            true => "data: [DONE]",
            false => "\"code\":\"shutting_down\"",
        };
        assert!(text.contains(says), "{text}");
        assert_eq!(draining.await.unwrap(), usize::from(!in_time));
        until("the engine has been told", || engine.working() == 0).await;
    }
}

#[tokio::test]
async fn an_engine_that_says_nothing_while_it_has_work_is_stalled() {
    let engine = Engine::start().await;
    let edge = EdgeSettings {
        stalled_after: std::time::Duration::from_millis(50),
        ..EdgeSettings::default()
    };
    let front = Front::with(settings(&engine), edge).await;
    engine.next(Reply::Never);
    let server = front.server.clone();
    let asking = tokio::spawn(async move { server.post(CHAT, chat(false)).await });
    until("the engine works", || engine.working() == 1).await;
    while front.state().await != "stalled" {
        tokio::time::sleep(std::time::Duration::from_millis(5)).await;
    }
    asking.abort();
    front.settled().await;
    assert_eq!(front.state().await, "ready", "who rests is not stalled");
}

/// Whatever reads it: a whole answer that comes bit by bit, one that is read for nobody, and one whose client takes its
/// time are no silence of the engine.
#[tokio::test]
async fn an_engine_that_speaks_is_not_stalled_however_it_is_read() {
    let patience = std::time::Duration::from_millis(50);
    let engine = Engine::start().await;
    let edge = || EdgeSettings {
        stalled_after: patience,
        ..EdgeSettings::default()
    };
    let settings = || serve_http::UpstreamSettings {
        finish_cancelled: true,
        ..settings(&engine)
    };
    let becomes_ready = async |front: &Front, stream: &Stream, part: &str| {
        tokio::time::sleep(patience * 4).await;
        for _ in 0..10_000 {
            stream.raw(part);
            tokio::time::sleep(std::time::Duration::from_millis(1)).await;
            if front.state().await == "ready" {
                return;
            }
        }
        panic!("never ready");
    };

    let front = Front::with(settings(), edge()).await;
    let (stream, reply) = Stream::new();
    engine.next(reply);
    let server = front.server.clone();
    let asking = tokio::spawn(async move { server.post(CHAT, chat(false)).await });
    until("the engine works", || engine.working() == 1).await;
    becomes_ready(&front, &stream, " ").await;
    stream.raw("{}");
    stream.close();
    assert_eq!(asking.await.unwrap().status, 200);

    let front = Front::with(settings(), edge()).await;
    let (stream, reply) = Stream::new();
    engine.next(reply);
    let mut reader = open(&front, &chat(true)).await;
    stream.token("one");
    reader.next().await.unwrap();
    drop(reader);
    becomes_ready(&front, &stream, ": for nobody\n\n").await;
    assert_eq!(front.gate().stats().running, 1);
    stream.end();
    front.settled().await;

    let front = Front::with(settings(), edge()).await;
    let (stream, reply) = Stream::new();
    engine.next(reply);
    let reader = open(&front, &chat(true)).await;
    for _ in 0..100 {
        stream.token("unread");
        tokio::task::yield_now().await;
    }
    becomes_ready(&front, &stream, ": unread\n\n").await;
    assert_eq!(front.gate().stats().running, 1);
    // And one beside it about which the engine says nothing is stalled all the same.
    let (silent, reply) = Stream::new();
    engine.next(reply);
    let server = front.server.clone();
    let asking = tokio::spawn(async move { server.post(CHAT, chat(false)).await });
    while front.state().await != "stalled" {
        tokio::time::sleep(std::time::Duration::from_millis(5)).await;
    }
    silent.raw("{}");
    silent.close();
    assert_eq!(asking.await.unwrap().status, 200);
    drop(reader);
    stream.end();
    front.settled().await;
}
