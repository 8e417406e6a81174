//! From an open port without a model to a drained server.

use std::time::Duration;

use serde_json::json;
use serve_http::lifecycle::State;
use serve_http::{EdgeSettings, LaunchError, Loaded, Service};
use serve_sched::Policies;

use crate::support::{Event, ROOMY, Script, Server, Word, loaded, post, serving};

const COMPLETION: &str = "/v1/completions";

#[tokio::test]
async fn before_it_is_ready_a_server_answers_that_it_is_not() {
    let server = Server::over(Service::new(EdgeSettings::default()));
    let ready = server.get("/health/ready").await;
    assert_eq!(
        (ready.status.as_u16(), ready.body.as_str()),
        (503, r#"{"status":"loading"}"#)
    );
    assert_eq!(server.get("/health").await.status, 503);
    assert_eq!(server.get("/health/live").await.status, 200);
    let answer = server.post(COMPLETION, json!({"prompt": "x"})).await;
    assert_eq!(answer.status, 503);
    assert_eq!(answer.json()["error"]["code"], "not_ready");
    assert_eq!(server.get("/v1/models").await.status, 503);

    server
        .service
        .launch(loaded(Script::saying("a")))
        .await
        .unwrap();
    let ready = server.get("/health/ready").await;
    assert_eq!(
        (ready.status.as_u16(), ready.body.as_str()),
        (200, r#"{"status":"ready"}"#)
    );
    assert_eq!(server.get("/health").await.status, 200);
    let answer = server.post(COMPLETION, json!({"prompt": "x"})).await;
    assert_eq!(answer.status, 200);
}

#[tokio::test]
async fn it_is_not_ready_before_a_request_has_come_back() {
    let (script, gate) = Script::saying("ab").gated();
    let server = Server::over(Service::new(EdgeSettings::default()));
    let service = std::sync::Arc::clone(&server.service);
    let launch = tokio::spawn(async move { service.launch(loaded(script)).await });
    server.service.lifecycle().reached(State::Warming).await;
    let ready = server.get("/health/ready").await;
    assert_eq!(
        (ready.status.as_u16(), ready.body.as_str()),
        (503, r#"{"status":"warming"}"#)
    );
    drop(gate);
    launch.await.unwrap().unwrap();
    assert_eq!(server.get("/health/ready").await.status, 200);
}

#[tokio::test]
async fn a_backend_that_fails_its_first_request_is_not_served() {
    let (script, gate) = Script::saying("ab").gated();
    gate.send(Word::Fail).unwrap();
    let service = Service::new(EdgeSettings::default());
    let error = service.launch(loaded(script)).await.unwrap_err();
    assert!(error.to_string().contains("the script says so"), "{error}");
    assert_ne!(service.lifecycle().state(), State::Ready);
}

#[tokio::test]
async fn accepted_work_is_finished_and_new_work_refused() {
    let (script, gate) = Script::saying("abc").gated();
    gate.send(Word::Run).unwrap();
    gate.send(Word::Run).unwrap();
    let server = serving(script, EdgeSettings::default()).await;
    gate.send(Word::Run).unwrap();
    let body = json!({"prompt": "x", "stream": true}).to_string();
    let open = server.open(post(COMPLETION, body)).await;
    let service = std::sync::Arc::clone(&server.service);
    let drain = tokio::spawn(async move { service.drain().await });
    server.service.lifecycle().reached(State::Draining).await;
    let refused = server.post(COMPLETION, json!({"prompt": "x"})).await;
    assert_eq!(refused.status, 503);
    assert_eq!(refused.json()["error"]["code"], "shutting_down");
    assert_eq!(
        server.get("/health/ready").await.body,
        r#"{"status":"draining"}"#
    );
    assert_eq!(server.get("/health/live").await.status, 200);
    drop(gate);
    let bytes = axum::body::to_bytes(open.into_body(), usize::MAX)
        .await
        .unwrap();
    let chunks = crate::support::chunks(std::str::from_utf8(&bytes).unwrap());
    assert_eq!(crate::support::streamed_text(&chunks), "abc");
    assert_eq!(drain.await.unwrap(), 0, "nothing had to be cancelled");
}

/// As long as those that route to the server cannot know, what they send is answered.
#[tokio::test]
async fn a_server_that_is_about_to_go_says_so_first_and_takes_requests_meanwhile() {
    let settings = EdgeSettings {
        drain_delay: Duration::from_secs(3_600),
        ..EdgeSettings::default()
    };
    let server = serving(Script::saying("abc"), settings).await;
    let service = std::sync::Arc::clone(&server.service);
    let drain = tokio::spawn(async move { service.drain().await });
    server.service.lifecycle().reached(State::LameDuck).await;
    let ready = server.get("/health/ready").await;
    assert_eq!(ready.status, 503);
    assert_eq!(ready.body, r#"{"status":"lame_duck"}"#);
    assert_eq!(server.get("/health/live").await.status, 200);
    let body = json!({"prompt": "x"});
    assert_eq!(server.post(COMPLETION, body.clone()).await.status, 200);
    let metrics = server.get("/metrics").await.body;
    let state = "serve_state{state=\"lame_duck\"} 1";
    assert!(metrics.contains(state), "{metrics}");
    // A hook that says it once more does not make it longer.
    server.service.leave();
    tokio::time::pause();
    tokio::time::advance(Duration::from_secs(3_600)).await;
    assert_eq!(drain.await.unwrap(), 0);
    assert_eq!(server.post(COMPLETION, body).await.status, 503);
}

#[tokio::test]
async fn what_does_not_finish_in_time_is_cancelled_and_told_why() {
    let (script, gate) = Script::saying(&"a".repeat(9_000)).within(ROOMY).gated();
    gate.send(Word::Run).unwrap();
    gate.send(Word::Run).unwrap();
    let settings = EdgeSettings {
        drain_timeout: Duration::ZERO,
        ..EdgeSettings::default()
    };
    let server = serving(script, settings).await;
    gate.send(Word::Run).unwrap();
    let body = json!({"prompt": "x", "max_tokens": 9_000, "stream": true}).to_string();
    let open = server.open(post(COMPLETION, body)).await;
    let read = tokio::spawn(axum::body::to_bytes(open.into_body(), usize::MAX));
    let service = std::sync::Arc::clone(&server.service);
    let drain = tokio::spawn(async move { service.drain().await });
    server.service.lifecycle().reached(State::Draining).await;
    while !drain.is_finished() {
        let _ = gate.try_send(Word::Run);
        tokio::task::yield_now().await;
    }
    assert_eq!(drain.await.unwrap(), 1);
    let bytes = read.await.unwrap().unwrap();
    let events = crate::support::events(std::str::from_utf8(&bytes).unwrap());
    let Event::Data(last) = events.last().unwrap() else {
        panic!("the request was not cancelled")
    };
    assert_eq!(last["error"]["code"], "shutting_down");
}

#[tokio::test]
async fn a_model_that_loads_after_the_signal_is_not_served() {
    let server = Server::over(Service::new(EdgeSettings::default()));
    assert_eq!(server.service.drain().await, 0);
    let error = server
        .service
        .launch(loaded(Script::saying("a")))
        .await
        .unwrap_err();
    assert!(
        matches!(error, LaunchError::TooLate(State::Draining)),
        "{error}"
    );
}

#[tokio::test]
async fn a_panic_on_the_inference_thread_ends_readiness_and_answers_everybody() {
    let (script, gate) = Script::saying("abc").gated();
    gate.send(Word::Run).unwrap();
    gate.send(Word::Run).unwrap();
    let settings = EdgeSettings {
        drain_delay: Duration::from_secs(3_600),
        ..EdgeSettings::default()
    };
    let server = serving(script, settings).await;
    gate.send(Word::Run).unwrap();
    gate.send(Word::Panic).unwrap();
    let answer = server
        .post(COMPLETION, json!({"prompt": "x", "stream": true}))
        .await;
    let events = answer.events();
    let Event::Data(last) = events.last().unwrap() else {
        panic!("{}", answer.body)
    };
    assert_eq!(last["error"]["code"], "engine_stopped");
    server.service.lifecycle().reached(State::Failed).await;
    let ready = server.get("/health/ready").await;
    assert_eq!(
        (ready.status.as_u16(), ready.body.as_str()),
        (503, r#"{"status":"failed"}"#)
    );
    assert_eq!(server.get("/health/live").await.status, 503);
    let answer = server.post(COMPLETION, json!({"prompt": "x"})).await;
    assert_eq!(answer.status, 503);
    assert_eq!(answer.json()["error"]["code"], "engine_stopped");
    // It takes nothing, so it is not made to look alive again, and its end is not delayed.
    server.service.leave();
    assert_eq!(server.get("/health/live").await.status, 503);
    let drained = tokio::time::timeout(Duration::from_secs(60), server.service.drain());
    assert!(drained.await.is_ok());
}

#[tokio::test]
async fn a_step_that_does_not_end_is_a_stalled_server_until_it_ends() {
    let (script, gate) = Script::saying("abc").gated();
    gate.send(Word::Run).unwrap();
    gate.send(Word::Run).unwrap();
    let settings = EdgeSettings {
        stalled_after: Duration::from_millis(5),
        ..EdgeSettings::default()
    };
    let server = serving(script, settings).await;
    assert_eq!(server.get("/health/ready").await.status, 200);
    let asked = server.clone();
    let asked = tokio::spawn(async move { asked.post(COMPLETION, json!({"prompt": "x"})).await });
    loop {
        let ready = server.get("/health/ready").await;
        if ready.status == 503 {
            assert_eq!(ready.body, r#"{"status":"stalled"}"#);
            break;
        }
        tokio::task::yield_now().await;
    }
    let live = server.get("/health/live").await;
    assert_eq!(live.status, 200, "it may yet come back");
    drop(gate);
    assert_eq!(asked.await.unwrap().status, 200);
    server.settled().await;
    assert_eq!(server.get("/health/ready").await.status, 200);
}

#[tokio::test]
async fn after_a_panic_another_backend_is_built_and_readiness_comes_back() {
    let (script, gate) = Script::saying("abc").gated();
    gate.send(Word::Run).unwrap();
    gate.send(Word::Run).unwrap();
    let (permit, permits) = std::sync::mpsc::sync_channel::<()>(1);
    let rebuild = move || {
        permits.recv().map_err(|error| error.to_string())?;
        let again = Box::new(Script::saying("again")) as Box<_>;
        Ok((again, Policies::default()))
    };
    let service = Service::new(EdgeSettings::default());
    let loaded = Loaded {
        rebuild: Some(Box::new(rebuild)),
        ..loaded(script)
    };
    service.launch(loaded).await.unwrap();
    let server = Server::over(service);
    gate.send(Word::Run).unwrap();
    gate.send(Word::Panic).unwrap();
    let answer = server
        .post(COMPLETION, json!({"prompt": "x", "stream": true}))
        .await;
    let Event::Data(last) = answer.events().pop().unwrap() else {
        panic!("{}", answer.body)
    };
    assert_eq!(last["error"]["code"], "engine_stopped");
    let ready = server.get("/health/ready").await;
    assert_eq!(
        (ready.status.as_u16(), ready.body.as_str()),
        (503, r#"{"status":"rebuilding"}"#)
    );
    assert_eq!(server.get("/health/live").await.status, 200);
    let refused = server.post(COMPLETION, json!({"prompt": "x"})).await;
    assert_eq!(refused.json()["error"]["code"], "not_ready");
    permit.send(()).unwrap();
    server.service.lifecycle().reached(State::Ready).await;
    let answer = server.post(COMPLETION, json!({"prompt": "x"})).await;
    assert_eq!(answer.json()["choices"][0]["text"], "again");
    server.settled().await;
    // The warm-up, the one that the panic took, and the last: none is forgotten.
    let stats = server.service.serving().unwrap().worker().stats();
    let counters = stats.counters;
    assert_eq!(
        (counters.arrived, counters.finished, counters.failed),
        (3, 2, 1)
    );
    assert_eq!(stats.classes[0].counters.arrived, 3);
}

#[tokio::test]
async fn a_rebuilt_backend_is_not_ready_before_its_own_first_request_has_come_back() {
    let (script, gate) = Script::saying("abc").gated();
    gate.send(Word::Run).unwrap();
    gate.send(Word::Run).unwrap();
    let (failing, fails) = Script::saying("x").gated();
    let (second, words) = Script::saying("again").gated();
    let mut backends = vec![second, failing];
    let rebuild = move || {
        let next = backends.pop().ok_or("there is no third")?;
        Ok((Box::new(next) as Box<_>, Policies::default()))
    };
    let service = Service::new(EdgeSettings::default());
    let loaded = Loaded {
        rebuild: Some(Box::new(rebuild)),
        ..loaded(script)
    };
    service.launch(loaded).await.unwrap();
    let server = Server::over(service);
    // The first of them fails its first request, which is an attempt.
    fails.send(Word::Fail).unwrap();
    gate.send(Word::Panic).unwrap();
    let answer = server.post(COMPLETION, json!({"prompt": "x"})).await;
    assert_eq!(answer.json()["error"]["code"], "engine_stopped");
    words.send(Word::Run).unwrap();
    let ready = server.get("/health/ready").await;
    assert_eq!(
        (ready.status.as_u16(), ready.body.as_str()),
        (503, r#"{"status":"rebuilding"}"#)
    );
    assert_eq!(server.get("/health/live").await.status, 200);
    // It takes a second step, which nothing but this lets run.
    drop(words);
    server.service.lifecycle().reached(State::Ready).await;
    let answer = server.post(COMPLETION, json!({"prompt": "x"})).await;
    assert_eq!(answer.json()["choices"][0]["text"], "again");
    server.settled().await;
}

/// A backend whose first request succeeds and whose every other panics is not built for ever.
#[tokio::test]
async fn a_warm_up_is_no_sign_that_a_backend_serves() {
    let (script, gate) = Script::saying("abc").gated();
    gate.send(Word::Run).unwrap();
    gate.send(Word::Run).unwrap();
    let rebuild = move || {
        let (script, gate) = Script::saying("abc").gated();
        for word in [Word::Run, Word::Run, Word::Panic] {
            gate.send(word).map_err(|error| error.to_string())?;
        }
        Ok((Box::new(script) as Box<_>, Policies::default()))
    };
    let service = Service::new(EdgeSettings::default());
    let loaded = Loaded {
        rebuild: Some(Box::new(rebuild)),
        ..loaded(script)
    };
    service.launch(loaded).await.unwrap();
    let server = Server::over(service);
    gate.send(Word::Panic).unwrap();
    let mut asked = 0;
    while server.service.lifecycle().state() != State::Failed {
        let state = server.service.lifecycle().reached(State::Ready).await;
        if state == State::Ready {
            asked += 1;
            assert!(asked <= 4, "one engine and three attempts");
            let answer = server.post(COMPLETION, json!({"prompt": "x"})).await;
            assert_eq!(answer.status, 503);
        }
    }
    assert_eq!(asked, 4);
}

#[tokio::test]
async fn a_backend_that_cannot_be_built_again_is_given_up() {
    let (script, gate) = Script::saying("abc").gated();
    gate.send(Word::Run).unwrap();
    gate.send(Word::Run).unwrap();
    let attempts = std::sync::Arc::new(std::sync::atomic::AtomicU32::new(0));
    let counted = std::sync::Arc::clone(&attempts);
    let rebuild = move || {
        let attempt = counted.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        assert_ne!(attempt, 1, "a panic in here is an attempt as well");
        Err("the device has gone".to_owned())
    };
    let service = Service::new(EdgeSettings::default());
    let loaded = Loaded {
        rebuild: Some(Box::new(rebuild)),
        ..loaded(script)
    };
    service.launch(loaded).await.unwrap();
    let server = Server::over(service);
    gate.send(Word::Panic).unwrap();
    let answer = server.post(COMPLETION, json!({"prompt": "x"})).await;
    assert_eq!(answer.json()["error"]["code"], "engine_stopped");
    server.service.lifecycle().reached(State::Failed).await;
    assert_eq!(attempts.load(std::sync::atomic::Ordering::Relaxed), 3);
    assert_eq!(server.get("/health/live").await.status, 503);
}
