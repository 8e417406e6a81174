//! A log that cannot be written: nothing happens but that its lines are lost and counted.

use std::fs::File;
use std::net::TcpListener;
use std::process::Stdio;

use serde_json::json;

use crate::process::Process;
use crate::support::{chunks, streamed_text, tokens_in};

const FAST: &[&str] = &["--backend", "mock", "--mock-speed", "inf", "--log", "debug"];

/// A file on a full disk.
fn full() -> Stdio {
    File::options()
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
    let text = reqwest::get(process.url("/metrics"))
        .await
        .unwrap()
        .text()
        .await
        .unwrap();
    let line = text
        .lines()
        .find(|line| line.starts_with("serve_log_lines_lost_total"));
    line.unwrap().rsplit(' ').next().unwrap().parse().unwrap()
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
