//! A log that cannot be written: nothing happens but that its lines are lost and counted.

use std::fs;
use std::net::TcpListener;
use std::process::Stdio;

use serde_json::{Value, json};

use crate::process::Process;
use crate::settings::{File, hashed};
use crate::support::{chunks, streamed_text, tokens_in};

const FAST: &[&str] = &["--backend", "mock", "--mock-speed", "inf", "--log", "debug"];

/// A file on a full disk.
fn full() -> Stdio {
    fs::File::options()
        .write(true)
        .open("/dev/full")
        .unwrap()
        .into()
}

/// Whole and streamed answers, all of them complete.
async fn requests(url: &str, count: u32) {
    let client = reqwest::Client::new();
    for index in 0..count {
        let stream = index % 2 == 0;
        let body = json!({"prompt": "x", "max_tokens": 3, "stream": stream});
        let response = client.post(url).json(&body).send().await.unwrap();
        assert_eq!(response.status(), 200, "request {index}");
        let text = response.text().await.unwrap();
        if stream {
            assert_eq!(
                tokens_in(&streamed_text(&chunks(&text))),
                3,
                "request {index}"
            );
            assert!(
                text.ends_with("data: [DONE]\n\n"),
                "request {index}: {text}"
            );
        }
    }
}

async fn lost(process: &Process) -> u64 {
    metric(process, "serve_log_lines_lost_total").await
}

async fn metric(process: &Process, name: &str) -> u64 {
    let text = reqwest::get(process.url("/metrics"))
        .await
        .unwrap()
        .text()
        .await
        .unwrap();
    let of_it = text.lines().filter(|line| line.starts_with(name));
    let value = |line: &str| line.rsplit(' ').next().unwrap().parse::<u64>().unwrap();
    of_it.map(value).sum()
}

#[tokio::test]
async fn a_full_disk_loses_lines_and_no_answer() {
    let mut process = Process::start_logging_to(full(), FAST);
    requests(&process.url("/v1/completions"), 60).await;
    while lost(&process).await < 60 {
        tokio::task::yield_now().await;
    }
    process.signal("TERM");
    assert_eq!(process.wait().status.code(), Some(0));
}

#[tokio::test]
async fn a_reader_that_has_gone_loses_lines_and_no_answer() {
    let mut process = Process::start(FAST);
    assert_eq!(
        lost(&process).await,
        0,
        "as long as somebody reads, nothing is lost"
    );
    process.drop_reader();
    requests(&process.url("/v1/completions"), 60).await;
    // They are lost when the thread that writes comes to them.
    while lost(&process).await < 59 {
        tokio::task::yield_now().await;
    }
    process.signal("TERM");
    assert_eq!(process.wait().status.code(), Some(0));
}

/// More lines than a pipe holds, and nobody reads them.
#[tokio::test]
async fn a_reader_that_stalls_stops_no_answer_and_no_signal() {
    for signals in [1, 2] {
        let mut process = Process::start(FAST);
        requests(&process.url("/v1/completions"), 500).await;
        let slow = match signals {
            1 => None,
            _ => {
                let body = json!({"prompt": "x", "max_tokens": 100_000, "stream": true});
                let client = reqwest::Client::new();
                let request = client.post(process.url("/v1/completions")).json(&body);
                // It is not read, so it does not end.
                Some(request.send().await.unwrap())
            }
        };
        for _ in 0..signals {
            process.signal("TERM");
            // Two that come together are one.
            std::thread::sleep(std::time::Duration::from_millis(200));
        }
        let code = process.wait_unread().code();
        assert_eq!(code, Some(if signals == 1 { 0 } else { 130 }));
        drop(slow);
    }
}

#[tokio::test]
async fn a_banner_that_cannot_be_written_is_given_up() {
    let free = TcpListener::bind("127.0.0.1:0")
        .unwrap()
        .local_addr()
        .unwrap();
    let port = free.port().to_string();
    let args = [FAST, &["--port", &port]].concat();
    let mut process = Process::spawn_with(&args, &[], full(), full());
    let url = format!("http://{free}");
    while !matches!(reqwest::get(format!("{url}/health")).await, Ok(answer) if answer.status() == 200)
    {
        tokio::task::yield_now().await;
    }
    requests(&format!("{url}/v1/completions"), 2).await;
    process.signal("TERM");
    assert_eq!(process.wait().status.code(), Some(0));
}

#[tokio::test]
async fn a_line_can_be_json() {
    let mut process = Process::start(&[
        "--backend",
        "mock",
        "--mock-speed",
        "inf",
        "--log-format",
        "json",
    ]);
    requests(&process.url("/v1/completions"), 1).await;
    process.signal("TERM");
    let ended = process.wait();
    let line = ended
        .stderr
        .lines()
        .rfind(|line| line.contains("\"request\""))
        .unwrap();
    let line: serde_json::Value = serde_json::from_str(line).unwrap();
    assert_eq!(
        (&line["outcome"], &line["output_tokens"]),
        (&json!("length"), &json!(3))
    );
}

/// Whatever comes in over HTTP has one line, which says how it ended and of whom it was.
#[tokio::test]
async fn every_request_has_one_line_however_it_ends() {
    let key = "sk-0123456789abcdef0123456789abcdef";
    let settings = format!(
        "backend = \"mock\"\nmock_speed = 0.2\nlog_format = \"json\"\nmax_batch = 1\nqueue_cap = 1\n\
         order = \"fair-tenants\"\n[[keys]]\nname = \"shop-1\"\ntenant = \"shop\"\nsha256 = \"{}\"\n",
        hashed(key)
    );
    let file = File::of("every-line", &settings);
    let mut process = Process::start(&["--config", file.path()]);
    let client = reqwest::Client::new();
    let ask = |path: &str, id: &str, key: &str, body: &str| {
        let request = client.post(process.url(path)).bearer_auth(key);
        let request = request.header("content-type", "application/json");
        request.header("x-request-id", id).body(body.to_owned())
    };
    let (completions, body) = ("/v1/completions", r#"{"prompt": "x", "max_tokens": 2}"#);
    let streamed = r#"{"prompt": "x", "max_tokens": 2, "stream": true}"#;
    let long = r#"{"prompt": "x", "max_tokens": 2000, "stream": true}"#;
    // Path, id, key, body; what the line says.
    let table = [
        (completions, "whole", key, body, 200, "length"),
        (completions, "streamed", key, streamed, 200, "length"),
        (
            completions,
            "wrong-key",
            "sk-wrong",
            body,
            401,
            "invalid_api_key",
        ),
        (completions, "no-json", key, "{", 400, "invalid_json"),
        (
            completions,
            "too-long",
            key,
            r#"{"prompt": "x", "max_tokens": 4000000}"#,
            400,
            "context_length_exceeded",
        ),
        ("/v1/nothing", "no-path", key, body, 404, "not_found"),
        (
            "/v1/models",
            "no-method",
            key,
            body,
            405,
            "method_not_allowed",
        ),
        (
            "/v1/requests/none/cancel",
            "no-request",
            key,
            "",
            404,
            "request_not_found",
        ),
    ];
    for (path, id, key, body, status, _) in &table {
        let answer = ask(path, id, key, body).send().await.unwrap();
        assert_eq!(answer.status(), *status, "{id}");
        answer.text().await.unwrap();
    }
    let models = client.get(process.url("/v1/models")).bearer_auth(key);
    let models = models
        .header("x-request-id", "models")
        .send()
        .await
        .unwrap();
    assert_eq!(models.status(), 200);
    // One that runs, and as many that wait as may; the next is refused.
    let mut running = ask(completions, "left", key, long).send().await.unwrap();
    assert!(running.chunk().await.unwrap().is_some());
    let waiting = tokio::spawn(ask(completions, "waits", key, body).send());
    while metric(&process, "serve_requests_waiting").await < 1 {
        tokio::task::yield_now().await;
    }
    let full = ask(completions, "full", key, body).send().await.unwrap();
    assert_eq!(full.status(), 429);
    drop(running);
    assert_eq!(waiting.await.unwrap().unwrap().status(), 200);
    let metrics = client.get(process.url("/metrics")).send().await.unwrap();
    let metrics = metrics.text().await.unwrap();
    assert!(
        metrics.contains("\nserve_wrong_keys_total 1\n"),
        "{metrics}"
    );
    process.signal("TERM");
    let logged = process.wait().stderr;
    let lines: Vec<Value> = logged
        .lines()
        .filter_map(|line| serde_json::from_str(line).ok())
        .filter(|line: &Value| line["message"] == "request")
        .collect();
    let of = |id: &str| -> &Value {
        let mut found = lines.iter().filter(|line| line["span"]["request_id"] == id);
        let line = found
            .next()
            .unwrap_or_else(|| panic!("{id} has no line: {logged}"));
        assert!(found.next().is_none(), "{id} has two lines: {logged}");
        line
    };
    for (path, id, key_sent, _, status, outcome) in &table {
        let line = of(id);
        let said = (
            &line["method"],
            &line["path"],
            &line["status"],
            &line["outcome"],
        );
        assert_eq!(
            said,
            (
                &json!("POST"),
                &json!(path),
                &json!(status),
                &json!(outcome)
            ),
            "{id}"
        );
        let peer = line["peer"].as_str().unwrap();
        assert!(peer.starts_with("127.0.0.1:"), "{line}");
        assert!(line["total_ms"].as_f64().unwrap() >= 0.0, "{line}");
        // What is asked on a path that there is not needs no key.
        let known = *key_sent == key && !["no-path", "no-method"].contains(id);
        let name = if known { json!("shop-1") } else { Value::Null };
        assert_eq!(line["key"], name, "{line}");
        assert_eq!(line["tenant"].is_null(), !known, "{line}");
    }
    for id in ["whole", "streamed"] {
        let line = of(id);
        assert_eq!(line["tenant"], "shop");
        assert_eq!(line["class"], "free");
        assert_eq!(
            (&line["prompt_tokens"], &line["output_tokens"]),
            (&json!(1), &json!(2))
        );
        assert_eq!(
            (&line["cached_tokens"], &line["preemptions"]),
            (&json!(0), &json!(0))
        );
        assert!(line["id"].as_str().unwrap().starts_with("cmpl-"));
        for time in ["read_ms", "queue_ms", "prefill_ms", "decode_ms"] {
            let (time, total) = (line[time].as_f64().unwrap(), line["total_ms"].as_f64());
            assert!((0.0..=total.unwrap() + 1.0).contains(&time), "{line}");
        }
    }
    assert_eq!(
        (&of("models")["status"], &of("models")["outcome"]),
        (&json!(200), &json!("ok"))
    );
    assert_eq!(of("left")["outcome"], "cancelled");
    assert_eq!(of("full")["outcome"], "overloaded");
    assert_eq!(of("full")["class"], "free");
    assert!(
        !lines.iter().any(|line| line["path"] == "/metrics"),
        "{logged}"
    );
    assert!(
        !logged.contains(key) && !logged.contains("sk-wrong"),
        "{logged}"
    );
}

/// What the log tells of prompts, if it is asked to: what they have in common, and nothing else.
#[tokio::test]
async fn blocks_of_prompts_are_told_by_hashes_of_this_process_alone() {
    let ask = async |blocks: &str| {
        let mut process = Process::start(&[
            "--backend=mock",
            "--mock-speed=inf",
            "--log-format=json",
            &format!("--log-prompt-blocks={blocks}"),
        ]);
        let client = reqwest::Client::new();
        let system = json!({"role": "system", "content": "a secret beginning"});
        let chat = |text: &str| json!({"messages": [system, {"role": "user", "content": text}], "max_tokens": 1});
        for (path, body) in [
            (
                "/v1/completions",
                json!({"prompt": "0123456789abc", "max_tokens": 1}),
            ),
            (
                "/v1/completions",
                json!({"prompt": "01234567XXXXX", "max_tokens": 1}),
            ),
            ("/v1/chat/completions", chat("one")),
            ("/v1/chat/completions", chat("other")),
            (
                "/v1/completions",
                json!({"prompt": "0123456789abc", "stream": true, "max_tokens": 1}),
            ),
        ] {
            let answer = client.post(process.url(path)).json(&body).send().await;
            let answer = answer.unwrap();
            assert_eq!(answer.status(), 200);
            answer.text().await.unwrap();
        }
        process.signal("TERM");
        let logged = process.wait().stderr;
        assert!(!logged.contains("secret"), "{logged}");
        let lines = logged
            .lines()
            .filter_map(|line| serde_json::from_str(line).ok());
        let lines = lines.filter(|line: &Value| line["message"] == "request");
        lines.map(|line| line["blocks"].clone()).collect::<Vec<_>>()
    };
    let told = |blocks: &Value| -> Vec<String> {
        let hashes = blocks.as_str().unwrap().strip_prefix("4:").unwrap();
        hashes.split(',').map(str::to_owned).collect()
    };
    let lines: Vec<_> = ask("4").await.iter().map(told).collect();
    let common = |one: &[String], other: &[String]| {
        let same = one
            .iter()
            .zip(other)
            .take_while(|(one, other)| one == other);
        same.count()
    };
    assert_eq!(lines.iter().map(Vec::len).collect::<Vec<_>>()[..2], [3, 3]);
    assert_eq!(common(&lines[0], &lines[1]), 2);
    assert_eq!(lines[0], lines[4]);
    let beginning = tokens_in("system: a secret beginning\nuser: o") / 4;
    assert_eq!(common(&lines[2], &lines[3]) as u64, beginning);
    assert_eq!(common(&lines[0], &lines[2]), 0);
    let again: Vec<_> = ask("4").await.iter().map(told).collect();
    for (one, other) in lines.iter().zip(&again) {
        assert_eq!(one.len(), other.len());
        assert!(!one.iter().any(|hash| other.contains(hash)));
    }
    assert!(ask("0").await.iter().all(Value::is_null));
}
