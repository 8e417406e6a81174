//! What the server counts and tells when its inference thread panics, wherever its requests are.

use std::sync::mpsc::SyncSender;

use serde_json::json;
use serve_core::{Limit, Refusal, Request, Span};
use serve_http::lifecycle::State;
use serve_http::worker::Rebuild;
use serve_http::{EdgeSettings, Loaded, Service};
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
    let service = Service::new(EdgeSettings::default());
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
async fn what_was_in_the_engine_is_told_whether_it_ran_or_waited() {
    let (server, gate) = gated(true).await;
    let running = ask(&server);
    arrived(&server, 2).await;
    // The thread is in a step; who comes now is taken all the same.
    let waiting = ask(&server);
    arrived(&server, 3).await;
    gate.send(Word::Panic).unwrap();
    for answer in [running, waiting] {
        assert_eq!(code(&answer.await.unwrap()), "engine_stopped");
    }
    server.service.lifecycle().reached(State::Ready).await;
    let answer = ask(&server).await.unwrap();
    assert_eq!(answer.json()["choices"][0]["text"], "again");
    let counters = counted(&server).await;
    assert_eq!((counters.finished, counters.failed), (2, 2), "{counters:?}");
    assert_eq!(counters.cancelled, 0, "{counters:?}");
}

#[tokio::test]
async fn without_another_engine_everybody_is_told_and_counted() {
    let (server, gate) = gated(false).await;
    let (running, waiting) = (ask(&server), ask(&server));
    arrived(&server, 3).await;
    gate.send(Word::Panic).unwrap();
    for answer in [running, waiting] {
        assert_eq!(code(&answer.await.unwrap()), "engine_stopped");
    }
    server.service.lifecycle().reached(State::Failed).await;
    let counters = counted(&server).await;
    assert_eq!((counters.finished, counters.failed), (1, 2), "{counters:?}");
}

/// Takes one request and no more.
struct OnlyOne;

impl Admit for OnlyOne {
    fn name(&self) -> &'static str {
        "only-one"
    }

    fn admit(&mut self, _request: &Request, load: &Load<'_>) -> Result<(), Refusal> {
        match load.running + load.waiting {
            0 => Ok(()),
            in_flight => Err(Refusal::Later {
                limit: Limit::Concurrency { in_flight, max: 1 },
                retry_after: None,
            }),
        }
    }
}

#[tokio::test]
async fn a_refusal_does_not_wait_for_the_step_that_runs() {
    let (script, gate) = Script::saying("abc").gated();
    gate.send(Word::Run).unwrap();
    gate.send(Word::Run).unwrap();
    let service = Service::new(EdgeSettings::default());
    let loaded = Loaded {
        policies: Policies {
            admit: vec![Box::new(OnlyOne)],
            ..Policies::default()
        },
        ..loaded(script)
    };
    service.launch(loaded).await.unwrap();
    let server = Server::over(service);
    let running = ask(&server);
    arrived(&server, 2).await;
    // The step waits for a word that nobody has said.
    assert_eq!(code(&ask(&server).await.unwrap()), "overloaded");
    assert!(!running.is_finished());
    drop(gate);
    assert_eq!(running.await.unwrap().status, 200);
    let counters = counted(&server).await;
    assert_eq!(
        (counters.finished, counters.refused),
        (2, 1),
        "{counters:?}"
    );
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

/// A policy that refuses as soon as something is known of how long requests take.
struct OnlyTheUnknown;

impl Admit for OnlyTheUnknown {
    fn name(&self) -> &'static str {
        "only-the-unknown"
    }

    fn admit(&mut self, _request: &Request, load: &Load<'_>) -> Result<(), Refusal> {
        match load.pace.service_time() {
            None => Ok(()),
            Some(predicted) => Err(Refusal::Later {
                limit: Limit::LatencyBudget {
                    predicted,
                    target: Span::ZERO,
                },
                retry_after: None,
            }),
        }
    }
}

#[tokio::test]
async fn the_warm_up_is_no_measure_of_how_long_requests_take() {
    let service = Service::new(EdgeSettings::default());
    let loaded = Loaded {
        policies: Policies {
            admit: vec![Box::new(OnlyTheUnknown)],
            ..Policies::default()
        },
        ..loaded(Script::saying("abc"))
    };
    service.launch(loaded).await.unwrap();
    let server = Server::over(service);
    assert_eq!(ask(&server).await.unwrap().status, 200);
    assert_eq!(code(&ask(&server).await.unwrap()), "overloaded");
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
    let service = Service::new(EdgeSettings::default());
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
