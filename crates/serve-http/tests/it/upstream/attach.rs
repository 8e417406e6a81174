//! When an engine counts as serving, and what is told of it.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use serve_http::EdgeSettings;

use super::engine::{Engine, Reply};
use super::{CHAT, Front, chat, settings, until};

/// A port that is open, a health check that is well and a list of models say nothing of whether a model is loaded.
#[tokio::test]
async fn ready_is_who_has_made_a_token() {
    let engine = Engine::start().await;
    let loaded = Arc::new(AtomicBool::new(false));
    let is_loaded = Arc::clone(&loaded);
    engine.does(move |_| match is_loaded.load(Ordering::SeqCst) {
        true => Reply::Usual,
        false => Reply::Json(
            503,
            vec![],
            r#"{"error":{"message":"Loading model"}}"#.to_owned(),
        ),
    });
    let front = Front::cold(settings(&engine), EdgeSettings::default());
    let (service, upstream) = (
        Arc::clone(&front.server.service),
        Arc::clone(&front.upstream),
    );
    let attaching = tokio::spawn(async move { service.attach(upstream).await });
    until("it has been asked", || !engine.seen().is_empty()).await;
    assert_eq!(front.state().await, "warming");
    assert_eq!(front.server.get("/health").await.status, 503);
    assert_eq!(front.server.get("/v1/models").await.status, 503);
    let refused = front.server.post(CHAT, chat(false)).await;
    assert_eq!(refused.json()["error"]["code"], "not_ready");
    loaded.store(true, Ordering::SeqCst);
    attaching.await.unwrap().unwrap();
    assert_eq!(front.state().await, "ready");
    let asked = engine.seen().pop().unwrap().json();
    assert_eq!(
        (&asked["max_tokens"], &asked["model"]),
        (&1.into(), &"engine/model".into())
    );
}

#[tokio::test]
async fn an_engine_that_is_not_there_is_waited_for_and_a_server_told_to_stop_waits_no_longer() {
    let engine = Engine::start().await;
    engine.die().await;
    let front = Front::cold(settings(&engine), EdgeSettings::default());
    let (service, upstream) = (
        Arc::clone(&front.server.service),
        Arc::clone(&front.upstream),
    );
    let attaching = tokio::spawn(async move { service.attach(upstream).await });
    while front.state().await != "warming" {
        tokio::task::yield_now().await;
    }
    front.server.service.drain().await;
    let error = attaching.await.unwrap().unwrap_err();
    assert_eq!(error.to_string(), "the server is draining");
}

#[tokio::test]
async fn an_engine_with_chats_alone_serves_too() {
    let engine = Engine::start().await;
    engine.does(|seen| match &*seen.path {
        CHAT => Reply::Usual,
        _ => Reply::Json(404, vec![], "{}".to_owned()),
    });
    let front = Front::of(&engine).await;
    assert_eq!(front.server.post(CHAT, chat(false)).await.status, 200);
}

/// Of steps and a KV cache nothing is known: their metrics are absent, not zero. Those that there are have a row.
#[tokio::test]
async fn metrics_tell_what_there_is_and_nothing_else() {
    let engine = Engine::start().await;
    let front = Front::of(&engine).await;
    for stream in [false, true] {
        front.server.post(CHAT, chat(stream)).await;
    }
    front.settled().await;
    let metrics = front.server.get("/metrics").await.body;
    for absent in [
        "serve_kv",
        "serve_step",
        "serve_preemptions",
        "serve_release_lag",
    ] {
        assert!(!metrics.contains(absent), "{absent}");
    }
    for line in [
        "serve_requests_ended_total{class=\"paid\",end=\"finished\"} 2",
        "serve_upstream_requests_total{outcome=\"answered\"} 2",
        "serve_upstream_limit 2",
        "serve_requests_running 0",
        "serve_queue_seconds_count{class=\"paid\"} 2",
        "serve_ttft_seconds_count{class=\"paid\"} 1",
        "serve_tokens_total{kind=\"prompt\"} 5",
        "serve_tokens_total{kind=\"cached\"} 2",
    ] {
        assert!(metrics.contains(&format!("{line}\n")), "{line}: {metrics}");
    }
    let pages = [
        include_str!("../../../../../docs/operations.md"),
        include_str!("../../../../../docs/upstream.md"),
    ];
    let documented = |name: &str| pages.iter().any(|page| page.contains(&format!("`{name}")));
    let names = metrics
        .lines()
        .filter_map(|line| line.strip_prefix("# TYPE "));
    let names: BTreeSet<&str> = names.filter_map(|line| line.split(' ').next()).collect();
    assert!(names.len() > 12);
    for name in names {
        assert!(documented(name), "{name}");
    }
}
