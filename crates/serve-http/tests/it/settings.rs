//! The real binary and its settings: from three places, shown as they are, refused at the start.

use std::io::Write;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use serde_json::{Value, json};

use crate::process::Process;

/// A settings file that is gone when the test is over.
struct File(PathBuf);

impl File {
    fn of(name: &str, text: &str) -> Self {
        let path = std::env::temp_dir().join(format!("serve-{}-{name}.toml", std::process::id()));
        std::fs::write(&path, text).unwrap();
        Self(path)
    }

    fn path(&self) -> &str {
        self.0.to_str().unwrap()
    }
}

impl Drop for File {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

/// The hash that the binary prints for a key.
fn hashed(key: &str) -> String {
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
         [[keys]]\nname = \"shop\"\nsha256 = \"{hash}\"\nclass = \"paid\"\nweight = 4\n"
    );
    let file = File::of("shown", &text);
    let variables = [("SERVE_QUEUE_CAP", "8"), ("SERVE_MAX_BATCH", "4")];
    let args = ["--config", file.path(), "--max-batch", "5"];
    let process = Process::start_with(&args, &variables);
    for says in [
        "order fair-tenants",
        "at most 8 waiting",
        "free from 5 on refused",
        "prefixes not kept",
        "1 API keys",
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
        ("class_queue_cap", json!([{"class": "free", "depth": 5}])),
        ("request_timeout", json!(0.0)),
    ] {
        assert_eq!(shown[name], value, "{name}");
    }
    assert_eq!(shown["keys"][0]["name"], "shop");
    assert_eq!(shown["keys"][0]["weight"], 4);

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
            "--token-backlog",
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

#[test]
fn settings_that_cannot_be_meant_end_the_start_with_their_names() {
    let unknown = File::of("unknown", "max_bacth = 3\n");
    let broken = File::of("broken", "max_batch = \n");
    let table: &[(&[&str], &str)] = &[
        (
            &["--config", unknown.path()],
            "max_bacth is not a setting; known are ",
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
    ];
    for (args, says) in table {
        let fixed: &[&str] = &["--port", "0", "--backend", "mock"];
        let ended = Process::run(&[fixed, args].concat());
        assert_eq!(ended.status.code(), Some(2), "{args:?}: {}", ended.stderr);
        assert!(ended.stderr.contains(says), "{args:?}: {}", ended.stderr);
    }
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
