//! `GET /metrics` and the timings in answers: every request is counted once, and the figures add up
//! whenever they are read.

use std::collections::BTreeMap;
use std::sync::mpsc::SyncSender;

use axum::body::{Body, HttpBody};
use futures::StreamExt;
use serde_json::{Value, json};
use serve_core::rng::Rng;
use serve_http::{EdgeSettings, Loaded, Service};
use serve_sched::Policies;

use crate::support::{LIMITS, ROOMY, Script, Server, Word, chunks, loaded, post, serving};

const COMPLETION: &str = "/v1/completions";

/// The samples of a scrape by name and labels.
pub(crate) struct Scrape(BTreeMap<String, f64>);

impl Scrape {
    pub(crate) async fn of(server: &Server) -> Self {
        let answer = server.get("/metrics").await;
        assert_eq!(answer.status, 200);
        let content_type = answer.headers["content-type"].to_str().unwrap();
        assert!(content_type.starts_with("text/plain; version=0.0.4"));
        let lines = answer.body.lines().filter(|line| !line.starts_with('#'));
        let sample = |line: &str| {
            let (name, value) = line.rsplit_once(' ').unwrap();
            (name.to_owned(), value.parse().unwrap())
        };
        Self(lines.map(sample).collect())
    }

    pub(crate) fn get(&self, name: &str) -> f64 {
        let value = self.0.get(name);
        *value.unwrap_or_else(|| panic!("{name} is not in {:?}", self.0.keys()))
    }

    /// Over all labels.
    fn sum(&self, name: &str) -> f64 {
        let labelled = format!("{name}{{");
        let of_it = self.0.iter().filter(|(key, _)| key.starts_with(&labelled));
        of_it.map(|(_, value)| value).sum()
    }

    fn ended(&self, end: &str) -> f64 {
        self.get(&format!("serve_requests_ended_total{{end=\"{end}\"}}"))
    }

    /// What has to hold in every scrape.
    fn check(&self) {
        let arrived = self.get("serve_requests_arrived_total");
        let ended = self.sum("serve_requests_ended_total");
        let in_flight = self.get("serve_requests_in_flight");
        assert_eq!(arrived, ended + in_flight, "{:?}", self.0);
        assert_eq!(self.sum("serve_refusals_total"), self.ended("refused"));
        let blocks = f64::from(LIMITS.blocks - 1);
        assert_eq!(self.sum("serve_kv_blocks"), blocks, "{:?}", self.0);
        assert_eq!(self.sum("serve_state"), 1.0, "{:?}", self.0);
    }
}

#[tokio::test]
async fn every_metric_has_its_documented_name() {
    let server = serving(Script::saying("ab"), EdgeSettings::default()).await;
    server.post(COMPLETION, json!({"prompt": "x"})).await;
    server.post(COMPLETION, json!({"prompt": 5})).await;
    let scrape = Scrape::of(&server).await;
    let operations = include_str!("../../../../docs/operations.md");
    let documented: Vec<&str> = operations
        .lines()
        .filter_map(|line| line.strip_prefix("| `serve_")?.split_once('`'))
        .map(|(name, _)| name.split('{').next().unwrap())
        .collect();
    assert!(documented.len() > 15, "{documented:?}");
    let base = |sample: &String| {
        let name = sample
            .split('{')
            .next()
            .unwrap()
            .trim_start_matches("serve_");
        let part = ["_bucket", "_sum", "_count"];
        let histogram = part.iter().find_map(|part| name.strip_suffix(part));
        histogram.unwrap_or(name).to_owned()
    };
    for sample in scrape.0.keys() {
        assert!(documented.contains(&base(sample).as_str()), "{sample}");
    }
    for name in documented {
        assert!(scrape.0.keys().any(|sample| base(sample) == name), "{name}");
    }
}

/// Whatever requests run into, each is counted once, and all figures of one scrape belong together.
#[tokio::test]
async fn arrived_is_ended_and_in_flight_at_every_scrape() {
    let (script, gate) = Script::saying(&"a".repeat(90)).gated();
    gate.send(Word::Run).unwrap();
    gate.send(Word::Run).unwrap();
    let settings = EdgeSettings {
        queue_cap: 3,
        ..EdgeSettings::default()
    };
    let server = serving(script, settings).await;
    let mut rng = Rng::new(11);
    let mut streams = Vec::new();
    let mut answers = Vec::new();
    let mut sent = 0_u32;
    for _ in 0..300 {
        let body = match rng.below(6) {
            0 => json!({"prompt": "x", "max_tokens": 500}),
            1 => json!({"prompt": "x", "max_tokens": 90, "timeout_ms": 1}),
            _ => json!({"prompt": "x", "max_tokens": 90, "stream": rng.below(2) == 0}),
        };
        let request = post(COMPLETION, body.to_string());
        let asked = server.clone();
        answers.push(tokio::spawn(async move { asked.open(request).await }));
        sent += 1;
        for _ in 0..rng.below(4) {
            let word = match rng.below(60) {
                0 => Word::Fail,
                _ => Word::Run,
            };
            let _ = gate.try_send(word);
            tokio::task::yield_now().await;
        }
        // Some clients go away, before there is an answer or in the middle of one.
        if rng.below(5) == 0 && !answers.is_empty() {
            let index = rng.below(answers.len() as u64) as usize;
            answers.swap_remove(index).abort();
        }
        let (done, open) = answers.into_iter().partition(|task| task.is_finished());
        answers = open;
        let done: Vec<tokio::task::JoinHandle<_>> = done;
        for task in done {
            let response = task.await.unwrap();
            let body: Body = response.into_body();
            if !body.is_end_stream() {
                streams.push(body.into_data_stream());
            }
        }
        if rng.below(3) == 0 && !streams.is_empty() {
            let index = rng.below(streams.len() as u64) as usize;
            drop(streams.swap_remove(index));
        }
        Scrape::of(&server).await.check();
    }
    drop(gate);
    for mut stream in streams {
        while stream.next().await.is_some() {}
    }
    for task in answers {
        let response = task.await.unwrap();
        axum::body::to_bytes(response.into_body(), usize::MAX)
            .await
            .unwrap();
    }
    server.settled().await;
    // How far the others came is the machine's doing; this one has all to itself.
    let last = server.post(COMPLETION, json!({"prompt": "x", "max_tokens": 3}));
    assert_eq!(last.await.status, 200);
    sent += 1;
    server.settled().await;
    let scrape = Scrape::of(&server).await;
    scrape.check();
    assert_eq!(scrape.get("serve_requests_in_flight"), 0.0);
    // A request that was given up before its handler ran has not come.
    let arrived = scrape.get("serve_requests_arrived_total");
    assert!(arrived <= f64::from(sent) && arrived > f64::from(sent) / 2.0);
    for end in ["finished", "refused", "cancelled", "failed"] {
        assert!(scrape.ended(end) > 0.0, "{end}: {:?}", scrape.0);
    }
    assert_eq!(scrape.get("serve_kv_blocks{state=\"held\"}"), 0.0);
    assert_eq!(scrape.get("serve_requests_waiting"), 0.0);
    assert_eq!(scrape.get("serve_requests_running"), 0.0);
    assert!(scrape.get("serve_release_lag_seconds_count") > 0.0);
}

#[tokio::test]
async fn each_end_is_counted_under_its_name() {
    let (script, gate) = Script::saying(&"a".repeat(9_000)).within(ROOMY).gated();
    gate.send(Word::Run).unwrap();
    gate.send(Word::Run).unwrap();
    let server = serving(script, EdgeSettings::default()).await;
    let ask = |max_tokens: u32, stream: bool| json!({"prompt": "x", "max_tokens": max_tokens, "stream": stream});

    gate.send(Word::Run).unwrap();
    assert_eq!(server.post(COMPLETION, ask(1, false)).await.status, 200);
    gate.send(Word::Run).unwrap();
    assert_eq!(server.post(COMPLETION, ask(1, true)).await.status, 200);
    assert_eq!(server.post(COMPLETION, json!({})).await.status, 400);
    gate.send(Word::Fail).unwrap();
    assert_eq!(server.post(COMPLETION, ask(1, false)).await.status, 500);
    gate.send(Word::Run).unwrap();
    gate.send(Word::Fail).unwrap();
    assert_eq!(server.post(COMPLETION, ask(9, true)).await.status, 200);
    gate.send(Word::Run).unwrap();
    let gone = server.open(post(COMPLETION, ask(900, true).to_string()));
    let mut gone = gone.await.into_body().into_data_stream();
    assert!(gone.next().await.unwrap().is_ok());
    drop(gone);
    drop(gate);
    server.settled().await;

    let scrape = Scrape::of(&server).await;
    let ends = ["finished", "refused", "failed", "cancelled"].map(|end| scrape.ended(end));
    assert_eq!(ends, [2.0, 1.0, 2.0, 1.0]);
    let refusals = "serve_refusals_total{code=\"missing_required_parameter\"}";
    assert_eq!(scrape.get(refusals), 1.0);
    // The warm-up is the engine's work and no client's request.
    assert_eq!(scrape.get("serve_requests_arrived_total"), 6.0);
    assert_eq!(scrape.get("serve_queue_seconds_count"), 5.0);
    assert_eq!(scrape.get("serve_ttft_seconds_count"), 4.0);
    let steps = scrape.get("serve_steps_total") - scrape.get("serve_steps_failed_total");
    assert_eq!(scrape.get("serve_step_seconds_count"), steps);
    assert_eq!(
        scrape.get("serve_step_sequences_sum"),
        steps,
        "one at a time"
    );
}

#[tokio::test]
async fn the_state_is_the_one_that_readiness_shows() {
    let server = Server::over(Service::new(EdgeSettings::default()));
    let scrape = Scrape::of(&server).await;
    assert_eq!(scrape.get("serve_state{state=\"loading\"}"), 1.0);
    assert_eq!(scrape.sum("serve_state"), 1.0);
    server
        .service
        .launch(loaded(Script::saying("a")))
        .await
        .unwrap();
    let scrape = Scrape::of(&server).await;
    assert_eq!(scrape.get("serve_state{state=\"ready\"}"), 1.0);
    server.service.drain().await;
    let scrape = Scrape::of(&server).await;
    assert_eq!(scrape.get("serve_state{state=\"draining\"}"), 1.0);
    assert_eq!(scrape.sum("serve_state"), 1.0);
}

fn check_timings(timings: &Value) {
    for part in ["queue_ms", "prefill_ms", "decode_ms"] {
        assert!(timings[part].as_f64().unwrap() >= 0.0, "{timings}");
    }
    assert_eq!(timings["preemptions"], 0, "{timings}");
    assert_eq!(timings["cached_tokens"], 0, "{timings}");
}

#[tokio::test]
async fn an_answer_says_where_its_time_went() {
    let server = serving(Script::saying("abc"), EdgeSettings::default()).await;
    let whole = server.post(COMPLETION, json!({"prompt": "x"})).await;
    check_timings(&whole.json()["timings"]);
    for usage in [false, true] {
        let mut body = json!({"prompt": "x", "stream": true});
        if usage {
            body["stream_options"] = json!({"include_usage": true});
        }
        let answer = server.post(COMPLETION, body).await;
        let chunks = chunks(&answer.body);
        let (last, others) = chunks.split_last().unwrap();
        check_timings(&last["timings"]);
        assert_eq!(last["usage"].is_object(), usage);
        for chunk in others {
            assert!(chunk.get("timings").is_none(), "{chunk}");
        }
    }
}

/// A cache that holds one long answer, and two who want one.
#[tokio::test]
async fn a_preemption_is_told_to_whom_it_cost_time() {
    let limits = serve_core::Limits {
        blocks: 9,
        ..LIMITS
    };
    let script = Script::saying(&"a".repeat(90)).within(limits);
    let (script, gate): (Script, SyncSender<Word>) = script.gated();
    gate.send(Word::Run).unwrap();
    gate.send(Word::Run).unwrap();
    let service = Service::new(EdgeSettings::default());
    let policies = Policies::default();
    let loaded = Loaded {
        policies,
        ..loaded(script)
    };
    service.launch(loaded).await.unwrap();
    let server = Server::over(service);
    let asked = (0..2).map(|_| {
        let asked = server.clone();
        let body = json!({"prompt": "x", "max_tokens": 90});
        tokio::spawn(async move { asked.post(COMPLETION, body).await })
    });
    let asked: Vec<_> = asked.collect();
    let worker = server.service.serving().unwrap().worker();
    while worker.live() < 2 {
        tokio::task::yield_now().await;
    }
    drop(gate);
    let mut preemptions = 0;
    for task in asked {
        let timings = task.await.unwrap().json()["timings"].clone();
        preemptions += timings["preemptions"].as_u64().unwrap();
    }
    assert!(preemptions > 0);
    let scrape = Scrape::of(&server).await;
    assert_eq!(scrape.get("serve_preemptions_total"), preemptions as f64);
}
