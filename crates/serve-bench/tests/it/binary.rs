//! The `serve-bench` binary as a person runs it.

use std::process::{Command, Output};

use serve_bench::record;

use crate::server::{Server, end, head, status, text};

async fn bench(args: Vec<String>) -> Output {
    let run = move || {
        Command::new(env!("CARGO_BIN_EXE_serve-bench"))
            .args(args)
            .output()
    };
    tokio::task::spawn_blocking(run).await.unwrap().unwrap()
}

fn words(line: &str) -> Vec<String> {
    line.split_whitespace().map(str::to_owned).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_run_prints_a_table_that_its_rows_give_again() {
    let ok = vec![head(), text(5, "a"), text(5, "b"), end(2)];
    let refused = status("503 Busy", r#"{"error":{"message":"the queue is full"}}"#);
    let server = Server::start(vec![ok.clone(), refused, ok]).await;
    let file = std::env::temp_dir().join(format!("serve-bench-{}.jsonl", std::process::id()));
    let out = file.display().to_string();
    let line = format!(
        "run --url {} --clients 2 --requests 8 --max-tokens 2 --out {out}",
        server.url()
    );
    let output = bench(words(&line)).await;
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success(), "{text}");
    assert!(text.contains("with model scripted"), "{text}");
    let counts =
        "8 scheduled = 8 sent + 0 not sent; sent = 7 ok + 1 refused + 0 failed + 0 cancelled";
    assert!(text.contains(counts), "{text}");
    assert!(text.contains("the queue is full"), "{text}");

    let rows = record::read(&file).unwrap();
    assert_eq!(rows.len(), 8);
    let again = bench(words(&format!("analyse {out}"))).await;
    let again = String::from_utf8(again.stdout).unwrap();
    assert!(text.ends_with(&again), "{text}\n---\n{again}");
    std::fs::remove_file(file).unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn bad_input_is_named() {
    for (line, code, part) in [
        ("run", 2, "--rate"),
        ("run --rate 1 --clients 1", 2, "cannot be used with"),
        ("run --clients 0", 1, "at least 1 client"),
        ("run --rate=-1", 1, "positive number"),
        ("run --clients 1 --requests 0", 1, "at least 1 request"),
        ("run --clients 1 --url ftp://x", 1, "http://HOST:PORT"),
        (
            "run --clients 1 --url http://127.0.0.1:9",
            1,
            "is the server up?",
        ),
        (
            "run --clients 1 --prompts /nowhere/at-all",
            1,
            "/nowhere/at-all",
        ),
        ("analyse /nowhere/at-all", 1, "/nowhere/at-all"),
    ] {
        let output = bench(words(line)).await;
        let error = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(code), "{line}: {error}");
        assert!(error.contains(part), "{line}: {error}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_run_without_one_good_answer_fails() {
    let server = Server::start(vec![status("500 Bad", "{}")]).await;
    let line = format!("run --url {} --rate 100 --requests 3", server.url());
    let output = bench(words(&line)).await;
    let text = String::from_utf8(output.stdout).unwrap();
    assert_eq!(output.status.code(), Some(1), "{text}");
    assert!(text.contains("0 ok + 0 refused + 3 failed"), "{text}");
    assert!(text.contains("first that went wrong: request"), "{text}");
}
