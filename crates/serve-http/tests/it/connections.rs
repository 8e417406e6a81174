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
use crate::support::{LIMITS, Script, Server, serving};

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
async fn one_connection_too_many_is_told_so_and_whoever_watches_is_answered() {
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
    assert!(answer.starts_with("HTTP/1.1 503"), "{answer}");
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
        "it was called off"
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
