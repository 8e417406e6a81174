//! `GET /metrics` and the timings in answers: every request is counted once, and the figures add up
//! whenever they are read.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::mpsc::SyncSender;

use axum::body::{Body, HttpBody};
use futures::StreamExt;
use serde_json::{Value, json};
use serve_core::rng::Rng;
use serve_http::{EdgeSettings, Loaded, MetricsSettings, Service};
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

    /// The value of a series with this name and this label, the sum over all others.
    pub(crate) fn get(&self, series: &str) -> f64 {
        let (name, label) = series.split_once('{').unwrap_or((series, ""));
        let label = label.trim_end_matches('}');
        let of_it = self.0.iter().filter_map(|(key, value)| {
            let (of, labels) = key.split_once('{').unwrap_or((key, ""));
            (of == name && labels.contains(label)).then_some(*value)
        });
        let sum = of_it.reduce(|sum, value| sum + value);
        sum.unwrap_or_else(|| panic!("{series} is not in {:?}", self.0.keys()))
    }

    fn ended(&self, end: &str) -> f64 {
        self.get(&format!("serve_requests_ended_total{{end=\"{end}\"}}"))
    }

    /// What has to hold in every scrape.
    fn check(&self) {
        for class in ["paid", "free", "unknown"] {
            let of = |name: &str| self.get(&format!("{name}{{class=\"{class}\"}}"));
            let arrived = of("serve_requests_arrived_total");
            let ended = of("serve_requests_ended_total");
            let in_flight = of("serve_requests_in_flight");
            assert_eq!(arrived, ended + in_flight, "{:?}", self.0);
        }
        assert_eq!(self.get("serve_refusals_total"), self.ended("refused"));
        let blocks = f64::from(LIMITS.blocks - 1);
        assert_eq!(self.get("serve_kv_blocks"), blocks, "{:?}", self.0);
        let usage = self.get("serve_kv_blocks{state=\"held\"}") / blocks;
        assert_eq!(self.get("serve_kv_usage_ratio"), usage);
        assert_eq!(self.get("serve_state"), 1.0, "{:?}", self.0);
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
        .filter_map(|line| line.strip_prefix("| `")?.split_once('`'))
        .map(|(name, _)| name.split('{').next().unwrap())
        .filter(|name| name.starts_with("serve_") || name.starts_with("process_"))
        .collect();
    assert!(documented.len() > 30, "{documented:?}");
    let base = |sample: &String| {
        let name = sample.split('{').next().unwrap();
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

/// What is asked for by the dashboard and the alerts in `deploy/` is there.
#[tokio::test]
async fn dashboard_and_alerts_ask_for_what_there_is() {
    let server = serving(Script::saying("ab"), EdgeSettings::default()).await;
    let there: BTreeSet<String> = Scrape::of(&server).await.0.into_keys().collect();
    let there: BTreeSet<&str> = there
        .iter()
        .map(|key| key.split('{').next().unwrap())
        .collect();
    let mut asked = 0;
    for file in [
        include_str!("../../../../deploy/grafana/dashboards/serve.json"),
        include_str!("../../../../deploy/prometheus/alerts.yml"),
    ] {
        let words =
            file.split(|character: char| !character.is_ascii_alphanumeric() && character != '_');
        let names = words.filter(|word| word.starts_with("serve_") || word.starts_with("process_"));
        for name in names {
            assert!(there.contains(name), "{name}");
            asked += 1;
        }
    }
    assert!(asked > 60, "{asked}");
}

/// A rule that asks for a rate must find a series before the first request has come.
#[tokio::test]
async fn every_series_of_requests_is_there_from_the_start() {
    let server = serving(Script::saying("ab"), EdgeSettings::default()).await;
    let before: BTreeSet<String> = Scrape::of(&server).await.0.into_keys().collect();
    for body in [
        json!({"prompt": "x"}),
        json!({"prompt": 5}),
        json!({"prompt": "x", "request_class": "free", "max_tokens": 1}),
        json!({"prompt": "x", "timeout_ms": 60_000, "stream": true}),
        json!({"prompt": "x", "what": 1}),
        json!({"prompt": "x", "stop": "a"}),
    ] {
        server.post(COMPLETION, body).await;
    }
    server.settled().await;
    let after: BTreeSet<String> = Scrape::of(&server).await.0.into_keys().collect();
    assert_eq!(
        after.difference(&before).collect::<Vec<_>>(),
        Vec::<&String>::new()
    );
    let refusals = |code: &&str| {
        before.contains(&format!(
            "serve_refusals_total{{class=\"free\",code=\"{code}\"}}"
        ))
    };
    // What a request for text cannot run into, or what is no refusal.
    let others = [
        "backend_error",
        "cancelled",
        "engine_stopped",
        "engine_unreachable",
        "method_not_allowed",
        "not_found",
        "queue_timeout",
        "request_not_found",
        "slow_reader",
        "too_many_connections",
    ];
    let page = include_str!("../../../../docs/operations.md");
    let codes = page
        .lines()
        .filter(|line| line.contains("_error` | `"))
        .map(|line| line.split('`').nth(3).unwrap());
    let missing: BTreeSet<&str> = codes.filter(|code| !refusals(code)).collect();
    assert_eq!(missing, BTreeSet::from(others));
}

/// What a request is measured by, under its class.
#[tokio::test]
async fn a_class_has_its_own_measurements() {
    let server = serving(Script::saying("abcdef"), EdgeSettings::default()).await;
    let ask = |class: &str, max_tokens: u32| json!({"prompt": "xyz", "request_class": class, "max_tokens": max_tokens});
    server.post(COMPLETION, ask("paid", 6)).await;
    server.post(COMPLETION, ask("free", 3)).await;
    server.post(COMPLETION, ask("free", 1)).await;
    let mut in_time = ask("free", 3);
    in_time["timeout_ms"] = json!(60_000);
    server.post(COMPLETION, in_time).await;
    server.settled().await;
    let scrape = Scrape::of(&server).await;
    let of = |name: &str| {
        ["paid", "free"].map(|class| scrape.get(&format!("{name}{{class=\"{class}\"}}")))
    };
    assert_eq!(of("serve_queue_seconds_count"), [1.0, 3.0]);
    assert_eq!(of("serve_ttft_seconds_count"), [1.0, 3.0]);
    assert_eq!(of("serve_e2e_seconds_count"), [1.0, 3.0]);
    assert_eq!(of("serve_prompt_tokens_sum"), [3.0, 9.0]);
    let tokens = of("serve_output_tokens_sum");
    assert!(tokens[0] >= 6.0 && tokens[1] == 7.0, "{tokens:?}");
    assert_eq!(of("serve_output_tokens_max_sum"), [6.0, 7.0]);
    assert_eq!(of("serve_itl_seconds_count"), [tokens[0] - 1.0, 4.0]);
    assert_eq!(of("serve_tpot_seconds_count"), [1.0, 2.0]);
    assert_eq!(of("serve_prefill_seconds_count"), [1.0, 3.0]);
    assert_eq!(of("serve_decode_seconds_count"), [1.0, 3.0]);
    assert_eq!(of("serve_answers_total"), [1.0, 3.0]);
    assert_eq!(
        scrape.get("serve_deadlines_total{class=\"free\",result=\"met\"}"),
        1.0
    );
    assert_eq!(scrape.get("serve_deadlines_total"), 1.0);
    // Each of the four prompts took one segment, and each other segment runs one position.
    let prompts = scrape.get("serve_tokens_total{kind=\"prompt\"}");
    let others = scrape.get("serve_step_sequences_sum") - 4.0;
    assert_eq!(scrape.get("serve_step_tokens_sum"), prompts + others);
}

/// Tokens for nobody, deadlines that were missed, and how long refused clients were told to wait.
#[tokio::test]
async fn what_was_in_vain_is_counted() {
    let (script, gate) = Script::saying(&"a".repeat(900)).within(ROOMY).gated();
    gate.send(Word::Run).unwrap();
    gate.send(Word::Run).unwrap();
    let server = serving(script, EdgeSettings::default()).await;
    gate.send(Word::Run).unwrap();
    let late = json!({"prompt": "x", "max_tokens": 800, "timeout_ms": 300, "stream": true});
    let late = server.open(post(COMPLETION, late.to_string()));
    let mut late = late.await.into_body().into_data_stream();
    assert!(late.next().await.unwrap().is_ok());
    tokio::time::sleep(std::time::Duration::from_millis(350)).await;
    drop(gate);
    while late.next().await.is_some() {}
    server.settled().await;
    let scrape = Scrape::of(&server).await;
    assert_eq!(
        scrape.get("serve_deadlines_total{class=\"paid\",result=\"missed\"}"),
        1.0
    );
    assert!(scrape.get("serve_unused_tokens_total") >= 1.0);
    assert_eq!(scrape.get("serve_answers_total"), 0.0);
}

#[tokio::test]
async fn an_example_of_a_bucket_names_a_request_where_the_format_has_examples() {
    let server = serving(Script::saying("ab"), EdgeSettings::default()).await;
    let answer = server.post(COMPLETION, json!({"prompt": "x"})).await;
    server.settled().await;
    let id = answer.json()["id"].as_str().unwrap().to_owned();
    let request = axum::http::Request::get("/metrics")
        .header("accept", "application/openmetrics-text;version=1.0.0");
    let response = server.open(request.body(Body::empty()).unwrap()).await;
    assert!(
        response.headers()["content-type"]
            .to_str()
            .unwrap()
            .starts_with("application/openmetrics-text")
    );
    let text = axum::body::to_bytes(response.into_body(), usize::MAX)
        .await
        .unwrap();
    let text = String::from_utf8(text.to_vec()).unwrap();
    assert!(text.ends_with("# EOF\n"), "{text}");
    let named: Vec<&str> = text.lines().filter(|line| line.contains(&id)).collect();
    assert_eq!(
        named.len(),
        2,
        "of the first token and of the whole: {named:?}"
    );
    assert!(
        named
            .iter()
            .all(|line| line.contains("_bucket{") && line.contains("# {request_id=\"")),
        "{named:?}"
    );
}

/// The names that dashboards ask for, with the labels that they select by.
#[tokio::test]
async fn the_names_of_another_engine_are_there_where_they_are_asked_for() {
    let names = |server: Server| async move {
        let text = server.get("/metrics").await.body;
        let lines = text.lines().filter(|line| line.starts_with("vllm:"));
        lines.map(ToOwned::to_owned).collect::<Vec<String>>()
    };
    let silent = serving(Script::saying("ab"), EdgeSettings::default()).await;
    assert!(names(silent).await.is_empty());
    let metrics = MetricsSettings {
        vllm_names: true,
        ..MetricsSettings::default()
    };
    let settings = EdgeSettings {
        metrics,
        ..EdgeSettings::default()
    };
    let server = serving(Script::saying("abc"), settings).await;
    for _ in 0..3 {
        server
            .post(COMPLETION, json!({"prompt": "xyz", "max_tokens": 3}))
            .await;
    }
    server.settled().await;
    let lines = names(server.clone()).await;
    let model = server.service.serving().unwrap().name().to_owned();
    let labels = format!("{{model_name=\"{model}\",engine=\"0\"");
    assert!(lines.iter().all(|line| line.contains(&labels)), "{lines:?}");
    let scrape = Scrape::of(&server).await;
    for histogram in [
        "time_to_first_token_seconds",
        "inter_token_latency_seconds",
        "request_time_per_output_token_seconds",
        "e2e_request_latency_seconds",
        "request_queue_time_seconds",
        "request_prefill_time_seconds",
        "request_decode_time_seconds",
        "request_inference_time_seconds",
        "request_prompt_tokens",
        "request_generation_tokens",
        "request_params_max_tokens",
        "request_max_num_generation_tokens",
        "request_params_n",
        "iteration_tokens_total",
    ] {
        let count = scrape.get(&format!("vllm:{histogram}_count"));
        assert!(count >= 3.0, "{histogram}: {count}");
        let all = scrape.get(&format!("vllm:{histogram}_bucket{{le=\"+Inf\"}}"));
        assert_eq!(all, count, "{histogram}");
    }
    for bound in ["0.001", "0.3", "1.0", "2560.0", "7680.0"] {
        let bucket = format!("vllm:e2e_request_latency_seconds_bucket{{le=\"{bound}\"}}");
        assert!(scrape.get(&bucket) <= 3.0);
    }
    assert_eq!(scrape.get("vllm:request_success_total"), 3.0);
    assert_eq!(scrape.get("vllm:prompt_tokens_total"), 9.0);
    assert_eq!(scrape.get("vllm:num_requests_running"), 0.0);
    assert_eq!(scrape.get("vllm:num_requests_waiting"), 0.0);
    assert_eq!(
        scrape.get("vllm:kv_cache_usage_perc"),
        0.0,
        "what is cached is free"
    );
    assert_eq!(scrape.get("vllm:cache_config_info"), 1.0);
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
    assert_eq!(scrape.get("serve_state"), 1.0);
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
    assert_eq!(scrape.get("serve_state"), 1.0);
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
