//! The real binary and its settings: from three places, shown as they are, refused at the start.

use std::io::Write;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use serde_json::{Value, json};

use crate::process::Process;

/// A settings file that is gone when the test is over.
pub(crate) struct File(PathBuf);

impl File {
    pub(crate) fn of(name: &str, text: &str) -> Self {
        let path = std::env::temp_dir().join(format!("serve-{}-{name}.toml", std::process::id()));
        std::fs::write(&path, text).unwrap();
        Self(path)
    }

    pub(crate) fn path(&self) -> &str {
        self.0.to_str().unwrap()
    }
}

impl Drop for File {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

/// The hash that the binary prints for a key.
pub(crate) fn hashed(key: &str) -> String {
    let mut child = Command::new(env!("CARGO_BIN_EXE_serve"))
        .arg("hash-key")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut stdin = child.stdin.take().unwrap();
    writeln!(stdin, "{key}").unwrap();
    drop(stdin);
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success());
    String::from_utf8(output.stdout).unwrap().trim().to_owned()
}

#[tokio::test]
async fn the_effective_settings_are_shown_and_no_secret_is_among_them() {
    let key = "a-key-that-nobody-guesses";
    let hash = hashed(key);
    let text = format!(
        "backend = \"mock\"\nmax_batch = 3\nqueue_cap = 7\norder = \"fair-tenants\"\nprefix_cache = false\n\
         class_queue_cap = {{ free = 5 }}\n\
         [[keys]]\nname = \"shop\"\nsha256 = \"{hash}\"\nclass = \"paid\"\nweight = 4\n\
         [[keys]]\nname = \"other\"\nsha256 = \"{}\"\n",
        "0".repeat(64)
    );
    let file = File::of("shown", &text);
    let variables = [("SERVE_QUEUE_CAP", "8"), ("SERVE_MAX_BATCH", "4")];
    let args = ["--config", file.path(), "--max-batch", "5"];
    let process = Process::start_with(&args, &variables);
    for says in [
        "order fair-tenants",
        "queue_cap 8",
        "class_queue_cap free=5",
        "prefix_cache false",
        "2 API keys",
        "Authorization: Bearer $KEY",
    ] {
        assert!(process.banner.contains(says), "{}", process.banner);
    }
    let url = process.url("/v1/config");
    let client = reqwest::Client::new();
    assert_eq!(client.get(&url).send().await.unwrap().status(), 401);
    let answer = client.get(&url).bearer_auth(key).send().await.unwrap();
    let shown = answer.text().await.unwrap();
    assert!(!shown.contains(&hash) && !shown.contains(key), "{shown}");
    let shown: Value = serde_json::from_str(&shown).unwrap();
    for (name, value) in [
        ("max_batch", json!(5)),
        ("queue_cap", json!(8)),
        ("prefix_cache", json!(false)),
        ("output_weight", json!(2)),
        ("age_after", json!(null)),
        ("batch", json!("continuous")),
        ("classes", json!(["paid", "free"])),
        ("class_queue_cap", json!([{"class": "free", "max": 5}])),
        ("request_timeout", json!(0.0)),
    ] {
        assert_eq!(shown[name], value, "{name}");
    }
    // What was left to the model, and what this is.
    assert_eq!(shown["context"], json!(null));
    assert_eq!(
        shown["running"],
        json!({
            "served_model_name": "mock", "device": "mock", "max_batch": 5, "step_tokens": 512,
            "context": 2_048, "kv_tokens": 10_240, "kv_block_tokens": 16,
        })
    );
    assert_eq!(shown["version"], env!("CARGO_PKG_VERSION"));
    let commit = shown["build"]["commit"].as_str().unwrap();
    assert!(
        process.version().contains(&format!("commit {commit}; ")),
        "{commit}"
    );
    assert_eq!(shown["keys"][0]["name"], "shop");
    assert_eq!(shown["keys"][0]["weight"], 4);
    assert_eq!(
        shown["keys"].as_array().unwrap().len(),
        1,
        "of other keys nothing is told"
    );

    let body = json!({"prompt": "x", "max_tokens": 2});
    let ask = client.post(process.url("/v1/completions")).json(&body);
    let answer = ask.bearer_auth(key).send().await.unwrap();
    assert_eq!(answer.status(), 200);
}

#[tokio::test]
async fn every_policy_can_be_reached_and_serves() {
    let table: &[&[&str]] = &[
        &["--order", "strict-tiers", "--batch", "one-at-a-time"],
        &[
            "--order",
            "aging-tiers",
            "--age-after",
            "0",
            "--batch",
            "static",
            "--batch-window",
            "0",
        ],
        &[
            "--order",
            "response-ratio",
            "--wait-max",
            "5",
            "--preempt-by-class",
        ],
        &[
            "--order",
            "earliest-deadline",
            "--deadline-admission",
            "--deadline-margin",
            "0.1",
        ],
        &[
            "--order",
            "fair-tenants",
            "--input-weight",
            "2",
            "--output-weight",
            "3",
        ],
        &[
            "--batch",
            "static",
            "--batch-window",
            "0",
            "--batch-window-max",
            "0.01",
        ],
        &[
            "--queue-cap",
            "0",
            "--class-queue-cap",
            "free=3",
            "--latency-budget",
            "5",
            "--first-token-budget",
            "5",
        ],
        &[
            "--requests-per-s",
            "1000",
            "--tokens-per-s",
            "1e6",
            "--tenant-requests-per-s",
            "1000",
            "--tenant-tokens-per-s",
            "1e6",
            "--rate-burst",
            "2",
            "--concurrency-limit",
        ],
        &[
            "--victim",
            "least-progress-lost",
            "--preemptions-max",
            "1",
            "--watermark-blocks",
            "4",
            "--prefix-cache=off",
            "--prefix-shared",
            "--max-batch",
            "1",
        ],
    ];
    for settings in table {
        let mock: &[&str] = &["--backend", "mock", "--mock-speed", "inf"];
        let process = Process::start(&[mock, settings].concat());
        let body = json!({"prompt": "x", "max_tokens": 3, "timeout_ms": 60_000});
        let ask = reqwest::Client::new()
            .post(process.url("/v1/completions"))
            .json(&body);
        let answer = ask.send().await.unwrap();
        assert_eq!(answer.status(), 200, "{settings:?}");
    }
}

async fn config(process: &Process) -> Value {
    let answer = reqwest::get(process.url("/v1/config")).await.unwrap();
    answer.json().await.unwrap()
}

/// Turning one thing off changes one setting, and no other limit comes in its place.
#[tokio::test]
async fn each_control_is_one_setting_away() {
    // (the treatment, the control, what differs)
    let table: &[(&[&str], &[&str], &str, Value)] = &[
        (&[], &["--max-batch=1"], "max_batch", json!(1)),
        (&[], &["--queue-cap=0"], "queue_cap", json!(0)),
        (
            &["--order=aging-tiers"],
            &["--age-after=0"],
            "age_after",
            json!(0.0),
        ),
        (&[], &["--prefix-cache=false"], "prefix_cache", json!(false)),
        (
            &["--batch=static"],
            &["--batch-window=0"],
            "batch_window",
            json!(0.0),
        ),
        (
            &["--queue-timeout=5"],
            &["--queue-timeout=0"],
            "queue_timeout",
            json!(0.0),
        ),
        (&[], &["--connections-max=0"], "connections_max", json!(0)),
        (&[], &["--header-timeout=0"], "header_timeout", json!(0.0)),
        (&[], &["--body-timeout=0"], "body_timeout", json!(0.0)),
        (
            &[],
            &["--keep-alive-timeout=0"],
            "keep_alive_timeout",
            json!(0.0),
        ),
        (&[], &["--write-timeout=0"], "write_timeout", json!(0.0)),
        (&[], &["--idempotency-ttl=0"], "idempotency_ttl", json!(0.0)),
    ];
    for (treatment, control, name, off) in table {
        let mock: &[&str] = &["--backend=mock", "--mock-speed=inf"];
        let on = Process::start(&[mock, treatment].concat());
        // A flag may be given once, so the control takes the place of its own.
        let others = treatment.iter().filter(|flag| {
            let key = |flag: &str| flag.split('=').next().map(ToOwned::to_owned);
            key(flag) != key(control[0])
        });
        let others: Vec<&str> = others.copied().collect();
        let off_process = Process::start(&[mock, &others, control].concat());
        let (with, without) = (config(&on).await, config(&off_process).await);
        let (with, without) = (with.as_object().unwrap(), without.as_object().unwrap());
        assert_eq!(&without[*name], off, "{name}");
        let differ: Vec<&String> = with
            .iter()
            // What the settings come to is no setting.
            .filter(|(key, value)| {
                !["port", "running"].contains(&key.as_str()) && without[*key] != **value
            })
            .map(|(key, _)| key)
            .collect();
        assert_eq!(differ, [name], "{control:?}");
        let ask = reqwest::Client::new()
            .post(off_process.url("/v1/completions"))
            .json(&json!({"prompt": "x", "max_tokens": 2}));
        assert_eq!(ask.send().await.unwrap().status(), 200, "{name}");
    }
}

/// The first document lost a run because a second limit went on refusing.
#[tokio::test]
async fn without_a_queue_cap_no_class_is_refused() {
    for (cap, refuses) in [("256", true), ("0", false)] {
        let process = Process::start(&[
            "--backend=mock",
            "--mock-speed=50",
            "--max-batch=1",
            "--class-queue-cap=free=1",
            "--queue-cap",
            cap,
        ]);
        let client = reqwest::Client::new();
        let body = json!({"prompt": "x", "max_tokens": 20, "request_class": "free"});
        let asked = (0..300).map(|_| {
            let ask = client.post(process.url("/v1/completions")).json(&body);
            async move { ask.send().await.unwrap().status().as_u16() }
        });
        let statuses = futures::future::join_all(asked).await;
        let refused = statuses.iter().filter(|status| **status == 429).count();
        assert_eq!(refused > 0, refuses, "queue cap {cap}: {refused} refused");
        assert!(statuses.iter().all(|status| [200, 429].contains(status)));
    }
}

#[test]
fn settings_that_cannot_be_meant_end_the_start_with_their_names() {
    let unknown = File::of("unknown", "max_bacth = 3\n");
    let broken = File::of("broken", "max_batch = \n");
    let table: &[(&[&str], &str)] = &[
        (
            &["--config", unknown.path()],
            "max_bacth is not a setting; did you mean max_batch?",
        ),
        (&["--config", broken.path()], "line 1"),
        (
            &["--config", "/nowhere/serve.toml"],
            "/nowhere/serve.toml: ",
        ),
        (
            &["--host", "0.0.0.0"],
            "--host: 0.0.0.0 can be reached from other machines",
        ),
        (&["--order", "lifo"], "fifo, strict-tiers, aging-tiers"),
        (
            &["--age-after", "3"],
            "--age-after: it needs --order aging-tiers",
        ),
        (
            &["--batch-window", "1"],
            "--batch-window: it needs --batch static",
        ),
        (
            &["--deadline-margin", "1"],
            "--deadline-margin: it needs --deadline-admission",
        ),
        (
            &["--class-queue-cap", "gold=3"],
            "--class-queue-cap: there is no class \"gold\"; known are paid, free",
        ),
        (&["--class-queue-cap", "free"], "CLASS=N"),
        (
            &["--classes", "a,a"],
            "--classes: it must be 1 to 16 different names",
        ),
        (&["--capacity-status", "500"], "503, 429"),
        (&["--prefix-cache=maybe"], "--prefix-cache"),
        (
            &["--latency-budget=-1"],
            "a number of seconds from 0 to 86400",
        ),
        (&["--tokens-per-s", "nan"], "a number from 0 to 1000000000"),
        (
            &["--stalled-after", "0"],
            "--stalled-after: it must be above 0",
        ),
        (
            &["--request-timeout", "5", "--queue-timeout", "5"],
            "--queue-timeout: it must be below --request-timeout",
        ),
        (
            &["--bodies-bytes-max", "1000"],
            "--bodies-bytes-max: it must not be below --body-bytes-max",
        ),
        (
            &["--write-timeout", "never"],
            "a number of seconds from 0 to 86400",
        ),
    ];
    for (args, says) in table {
        let fixed: &[&str] = &["--port", "0", "--backend", "mock"];
        let ended = Process::run(&[fixed, args].concat());
        assert_eq!(ended.status.code(), Some(2), "{args:?}: {}", ended.stderr);
        assert!(ended.stderr.contains(says), "{args:?}: {}", ended.stderr);
    }
}

/// SIGHUP: keys, rates and the log are read again, all or nothing, and a stream goes on.
#[tokio::test]
async fn settings_are_read_again_while_a_stream_runs() {
    let keys = [
        "a-key-of-the-shop-1",
        "a-key-of-the-shop-2",
        "a-key-of-another-1",
    ];
    let entry = |name: &str, key: &str, more: &str| {
        format!(
            "[[keys]]\nname = \"{name}\"\nsha256 = \"{}\"\n{more}\n",
            hashed(key)
        )
    };
    let head = "backend = \"mock\"\nmock_speed = 0.2\norder = \"fair-tenants\"\n";
    let first = entry("shop", keys[0], "weight = 2");
    let file = File::of("reload", &format!("{head}{first}"));
    let mut process = Process::start(&["--config", file.path()]);
    let client = reqwest::Client::new();
    let status = async |process: &Process, key: &str, path: &str| {
        let ask = client.get(process.url(path)).bearer_auth(key);
        ask.send().await.unwrap().status().as_u16()
    };
    let shown = async |process: &Process, key: &str| -> Value {
        let ask = client.get(process.url("/v1/config")).bearer_auth(key);
        ask.send().await.unwrap().json().await.unwrap()
    };
    let long = json!({"prompt": "x", "max_tokens": 40, "stream": true});
    let ask = client
        .post(process.url("/v1/completions"))
        .bearer_auth(keys[0]);
    let stream = ask.json(&long).send().await.unwrap();

    // Another key of the shop's, another tenant with a rate, another budget; the old key goes.
    let next = [
        "rate_burst = \"1s\"\n",
        &entry("shop", keys[1], "weight = 3"),
        &entry("other", keys[2], "requests_per_s = 0.001"),
    ];
    std::fs::write(file.path(), format!("{head}{}", next.concat())).unwrap();
    process.signal("HUP");
    process.until_logged("is read again: 2 keys");
    assert_eq!(status(&process, keys[0], "/v1/models").await, 401);
    assert_eq!(shown(&process, keys[1]).await["keys"][0]["weight"], 3);
    let short = json!({"prompt": "x", "max_tokens": 1});
    let other = || {
        client
            .post(process.url("/v1/completions"))
            .bearer_auth(keys[2])
            .json(&short)
    };
    assert_eq!(other().send().await.unwrap().status(), 200);
    assert_eq!(
        other().send().await.unwrap().status(),
        429,
        "its rate holds"
    );

    // What cannot change, what is wrong, and a file without keys change nothing.
    let good = next.concat();
    let without_keys = head.replace("order = \"fair-tenants\"\n", "");
    for (wrong, told) in [
        (
            format!("drain_timeout = 1\n{head}{good}"),
            "drain_timeout: it cannot change while the server runs",
        ),
        (
            format!("max_batch = \"many\"\n{head}{good}"),
            "line 1: max_batch: invalid value 'many'",
        ),
        (
            format!("queue_cap = 3\n{head}{good}"),
            "queue_cap: it cannot change while the server runs",
        ),
        (without_keys, "keys: none would be left"),
    ] {
        std::fs::write(file.path(), &wrong).unwrap();
        process.signal("HUP");
        process.until_logged(told);
        assert_eq!(status(&process, keys[2], "/v1/models").await, 200, "{told}");
    }
    std::fs::write(file.path(), format!("log = \"debug\"\n{head}{good}")).unwrap();
    process.signal("HUP");
    process.until_logged("is read again: 2 keys, log debug");
    assert_eq!(shown(&process, keys[1]).await["log"], "debug");
    let text = stream.text().await.unwrap();
    assert!(text.ends_with("data: [DONE]\n\n"), "{text}");
    process.signal("TERM");
    assert_eq!(process.wait().status.code(), Some(0));
}

/// A wrong value is told of what it was written in: a variable, a line of the file, a flag.
#[test]
fn an_error_names_what_was_written() {
    let file = File::of("lines", "queue_cap = 3\n\nmax_batch = \"four\"\n");
    let needs = File::of("needs", "# a comment\nage_after = 3\n");
    let sample = File::of(
        "sample",
        "[[keys]]\nname = \"a\"\n\
         sha256 = \"8f434346648f6b96df89dda901c5176b10a6d83961dd3c1ac88b59b2dc327aa4\"\n",
    );
    /// Arguments, variables, and what is said of them.
    type Case<'a> = (&'a [&'a str], &'a [(&'a str, &'a str)], &'a str);

    let table: &[Case<'_>] = &[
        (
            &[],
            &[("SERVE_MAX_BATCH", "abc")],
            "SERVE_MAX_BATCH: invalid value 'abc': a whole",
        ),
        (
            &[],
            &[("SERVE_AGE_AFTER", "3")],
            "SERVE_AGE_AFTER: it needs --order aging-tiers",
        ),
        (
            &[],
            &[("SERVE_MAXBATCH", "3")],
            "did you mean SERVE_MAX_BATCH?",
        ),
        (
            &[],
            &[("SERVE_LOG", "inof")],
            "SERVE_LOG: \"inof\" is not a level",
        ),
        (
            &["--max-batch", "x"],
            &[("SERVE_MAX_BATCH", "3")],
            "'x' for '--max-batch <N>'",
        ),
        (
            &["--config", file.path()],
            &[],
            "line 3: max_batch: invalid value 'four'",
        ),
        (
            &["--config", needs.path()],
            &[],
            "line 2: age_after: it needs --order aging-tiers",
        ),
        (
            &["--config", sample.path()],
            &[],
            "keys[0].sha256: this hash stood in an example",
        ),
        (
            &["a-model", "--model", "b"],
            &[],
            "--model: the model is a-model already",
        ),
    ];
    for (args, variables, says) in table {
        let mut process = Process::spawn(&[&["--backend", "mock"], *args].concat(), variables);
        let ended = process.wait();
        assert_eq!(ended.status.code(), Some(2), "{args:?}: {}", ended.stderr);
        assert!(
            ended.stderr.contains(says),
            "{args:?} {variables:?}: {}",
            ended.stderr
        );
    }
}

#[test]
fn help_is_given_whatever_the_environment_says() {
    for args in [&["--help"][..], &["--version"], &["hash-key", "--generate"]] {
        let ended = Process::spawn(args, &[("SERVE_MAXBATCH", "3")]).wait();
        assert_eq!(ended.status.code(), Some(0), "{args:?}: {}", ended.stderr);
    }
}

/// Kubernetes tells every pod where a service called `serve` is.
#[test]
fn a_service_of_kubernetes_is_no_setting() {
    let variables = [
        ("SERVE_PORT", "tcp://10.96.0.12:8000"),
        ("SERVE_PORT_8000_TCP_ADDR", "10.96.0.12"),
        ("SERVE_SERVICE_HOST", "10.96.0.12"),
    ];
    let process = Process::start_with(&["--backend", "mock"], &variables);
    assert!(
        process.banner.contains("http://127.0.0.1:"),
        "{}",
        process.banner
    );
}

#[test]
fn times_and_sizes_take_units() {
    let args = [
        "--backend",
        "mock",
        "--request-timeout",
        "2m",
        "--body-bytes-max",
        "1MiB",
    ];
    assert!(Process::start(&args).banner.contains("address"));
}

#[test]
fn all_addresses_are_listened_on_when_that_is_said() {
    let args = [
        "--backend",
        "mock",
        "--host",
        "0.0.0.0",
        "--allow-anonymous",
    ];
    let process = Process::start(&args);
    assert!(
        process.address().starts_with("http://0.0.0.0:"),
        "{}",
        process.banner
    );
}
