//! The embedded model over HTTP says what an independent implementation says.

use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use crate::process::Process;
use crate::support::{chunks, streamed_text};

/// Prompts with 64 greedy tokens each.
struct Golden {
    cases: Vec<(String, String)>,
}

impl Golden {
    fn read() -> Self {
        let path = model_dir().join("golden.json");
        let text = std::fs::read_to_string(path).unwrap();
        let golden: Value = serde_json::from_str(&text).unwrap();
        let text = |case: &Value, name: &str| case[name].as_str().unwrap().to_owned();
        let cases = golden["prompts"].as_array().unwrap().iter();
        let cases = cases.map(|case| (text(case, "text"), text(case, "continuation")));
        Self {
            cases: cases.collect(),
        }
    }
}

fn model_dir() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../serve-model/models/austen-2m")
}

fn quiet() -> Process {
    Process::start(&["--log", "warn"])
}

async fn continuation(process: &Process, prompt: &str, stream: bool) -> String {
    let body = json!({"model": "austen-2m", "prompt": prompt, "max_tokens": 64, "temperature": 0,
                      "stream": stream});
    let request = reqwest::Client::new()
        .post(process.url("/v1/completions"))
        .json(&body);
    let response = request.send().await.unwrap();
    assert_eq!(response.status(), 200);
    let body = response.text().await.unwrap();
    if stream {
        streamed_text(&chunks(&body))
    } else {
        let body: Value = serde_json::from_str(&body).unwrap();
        assert_eq!(body["usage"]["completion_tokens"], 64);
        body["choices"][0]["text"].as_str().unwrap().to_owned()
    }
}

#[tokio::test]
async fn every_golden_continuation_alone() {
    let process = quiet();
    for (prompt, expected) in &Golden::read().cases {
        for stream in [false, true] {
            let text = continuation(&process, prompt, stream).await;
            assert_eq!(text, *expected, "{prompt:?}, stream: {stream}");
        }
    }
}

#[tokio::test]
async fn every_golden_continuation_with_fifteen_others_in_flight() {
    let process = quiet();
    let cases = Golden::read().cases;
    // Eight cases, streamed and not: sixteen at once, each beside fifteen others.
    let all = cases
        .iter()
        .flat_map(|(prompt, expected)| [false, true].map(|stream| (prompt, expected, stream)));
    let all: Vec<_> = all.collect();
    assert_eq!(all.len(), 16);
    let texts = all
        .iter()
        .map(|(prompt, _, stream)| continuation(&process, prompt, *stream));
    let texts = futures::future::join_all(texts).await;
    for ((prompt, expected, stream), text) in all.iter().zip(texts) {
        assert_eq!(text, **expected, "{prompt:?}, stream: {stream}");
    }
}

#[tokio::test]
async fn a_seed_fixes_what_is_sampled() {
    let process = quiet();
    let ask = async |seed: u32| {
        let body = json!({"messages": [{"role": "user", "content": "My dear sister"}], "max_tokens": 24,
                          "seed": seed, "temperature": 1});
        let request = reqwest::Client::new()
            .post(process.url("/v1/chat/completions"))
            .json(&body);
        let body: Value = request.send().await.unwrap().json().await.unwrap();
        body["choices"][0]["message"]["content"]
            .as_str()
            .unwrap()
            .to_owned()
    };
    let first = ask(1).await;
    assert_eq!(first, ask(1).await);
    assert_ne!(first, ask(2).await);
}

#[tokio::test]
async fn the_banner_says_what_is_served() {
    let process = quiet();
    for text in [
        "austen-2m",
        "1,969,088 parameters",
        "cpu",
        "f32",
        "MiB",
        "curl -N http://",
    ] {
        assert!(process.banner.contains(text), "{text}: {}", process.banner);
    }
}

#[test]
fn a_model_that_cannot_be_loaded_is_exit_code_3_and_a_clear_line() {
    let scratch = Path::new(env!("CARGO_TARGET_TMPDIR")).join("broken-models");
    let copy = |name: &str, change: &dyn Fn(&Path)| {
        let to = scratch.join(name);
        std::fs::create_dir_all(&to).unwrap();
        for file in std::fs::read_dir(model_dir()).unwrap() {
            let file = file.unwrap().path();
            if file.is_dir() {
                continue;
            }
            std::fs::copy(&file, to.join(file.file_name().unwrap())).unwrap();
        }
        change(&to);
        to.to_str().unwrap().to_owned()
    };
    let no_weights = copy("no-weights", &|dir| {
        std::fs::remove_file(dir.join("model.safetensors")).unwrap();
    });
    let truncated = copy("truncated", &|dir| {
        let path = dir.join("model.safetensors");
        let bytes = std::fs::read(&path).unwrap();
        std::fs::write(path, &bytes[..bytes.len() / 2]).unwrap();
    });
    let unsupported = copy("unsupported", &|dir| {
        let path = dir.join("config.json");
        let config = std::fs::read_to_string(&path).unwrap();
        let config = config.replace("Qwen2ForCausalLM", "MambaForCausalLM");
        std::fs::write(path, config.replace("\"qwen2\"", "\"mamba\"")).unwrap();
    });
    let table = [
        (no_weights.as_str(), "safetensors"),
        (truncated.as_str(), "model.safetensors"),
        (unsupported.as_str(), "amba"),
        ("./no/such/folder", "./no/such/folder"),
    ];
    for (model, says) in table {
        let ended = Process::run(&["--port", "0", "--model", model]);
        assert_eq!(ended.status.code(), Some(3), "{model}: {}", ended.stderr);
        let errors = ended
            .stderr
            .lines()
            .filter(|line| line.starts_with("serve: error:"));
        let errors: Vec<&str> = errors.collect();
        assert_eq!(errors.len(), 1, "{}", ended.stderr);
        assert!(errors[0].contains(says), "{model}: {}", errors[0]);
    }
}
