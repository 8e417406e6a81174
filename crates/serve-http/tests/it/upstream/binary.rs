//! The real binary in front of an engine, with a real client.

use serde_json::{Value, json};

use super::CHAT;
use super::engine::Engine;
use crate::process::Process;
use crate::settings::File;

fn start(engine: &Engine, args: &[&str], variables: &[(&str, &str)]) -> Process {
    let url = engine.url();
    Process::start_with(&[&["--upstream", &url], args].concat(), variables)
}

#[tokio::test(flavor = "multi_thread")]
async fn the_binary_attaches_tells_so_and_serves() {
    let engine = Engine::start().await;
    let args = [
        "--served-model-name",
        "mine",
        "--upstream-limit",
        "3",
        "--order",
        "fair-tenants",
    ];
    let variables = [("SERVE_UPSTREAM_API_KEY", "sk-of-the-engine")];
    let mut process = start(&engine, &args, &variables);
    let url = engine.url();
    for says in [
        "model     mine",
        &format!("engine    {url}, which calls it engine/model"),
        "limit     3 requests with the engine",
        "policies  order fair-tenants (",
    ] {
        assert!(process.banner.contains(says), "{}", process.banner);
    }
    let client = reqwest::Client::new();
    let body = json!({"messages": [{"role": "user", "content": "hi"}]});
    let answer = client
        .post(process.url(CHAT))
        .json(&body)
        .send()
        .await
        .unwrap();
    assert_eq!(answer.status(), 200);
    let answer: Value = answer.json().await.unwrap();
    assert_eq!(answer["model"], "mine");
    let seen = engine.seen();
    assert!(
        seen.iter()
            .all(|seen| seen.headers["authorization"] == "Bearer sk-of-the-engine")
    );
    let shown = client.get(process.url("/v1/config")).send().await.unwrap();
    let shown: Value = shown.json().await.unwrap();
    let running = json!({"served_model_name": "mine", "engine": url, "engine_model": "engine/model", "limit": "3"});
    assert_eq!(shown["running"], running);
    assert_eq!(shown["upstream_limit"], "3");
    process.until_logged("request");
    process.signal("TERM");
    let ended = process.wait();
    assert!(ended.status.success(), "{ended:?}");
    let line = ended
        .stderr
        .lines()
        .find(|line| line.contains(CHAT))
        .unwrap();
    for says in [
        "id=\"chatcmpl-whole\"",
        "outcome=\"stop\"",
        "prompt_tokens=7",
        "output_tokens=3",
        "cached_tokens=2",
    ] {
        assert!(line.contains(says), "{says}: {line}");
    }
    let all = format!("{shown}{}", ended.stderr);
    assert!(!all.contains("sk-of-the-engine"), "{all}");
}

/// The gate's settings are read again as they are for the own engine, without a request lost.
#[tokio::test(flavor = "multi_thread")]
async fn the_gate_reads_its_settings_again() {
    let engine = Engine::start().await;
    let text = |rate: u32| {
        format!(
            "upstream = \"{}\"\nupstream_limit = 3\nrequests_per_s = {rate}\n",
            engine.url()
        )
    };
    let file = File::of("front", &text(1_000));
    let mut process = Process::start(&["--config", file.path()]);
    std::fs::write(file.path(), text(7)).unwrap();
    process.signal("HUP");
    process.until_logged("is read again");
    let shown = reqwest::get(process.url("/v1/config")).await.unwrap();
    let shown: Value = shown.json().await.unwrap();
    assert_eq!(shown["requests_per_s"], 7.0);
    std::fs::write(file.path(), text(7).replace('3', "4")).unwrap();
    process.signal("HUP");
    process.until_logged("upstream");
    let body = json!({"messages": [{"role": "user", "content": "hi"}]});
    let asked = reqwest::Client::new().post(process.url(CHAT)).json(&body);
    assert_eq!(asked.send().await.unwrap().status(), 200);
}

/// Keys stay where they are: none is shown, and one that has changed is not taken for one that holds.
#[tokio::test(flavor = "multi_thread")]
async fn a_key_of_the_engine_is_not_shown_and_not_changed_unseen() {
    let engine = Engine::start().await;
    let text = |key: &str| {
        format!(
            "upstream = \"{}\"\nupstream_api_key = \"{key}\"\n",
            engine.url()
        )
    };
    let file = File::of("keys", &text("sk-first"));
    let mut process = Process::start(&["--config", file.path()]);
    std::fs::write(file.path(), text("sk-second")).unwrap();
    process.signal("HUP");
    process.until_logged("the settings stay as they were: upstream_api_key: it cannot change");
    assert!(!process.logged.contains("sk-"), "{}", process.logged);
    let shown = reqwest::get(process.url("/v1/config")).await.unwrap();
    let shown = shown.text().await.unwrap();
    assert!(!shown.contains("sk-"), "{shown}");
}

#[test]
fn a_wrong_key_of_the_engine_is_told_without_the_key() {
    let variables = [("SERVE_UPSTREAM_API_KEY", "sk with spaces")];
    let mut process = Process::spawn(&["--upstream", "http://127.0.0.1:1"], &variables);
    let ended = process.wait();
    assert_eq!(ended.status.code(), Some(2));
    assert!(
        ended
            .stderr
            .contains("SERVE_UPSTREAM_API_KEY: it must be visible ASCII"),
        "{}",
        ended.stderr
    );
    assert!(!ended.stderr.contains("with spaces"), "{}", ended.stderr);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_waits_for_its_engine_can_be_told_to_stop() {
    let engine = Engine::start().await;
    engine.die().await;
    let url = engine.url();
    let mut process = Process::spawn(&["--upstream", &url, "--port", "0"], &[]);
    process.until_logged("does not serve yet");
    process.signal("TERM");
    assert!(process.wait().status.success());
}
