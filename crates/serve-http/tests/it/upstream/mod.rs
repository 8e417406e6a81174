//! An engine of somebody else's behind the gate: what has gone wrong with such adapters elsewhere, case by case,
//! against a scripted engine on a socket.

mod attach;
mod binary;
mod cancel;
mod engine;
mod faults;
mod gate;
mod passing;
#[cfg(target_os = "linux")]
mod supervised;

use std::sync::Arc;

use serde_json::{Value, json};
use serve_http::{EdgeSettings, Service, Upstream, UpstreamPlace, UpstreamSettings};
use serve_sched::Dispatcher;
use serve_sched::adapter::AsyncDispatcher;
use serve_sched::admit::QueueCap;
use serve_sched::limit::Fixed;
use serve_sched::order::StrictTiers;

use crate::support::{Answer, Server, user};
use engine::{Engine, Reply};

pub(crate) const CHAT: &str = "/v1/chat/completions";

/// A server in front of `engine`.
pub(crate) struct Front {
    pub(crate) server: Server,
    pub(crate) upstream: Arc<Upstream>,
}

pub(crate) fn settings(engine: &Engine) -> UpstreamSettings {
    UpstreamSettings {
        place: UpstreamPlace::At(engine.url().parse().unwrap()),
        key: None,
        model: None,
        served_model_name: Some("served".to_owned()),
        finish_cancelled: false,
    }
}

/// Two requests may be with the engine, two more may wait.
pub(crate) fn dispatcher() -> Dispatcher {
    let cap = QueueCap::new(2);
    Dispatcher::new(
        vec![Box::new(cap)],
        Box::new(StrictTiers),
        Box::new(Fixed::new(2)),
    )
}

impl Front {
    /// One that is ready.
    pub(crate) async fn of(engine: &Engine) -> Self {
        Self::with(settings(engine), EdgeSettings::default()).await
    }

    pub(crate) async fn with(settings: UpstreamSettings, edge: EdgeSettings) -> Self {
        let front = Self::cold(settings, edge);
        front
            .server
            .service
            .attach(Arc::clone(&front.upstream))
            .await
            .unwrap();
        front
    }

    /// One that has not been attached.
    pub(crate) fn cold(settings: UpstreamSettings, edge: EdgeSettings) -> Self {
        Self {
            server: Server::over(Service::new(edge)),
            upstream: Arc::new(Upstream::new(settings, dispatcher()).unwrap()),
        }
    }

    pub(crate) fn gate(&self) -> &AsyncDispatcher {
        self.upstream.gate()
    }

    pub(crate) async fn state(&self) -> String {
        let health = self.server.get("/health/ready").await;
        health.json()["status"].as_str().unwrap().to_owned()
    }

    /// `/metrics` has each of these lines.
    pub(crate) async fn shows(&self, lines: &[&str]) {
        let metrics = self.server.get("/metrics").await.body;
        for line in lines {
            assert!(metrics.contains(&format!("{line}\n")), "{line}: {metrics}");
        }
    }

    /// A client that asks for a chat.
    pub(crate) fn asks(&self, stream: bool) -> tokio::task::JoinHandle<Answer> {
        let server = self.server.clone();
        tokio::spawn(async move { server.post(CHAT, chat(stream)).await })
    }

    /// Two clients with whom the engine works, and for ever: as many as may.
    pub(crate) async fn filled(
        &self,
        engine: &Engine,
        stream: bool,
    ) -> [tokio::task::JoinHandle<Answer>; 2] {
        engine.seen();
        engine.does(|_| Reply::Never);
        let working = [self.asks(stream), self.asks(stream)];
        until("two work", || engine.working() == 2).await;
        working
    }

    /// Waits until nothing is with the engine and nothing waits.
    pub(crate) async fn settled(&self) {
        until("the gate is empty", || {
            let stats = self.gate().stats();
            stats.waiting + stats.running + stats.aborting == 0
        })
        .await;
    }
}

pub(crate) fn chat(stream: bool) -> Value {
    json!({"messages": user("hi"), "stream": stream})
}

/// Waits for something that has to come.
pub(crate) async fn until(what: &str, is_so: impl Fn() -> bool) {
    let watchdog = tokio::time::Instant::now() + std::time::Duration::from_secs(60);
    while !is_so() {
        assert!(tokio::time::Instant::now() < watchdog, "never: {what}");
        tokio::time::sleep(std::time::Duration::from_millis(2)).await;
    }
}
