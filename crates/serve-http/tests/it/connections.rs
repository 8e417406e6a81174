//! What clients cost that send slowly, read slowly, do nothing, or break off: over real sockets.

use std::net::SocketAddr;
use std::time::Duration;

use serde_json::json;
use serve_http::{ConnectionSettings, EdgeSettings, run};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

use crate::metrics::Scrape;
use crate::support::{LIMITS, Script, Server, Word, serving};

/// A server on a port of its own.
struct Port {
    address: SocketAddr,
    server: Server,
    stop: oneshot::Sender<()>,
    running: JoinHandle<std::io::Result<()>>,
}

impl Port {
    async fn open(script: Script, connections: ConnectionSettings) -> Self {
        let settings = EdgeSettings {
            connections,
            drain_timeout: Duration::ZERO,
            ..EdgeSettings::default()
        };
        let server = serving(script, settings).await;
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (stop, stopped) = oneshot::channel::<()>();
        let service = std::sync::Arc::clone(&server.service);
        let running = tokio::spawn(run(service, listener, async {
            let _ = stopped.await;
        }));
        Self {
            address,
            server,
            stop,
            running,
        }
    }

    async fn connect(&self) -> TcpStream {
        TcpStream::connect(self.address).await.unwrap()
    }

    async fn connections(&self) -> f64 {
        Scrape::of(&self.server).await.get("serve_connections")
    }

    /// Waits until so many connections are open.
    async fn until_open(&self, connections: f64) {
        while self.connections().await != connections {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }

    async fn stop(self) {
        drop(self.stop);
        self.running.await.unwrap().unwrap();
    }
}

fn ask(body: &str) -> String {
    format!(
        "POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n\
         content-length: {}\r\n\r\n{body}",
        body.len()
    )
}

/// What comes up to the end of the connection.
async fn rest(mut socket: TcpStream) -> String {
    let mut bytes = Vec::new();
    // A connection that is reset has ended as well.
    let _ = socket.read_to_end(&mut bytes).await;
    String::from_utf8_lossy(&bytes).into_owned()
}

#[tokio::test]
async fn one_connection_too_many_is_refused_and_health_checks_are_answered() {
    let connections = ConnectionSettings {
        connections_max: 2,
        ..ConnectionSettings::default()
    };
    let port = Port::open(Script::saying("a"), connections).await;
    let held = [port.connect().await, port.connect().await];
    port.until_open(2.0).await;

    let mut third = port.connect().await;
    let request = ask(r#"{"prompt": "x"}"#);
    third.write_all(request.as_bytes()).await.unwrap();
    let answer = rest(third).await;
    assert!(answer.starts_with("HTTP/1.1 429"), "{answer}");
    assert!(
        answer.contains("\"code\":\"too_many_connections\""),
        "{answer}"
    );
    assert!(answer.contains("connection: close"), "{answer}");
    assert!(answer.contains("x-request-id: "), "{answer}");
    for path in ["/health/live", "/health/ready", "/metrics"] {
        let mut watcher = port.connect().await;
        let request = format!("GET {path} HTTP/1.1\r\nhost: x\r\n\r\n");
        watcher.write_all(request.as_bytes()).await.unwrap();
        let answer = rest(watcher).await;
        assert!(answer.starts_with("HTTP/1.1 200"), "{path}: {answer}");
    }

    drop(held);
    port.until_open(0.0).await;
    let mut next = port.connect().await;
    next.write_all(request.as_bytes()).await.unwrap();
    let mut begin = [0; 12];
    next.read_exact(&mut begin).await.unwrap();
    assert_eq!(&begin, b"HTTP/1.1 200");
    port.stop().await;
}

#[tokio::test]
async fn beyond_all_bounds_a_connection_is_closed_and_counted() {
    let connections = ConnectionSettings {
        connections_max: 1,
        ..ConnectionSettings::default()
    };
    let port = Port::open(Script::saying("a"), connections).await;
    let mut held = Vec::new();
    for _ in 0..80 {
        held.push(port.connect().await);
    }
    let dropped = async || {
        Scrape::of(&port.server)
            .await
            .get("serve_connections_dropped_total")
    };
    while dropped().await < 15.0 {
        tokio::task::yield_now().await;
    }
    assert_eq!(port.connections().await, 65.0);
    assert_eq!(rest(held.pop().unwrap()).await, "");
    drop(held);
    port.until_open(0.0).await;
    port.stop().await;
}

#[tokio::test]
async fn idle_connections_are_served_when_they_ask_and_closed_when_they_do_not() {
    let connections = ConnectionSettings {
        keep_alive_timeout: Some(Duration::from_millis(300)),
        ..ConnectionSettings::default()
    };
    let port = Port::open(Script::saying("a"), connections).await;
    let request = ask(r#"{"prompt": "x"}"#);
    let mut held = Vec::new();
    for _ in 0..200 {
        let mut socket = port.connect().await;
        socket.write_all(request.as_bytes()).await.unwrap();
        held.push(socket);
    }
    for socket in held {
        let answer = rest(socket).await;
        assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    }
    port.until_open(0.0).await;
    port.stop().await;
}

#[tokio::test]
async fn a_body_that_does_not_come_is_given_up_and_the_client_told() {
    let connections = ConnectionSettings {
        body_timeout: Some(Duration::from_millis(50)),
        ..ConnectionSettings::default()
    };
    let port = Port::open(Script::saying("a"), connections).await;
    let request = ask(r#"{"prompt": "x"}"#);
    let mut socket = port.connect().await;
    socket
        .write_all(&request.as_bytes()[..request.len() - 3])
        .await
        .unwrap();
    let answer = rest(socket).await;
    assert!(answer.starts_with("HTTP/1.1 408"), "{answer}");
    assert!(answer.contains("\"code\":\"body_timeout\""), "{answer}");
    port.until_open(0.0).await;
    port.stop().await;
}

/// The whole way: the socket fills, the stream is not polled, its buffer fills, the request is called
/// off, and then the connection is closed.
#[tokio::test]
async fn a_client_that_never_reads_holds_no_kv_and_in_the_end_no_connection() {
    let limits = serve_core::Limits {
        context_max: 60_000,
        blocks: 4_000,
        ..LIMITS
    };
    let script = Script::saying(&"a".repeat(59_000)).within(limits);
    let connections = ConnectionSettings {
        write_timeout: Some(Duration::from_millis(300)),
        ..ConnectionSettings::default()
    };
    let port = Port::open(script, connections).await;
    let body = json!({"prompt": "x", "max_tokens": 59_000, "stream": true}).to_string();
    let mut stuck = port.connect().await;
    stuck.write_all(ask(&body).as_bytes()).await.unwrap();
    let worker = port.server.service.serving().unwrap().worker();
    while worker.live() == 0 {
        tokio::task::yield_now().await;
    }
    port.server.settled().await;
    let scrape = Scrape::of(&port.server).await;
    assert!(
        scrape.get("serve_tokens_total{kind=\"output\"}") < 59_000.0,
        "it was cancelled"
    );
    port.until_open(0.0).await;
    let cancelled = "serve_requests_ended_total{end=\"cancelled\"}";
    assert_eq!(Scrape::of(&port.server).await.get(cancelled), 1.0);
    drop(stuck);
    port.stop().await;
}

#[tokio::test]
async fn a_connection_that_is_reset_takes_its_request_with_it() {
    let limits = serve_core::Limits {
        context_max: 60_000,
        blocks: 4_000,
        ..LIMITS
    };
    let script = Script::saying(&"a".repeat(59_000)).within(limits);
    let port = Port::open(script, ConnectionSettings::default()).await;
    for stream in [true, false] {
        let body = json!({"prompt": "x", "max_tokens": 59_000, "stream": stream}).to_string();
        let mut socket = port.connect().await;
        socket.write_all(ask(&body).as_bytes()).await.unwrap();
        let worker = port.server.service.serving().unwrap().worker();
        while worker.live() == 0 {
            tokio::task::yield_now().await;
        }
        // Closing a socket with unread data, or with this, resets it.
        socket.set_zero_linger().unwrap();
        drop(socket);
        port.server.settled().await;
        port.until_open(0.0).await;
    }
    let cancelled = "serve_requests_ended_total{end=\"cancelled\"}";
    assert_eq!(Scrape::of(&port.server).await.get(cancelled), 2.0);
    port.stop().await;
}

/// An early answer, whose client sends on before it reads.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_early_answer_reaches_a_client_that_still_sends() {
    const BYTES: usize = 20 << 20;
    let port = Port::open(Script::saying("x"), ConnectionSettings::default()).await;
    let heads = [
        (
            "POST /v1/completions",
            "content-type: application/json",
            "413",
        ),
        ("POST /v1/nothing", "content-type: application/json", "404"),
        ("POST /v1/completions", "content-type: text/plain", "415"),
        ("PUT /v1/completions", "content-type: text/plain", "405"),
    ];
    for (target, head, status) in heads {
        for chunked in [false, true] {
            let mut socket = port.connect().await;
            let length = match chunked {
                true => "transfer-encoding: chunked".to_owned(),
                false => format!("content-length: {BYTES}"),
            };
            let head = format!("{target} HTTP/1.1\r\nhost: x\r\n{head}\r\n{length}\r\n\r\n");
            socket.write_all(head.as_bytes()).await.unwrap();
            let part = vec![b'x'; 1 << 20];
            for _ in 0..BYTES / part.len() {
                if chunked {
                    socket
                        .write_all(format!("{:x}\r\n", part.len()).as_bytes())
                        .await
                        .unwrap();
                }
                socket.write_all(&part).await.unwrap();
                if chunked {
                    socket.write_all(b"\r\n").await.unwrap();
                }
            }
            if chunked {
                socket.write_all(b"0\r\n\r\n").await.unwrap();
            }
            let mut seen = [0; 12];
            socket.read_exact(&mut seen).await.unwrap();
            let seen = String::from_utf8_lossy(&seen).into_owned();
            assert_eq!(seen, format!("HTTP/1.1 {status}"), "{target} {chunked}");
        }
    }
    port.stop().await;
}

/// hyper stops looking while something unread lies in between.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_that_sent_a_byte_too_many_and_left_is_missed() {
    for (stream, extra) in [
        (false, "\r\n"),
        (true, "\r\n"),
        (false, "GET /health HTTP/1.1\r\nhost: x\r\n\r\n"),
    ] {
        let (script, words) = Script::saying("a long answer").gated();
        // The first request of the server's own.
        words.send(Word::Run).unwrap();
        words.send(Word::Run).unwrap();
        let port = Port::open(script, ConnectionSettings::default()).await;
        let mut socket = port.connect().await;
        let body = json!({"prompt": "x", "max_tokens": 5, "stream": stream}).to_string();
        socket.write_all(ask(&body).as_bytes()).await.unwrap();
        socket.write_all(extra.as_bytes()).await.unwrap();
        while Scrape::of(&port.server)
            .await
            .get("serve_requests_in_flight")
            == 0.0
        {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        drop(socket);
        port.until_open(0.0).await;
        while Scrape::of(&port.server)
            .await
            .get("serve_requests_in_flight")
            != 0.0
        {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        drop(words);
        port.stop().await;
    }
}

#[tokio::test]
async fn what_is_no_proper_request_is_answered_by_the_error_object() {
    let port = Port::open(Script::saying("x"), ConnectionSettings::default()).await;
    let table = [
        ("GET /v1/models HTTP/1.1\r\n", "400", "invalid_header"),
        (
            "GET /v1/models HTTP/1.1\r\nhost: a\r\nhost: b\r\n",
            "400",
            "invalid_header",
        ),
        (
            "GET /v1/models/%ff HTTP/1.1\r\nhost: a\r\n",
            "400",
            "invalid_path",
        ),
        (
            "POST /v1/requests/%ff/cancel HTTP/1.1\r\nhost: a\r\n",
            "400",
            "invalid_path",
        ),
        (
            "GET /v1/models HTTP/1.1\r\nhost: a\r\nexpect: 200-maybe\r\n",
            "417",
            "expectation_failed",
        ),
        (
            "POST /v1/completions HTTP/1.1\r\nhost: a\r\ncontent-encoding: gzip\r\ncontent-length: 0\r\n",
            "415",
            "unsupported_content_encoding",
        ),
        (
            "POST /v1/completions HTTP/1.1\r\nhost: a\r\ntransfer-encoding: gzip, chunked\r\n",
            "501",
            "unsupported_transfer_encoding",
        ),
    ];
    for (head, status, code) in table {
        let mut socket = port.connect().await;
        // A path is no matter of where a request ends.
        let (close, next) = match code {
            "invalid_path" => ("connection: close\r\n", ""),
            _ => ("", "0\r\n\r\nGET /hidden HTTP/1.1\r\nhost: a\r\n\r\n"),
        };
        let text = format!("{head}{close}\r\n{next}");
        socket.write_all(text.as_bytes()).await.unwrap();
        let answer = rest(socket).await;
        let answers = answer.matches("HTTP/1.1 ").count();
        assert_eq!(answers, 1, "what follows is not run: {head}: {answer}");
        assert!(
            answer.starts_with(&format!("HTTP/1.1 {status}")),
            "{head}: {answer}"
        );
        assert!(answer.contains("\r\nx-request-id: "), "{head}: {answer}");
        let (_, body) = answer.split_once("\r\n\r\n").unwrap();
        let body: serde_json::Value = serde_json::from_str(body).unwrap();
        assert_eq!(body["error"]["code"], code, "{head}");
    }
    port.stop().await;
}
