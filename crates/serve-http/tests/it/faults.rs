//! What the server counts and tells when its inference thread panics, wherever its requests are.

use std::sync::mpsc::SyncSender;

use serde_json::json;
use serve_core::{Refusal, Request};
use serve_http::lifecycle::State;
use serve_http::worker::Rebuild;
use serve_http::{Loaded, Service, Settings};
use serve_sched::admit::{Admit, Load};
use serve_sched::{Counters, Policies};

use crate::support::{Answer, Script, Server, Word, loaded};

const COMPLETION: &str = "/v1/completions";

/// A server whose first engine waits for words, past its warm-up; the engines after it answer
/// "again", if there are any.
async fn gated(rebuilds: bool) -> (Server, SyncSender<Word>) {
    let (script, gate) = Script::saying("abc").gated();
    gate.send(Word::Run).unwrap();
    gate.send(Word::Run).unwrap();
    let rebuild: Rebuild = Box::new(|| {
        let again = Box::new(Script::saying("again"));
        Ok((again, Policies::default()))
    });
    let service = Service::new(Settings::default());
    let loaded = Loaded {
        rebuild: rebuilds.then_some(rebuild),
        ..loaded(script)
    };
    service.launch(loaded).await.unwrap();
    (Server::over(service), gate)
}

fn ask(server: &Server) -> tokio::task::JoinHandle<Answer> {
    let server = server.clone();
    tokio::spawn(async move { server.post(COMPLETION, json!({"prompt": "x"})).await })
}

fn code(answer: &Answer) -> String {
    answer.json()["error"]["code"].as_str().unwrap().to_owned()
}

/// Waits until so many requests have come as far as the inbox.
async fn inside(server: &Server, requests: usize) {
    let worker = server.service.launched().unwrap().worker();
    while worker.live() < requests {
        tokio::task::yield_now().await;
    }
}

/// Waits until the engine has taken so many requests, the warm-up included.
async fn arrived(server: &Server, requests: u64) {
    let worker = server.service.launched().unwrap().worker();
    while worker.stats().counters.arrived < requests {
        tokio::task::yield_now().await;
    }
}

/// The counters, once nothing is left; and that nothing is.
async fn counted(server: &Server) -> Counters {
    let worker = server.service.launched().unwrap().worker();
    worker.idle().await;
    let stats = worker.stats();
    assert_eq!((stats.waiting, stats.running), (0, 0), "{stats:?}");
    assert_eq!(stats.blocks.held, 0, "{stats:?}");
    let counters = stats.counters;
    let ends = counters.finished + counters.refused + counters.cancelled + counters.failed;
    assert_eq!(counters.arrived, ends, "{counters:?}");
    counters
}

#[tokio::test]
async fn a_request_that_no_engine_had_taken_outlives_the_engine() {
    let (server, gate) = gated(true).await;
    let lost = ask(&server);
    arrived(&server, 2).await;
    // The thread is in a step, so this one stays in the inbox.
    let kept = ask(&server);
    inside(&server, 2).await;
    gate.send(Word::Panic).unwrap();
    assert_eq!(code(&lost.await.unwrap()), "engine_stopped");
    assert_eq!(kept.await.unwrap().json()["choices"][0]["text"], "again");
    let counters = counted(&server).await;
    assert_eq!((counters.finished, counters.failed), (2, 1), "{counters:?}");
    assert_eq!(counters.cancelled, 0, "{counters:?}");
}

#[tokio::test]
async fn without_another_engine_everybody_is_told_and_counted() {
    let (server, gate) = gated(false).await;
    let taken = ask(&server);
    arrived(&server, 2).await;
    let in_the_inbox = ask(&server);
    inside(&server, 2).await;
    gate.send(Word::Panic).unwrap();
    for answer in [taken, in_the_inbox] {
        assert_eq!(code(&answer.await.unwrap()), "engine_stopped");
    }
    server.service.lifecycle().reached(State::Failed).await;
    let counters = counted(&server).await;
    assert_eq!((counters.finished, counters.failed), (1, 2), "{counters:?}");
}

#[tokio::test]
async fn a_panic_while_the_server_drains_leaves_nothing_behind() {
    let (server, gate) = gated(true).await;
    let running = ask(&server);
    arrived(&server, 2).await;
    let service = std::sync::Arc::clone(&server.service);
    let drain = tokio::spawn(async move { service.drain().await });
    server.service.lifecycle().reached(State::Draining).await;
    gate.send(Word::Panic).unwrap();
    assert_eq!(code(&running.await.unwrap()), "engine_stopped");
    assert_eq!(drain.await.unwrap(), 0);
    let counters = counted(&server).await;
    assert_eq!((counters.finished, counters.failed), (1, 1), "{counters:?}");
}

/// A policy with a fault: it panics when it meets a prompt of this many tokens.
struct Faulty(u32);

impl Admit for Faulty {
    fn name(&self) -> &'static str {
        "faulty"
    }

    fn admit(&mut self, request: &Request, _load: &Load<'_>) -> Result<(), Refusal> {
        assert_ne!(request.prompt_tokens(), self.0, "the policy has a fault");
        Ok(())
    }
}

#[tokio::test]
async fn a_fault_of_the_scheduler_itself_is_told_to_the_request_that_met_it() {
    let policies = || Policies {
        admit: vec![Box::new(Faulty(3))],
        ..Policies::default()
    };
    let rebuild = move || Ok((Box::new(Script::saying("again")) as Box<_>, policies()));
    let service = Service::new(Settings::default());
    let loaded = Loaded {
        policies: policies(),
        rebuild: Some(Box::new(rebuild)),
        ..loaded(Script::saying("abc"))
    };
    service.launch(loaded).await.unwrap();
    let server = Server::over(service);
    let answer = server.post(COMPLETION, json!({"prompt": "xyz"})).await;
    assert_eq!(code(&answer), "engine_stopped");
    server.service.lifecycle().reached(State::Ready).await;
    let answer = server.post(COMPLETION, json!({"prompt": "xy"})).await;
    assert_eq!(answer.json()["choices"][0]["text"], "again");
    let counters = counted(&server).await;
    assert_eq!((counters.finished, counters.failed), (2, 1), "{counters:?}");
}
