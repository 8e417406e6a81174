//! The real binary with a real client: the banner, a disconnect, signals, exit codes.

use std::io::{Read, Write};
use std::net::TcpListener;
use std::process::Command;

use futures::StreamExt;
use serde_json::{Value, json};

use crate::process::Process;
use crate::support::{chunks, streamed_text, tokens_in};

const FAST: &[&str] = &["--backend", "mock", "--mock-speed", "inf", "--log", "info"];
/// A step takes 160 ms, so a request of many tokens is running when the test wants it to be.
const SLOW: &[&str] = &["--backend", "mock", "--mock-speed", "0.1", "--log", "info"];

async fn post(process: &Process, path: &str, body: Value) -> reqwest::Response {
    let request = reqwest::Client::new().post(process.url(path)).json(&body);
    request.send().await.unwrap()
}

fn stream_of(tokens: u32) -> Value {
    json!({"prompt": "x", "max_tokens": tokens, "stream": true})
}

#[tokio::test]
async fn the_printed_command_works_as_pasted() {
    let process = Process::start(FAST);
    let line = process.banner.lines().find(|line| line.contains("try it:"));
    let command = line.unwrap().trim().trim_start_matches("try it:").trim();
    let output = Command::new("sh").args(["-c", command]).output();
    let output = output.expect("a shell to paste into");
    assert!(output.status.success(), "{command}: {output:?}");
    let body = String::from_utf8(output.stdout).unwrap();
    assert_eq!(tokens_in(&streamed_text(&chunks(&body))), 64);
}

// On threads of its own the client closes its connection while the test waits for the server.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_that_disconnects_is_logged_as_cancelled() {
    for stream in [true, false] {
        let mut process = Process::start(SLOW);
        let body = json!({"prompt": "x", "max_tokens": 500, "stream": stream});
        let client = reqwest::Client::new();
        let request = client
            .post(process.url("/v1/completions"))
            .json(&body)
            .send();
        if stream {
            let mut bytes = request.await.unwrap().bytes_stream();
            assert!(bytes.next().await.unwrap().is_ok());
        } else {
            let ended = tokio::time::timeout(std::time::Duration::from_millis(500), request).await;
            assert!(ended.is_err(), "500 tokens take longer than that");
        }
        drop(client);
        // Only a server in which nothing runs drains before 500 slow tokens are made.
        process.signal("TERM");
        let ended = process.wait();
        assert_eq!(ended.status.code(), Some(0), "{}", ended.stderr);
        assert!(
            ended.stderr.contains("outcome=\"cancelled\""),
            "{}",
            ended.stderr
        );
        assert!(!ended.stderr.contains("drain timeout"), "{}", ended.stderr);
    }
}

#[tokio::test]
async fn sigterm_lets_a_stream_finish() {
    let mut process = Process::start(SLOW);
    let response = post(&process, "/v1/completions", stream_of(8)).await;
    process.signal("TERM");
    let body = response.text().await.unwrap();
    assert_eq!(tokens_in(&streamed_text(&chunks(&body))), 8);
    let ended = process.wait();
    assert_eq!(ended.status.code(), Some(0), "{}", ended.stderr);
    assert!(ended.stderr.contains("SIGTERM"), "{}", ended.stderr);
}

/// As soon as the port is open a signal is handled: the process ends by itself and is not ended.
#[test]
fn signals_are_handled_before_the_port_opens() {
    for _ in 0..5 {
        let free = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = free.local_addr().unwrap();
        drop(free);
        let port = address.port().to_string();
        let mut process = Process::spawn(&[FAST, &["--port", &port]].concat(), &[]);
        while std::net::TcpStream::connect(address).is_err() {
            std::thread::yield_now();
        }
        process.signal("TERM");
        let ended = process.wait();
        assert_eq!(ended.status.code(), Some(0), "{}", ended.stderr);
    }
}

#[tokio::test]
async fn what_outlasts_the_drain_timeout_is_told_so() {
    let mut process = Process::start(&[SLOW, &["--drain-timeout", "0"]].concat());
    let response = post(&process, "/v1/completions", stream_of(1_000)).await;
    process.signal("INT");
    let body = response.text().await.unwrap();
    let last = body.trim_end().rsplit("\n\n").next().unwrap();
    let last: Value = serde_json::from_str(last.strip_prefix("data: ").unwrap()).unwrap();
    assert_eq!(last["error"]["code"], "shutting_down", "{body}");
    assert_eq!(process.wait().status.code(), Some(0));
}

#[tokio::test]
async fn a_second_signal_ends_at_once() {
    let mut process = Process::start(SLOW);
    let response = post(&process, "/v1/completions", stream_of(1_000)).await;
    process.signal("TERM");
    // Only once the first has been handled is another one the second.
    loop {
        let ready = reqwest::get(process.url("/health/ready")).await.unwrap();
        if ready.text().await.unwrap().contains("draining") {
            break;
        }
        tokio::task::yield_now().await;
    }
    process.signal("TERM");
    assert_eq!(process.wait().status.code(), Some(130));
    assert!(response.text().await.is_err(), "the connection broke");
}

#[tokio::test]
async fn many_clients_at_once_over_real_sockets() {
    let process = Process::start(FAST);
    let clients = (0..64).map(|_| post(&process, "/v1/completions", stream_of(100)));
    for response in futures::future::join_all(clients).await {
        let body = response.text().await.unwrap();
        assert_eq!(tokens_in(&streamed_text(&chunks(&body))), 100);
    }
}

#[test]
fn a_port_in_use_is_named() {
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = taken.local_addr().unwrap().port().to_string();
    let ended = Process::run(&["--backend", "mock", "--port", &port]);
    assert_eq!(ended.status.code(), Some(4), "{}", ended.stderr);
    let says = format!("127.0.0.1:{port}: the address is in use");
    assert!(ended.stderr.contains(&says), "{}", ended.stderr);
}

#[test]
fn wrong_settings_are_usage_errors_that_name_them() {
    let table: &[(&[&str], &str)] = &[
        (&["--port", "99999"], "--port"),
        (&["--max-batch", "0"], "--max-batch"),
        (&["--context", "-1"], "-1"),
        (&["--backend", "tpu"], "mock"),
        (&["--frobnicate"], "--frobnicate"),
        (&["--drain-timeout", "-3"], "-3"),
        (
            &["--drain-timeout", "x"],
            "a number of seconds from 0 to 86400",
        ),
        (
            &["--backend", "mock", "--mock-speed", "0"],
            "a number above 0, or inf",
        ),
        (
            &["--backend", "mock", "--model", "x"],
            "--model: --backend mock loads no model",
        ),
        (
            &["--backend", "mock", "--kv-tokens", "3"],
            "--kv-tokens: it must be at least 16",
        ),
        (&["--backend", "mock", "--log", "loud=very"], "--log"),
    ];
    for (args, says) in table {
        let ended = Process::run(&[&["--port", "0"], *args].concat());
        assert_eq!(ended.status.code(), Some(2), "{args:?}: {}", ended.stderr);
        assert!(ended.stderr.contains(says), "{args:?}: {}", ended.stderr);
    }
}

#[tokio::test]
async fn a_setting_can_come_from_the_environment_and_a_flag_wins() {
    let variables = [
        ("SERVE_BACKEND", "mock"),
        ("SERVE_MAX_BATCH", "3"),
        ("SERVE_QUEUE_CAP", "7"),
    ];
    let process = Process::start_with(&["--max-batch", "2"], &variables);
    assert!(
        process.banner.contains("2 requests a step"),
        "{}",
        process.banner
    );
    assert!(process.banner.contains("queue_cap 7"), "{}", process.banner);
}

#[test]
fn the_help_documents_exit_codes_and_variables() {
    let output = Command::new(env!("CARGO_BIN_EXE_serve"))
        .arg("--help")
        .output()
        .unwrap();
    assert!(output.status.success());
    let help = String::from_utf8(output.stdout).unwrap();
    for text in ["Exit codes:", "130", "SERVE_MAX_BATCH", "SERVE_PORT"] {
        assert!(help.contains(text), "{help}");
    }
}

/// A page whose name leads to this machine now is known by the name that it calls the server.
#[tokio::test]
async fn without_keys_a_loopback_address_goes_by_local_names_alone() {
    let status = async |process: &Process, host: &str| {
        let client = reqwest::Client::new();
        let request = client.get(process.url("/v1/models")).header("host", host);
        request.send().await.unwrap().status().as_u16()
    };
    let process = Process::start(FAST);
    assert_eq!(status(&process, "localhost:1").await, 200);
    assert_eq!(status(&process, "evil.example").await, 403);
    let process = Process::start(&[FAST, &["--allowed-hosts", "my.host"]].concat());
    assert_eq!(status(&process, "my.host").await, 200);
    assert_eq!(status(&process, "evil.example").await, 403);
}

#[tokio::test]
async fn health_can_have_an_address_of_its_own() {
    let process = Process::start(&[FAST, &["--health-address", "127.0.0.1:0"]].concat());
    let address = process.health_address();
    for (path, status) in [
        ("/health", 200),
        ("/health/live", 200),
        ("/metrics", 200),
        ("/v1/models", 404),
    ] {
        let answer = reqwest::get(format!("http://{address}{path}"))
            .await
            .unwrap();
        assert_eq!(answer.status(), status, "{path}");
    }
    drop(process);
}

#[tokio::test]
async fn a_signal_makes_it_a_lame_duck() {
    let mut process = Process::start(FAST);
    process.signal("USR1");
    process.until_logged("about to go");
    let ready = reqwest::get(process.url("/health/ready")).await.unwrap();
    assert_eq!(ready.status(), 503);
    let answer = post(&process, "/v1/completions", json!({"prompt": "x"})).await;
    assert_eq!(answer.status(), 200);
    process.signal("TERM");
    assert_eq!(process.wait().status.code(), Some(0));
}

/// A client that holds connections to it holds them for a short while, and none of the others.
#[tokio::test]
async fn the_address_for_health_cannot_be_filled_up() {
    let process = Process::start(&[FAST, &["--health-address", "127.0.0.1:0"]].concat());
    let health = process.health_address();
    let connect = |_| std::net::TcpStream::connect(health).unwrap();
    let idle: Vec<_> = (0..200).map(connect).collect();
    let main = reqwest::get(process.url("/health")).await.unwrap();
    assert_eq!(main.status(), 200);
    let answer = || -> std::io::Result<String> {
        let mut socket = std::net::TcpStream::connect(health)?;
        socket
            .write_all(b"GET /health HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n")?;
        let mut answer = String::new();
        socket.read_to_string(&mut answer)?;
        Ok(answer)
    };
    while !matches!(answer(), Ok(answer) if answer.starts_with("HTTP/1.1 200")) {}
    drop(idle);
}

#[tokio::test]
async fn web_pages_of_listed_origins_may_use_the_api() {
    let process = Process::start(&[FAST, &["--cors-origins", "https://a.example"]].concat());
    let client = reqwest::Client::new();
    for (origin, allowed) in [("https://a.example", true), ("https://b.example", false)] {
        let preflight = client
            .request(
                reqwest::Method::OPTIONS,
                process.url("/v1/chat/completions"),
            )
            .header("origin", origin)
            .header("access-control-request-method", "POST")
            .header(
                "access-control-request-headers",
                "authorization,content-type",
            );
        let get = client
            .get(process.url("/v1/models"))
            .header("origin", origin);
        for request in [preflight, get] {
            let answer = request.send().await.unwrap();
            let seen = answer.headers().get("access-control-allow-origin");
            assert_eq!(
                seen.is_some_and(|seen| seen == origin),
                allowed,
                "{answer:?}"
            );
            assert!(answer.headers().contains_key("x-request-id"), "{answer:?}");
        }
    }
    let (mut process, mut lines) = (process, 0);
    process.signal("TERM");
    for line in process.wait().stderr.lines() {
        lines += u32::from(line.contains("outcome="));
    }
    assert_eq!(lines, 4, "a preflight has a line, too");
}

/// The server is stopped, so each of them waits to be accepted: a handshake that finds no place is tried again
/// after a second.
#[test]
fn a_burst_of_connections_finds_places_to_wait_in() {
    let mut process = Process::start(FAST);
    let address: std::net::SocketAddr = process.address()["http://".len()..].parse().unwrap();
    process.signal("STOP");
    let patience = std::time::Duration::from_millis(900);
    let connected: Vec<_> = (0..600)
        .map_while(|_| std::net::TcpStream::connect_timeout(&address, patience).ok())
        .collect();
    process.signal("CONT");
    assert_eq!(connected.len(), 600);
    drop(connected);
    process.signal("TERM");
    assert_eq!(process.wait().status.code(), Some(0));
}

/// Few files may be open: the number of connections is lowered, and health checks are answered.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn connections_fit_below_the_limit_on_open_files() {
    let mut process = Process::start_with_files(64, FAST);
    let address = process.address().trim_start_matches("http://").to_owned();
    let idle: Vec<_> = (0..100)
        .map(|_| std::net::TcpStream::connect(&address).unwrap())
        .collect();
    let client = reqwest::Client::builder();
    let client = client
        .timeout(std::time::Duration::from_secs(5))
        .build()
        .unwrap();
    let asked = std::time::Instant::now();
    let mut answered = 0;
    while answered == 0 {
        // The one in the narrow way in may be out of luck while the idle ones are in it.
        let answer = client.get(process.url("/health")).send().await;
        answered += u32::from(answer.is_ok_and(|answer| answer.status() == 200));
        assert!(
            asked.elapsed().as_secs() < 60,
            "no health check was answered"
        );
    }
    let metrics = client.get(process.url("/metrics")).send().await;
    if let Ok(metrics) = metrics {
        let text = metrics.text().await.unwrap();
        assert!(
            !text.contains("serve_connections_dropped_total 0\n"),
            "{text}"
        );
    }
    drop(idle);
    process.signal("TERM");
    let ended = process.wait();
    assert_eq!(ended.status.code(), Some(0));
    assert!(
        ended.stderr.contains("32 connections at most and not 8192"),
        "{}",
        ended.stderr
    );
}
