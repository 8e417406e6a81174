//! A scripted HTTP server: it answers the n-th completion with the n-th script.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::TcpListener;

/// A part of an answer: wait, then send.
pub(crate) type Part = (Duration, String);

/// What a server does with one completion; the connection closes afterwards.
pub(crate) type Script = Vec<Part>;

/// A running server; it ends with the runtime.
pub(crate) struct Server {
    /// Where it listens.
    pub(crate) address: SocketAddr,
    /// The bodies of the completions that were asked for.
    pub(crate) bodies: Arc<Mutex<Vec<String>>>,
}

impl Server {
    /// Listens on a free port of the loopback device. Completions after the last script get that one
    /// again.
    pub(crate) async fn start(scripts: Vec<Script>) -> Self {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
        let address = listener.local_addr().unwrap();
        let bodies = Arc::new(Mutex::new(Vec::new()));
        let (scripts, next) = (Arc::new(scripts), Arc::new(AtomicUsize::new(0)));
        let seen = Arc::clone(&bodies);
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let (scripts, next) = (Arc::clone(&scripts), Arc::clone(&next));
                tokio::spawn(answer(stream, scripts, next, Arc::clone(&seen)));
            }
        });
        Self { address, bodies }
    }

    /// Its base address.
    pub(crate) fn url(&self) -> String {
        format!("http://{}", self.address)
    }
}

pub(crate) async fn answer<S: AsyncRead + AsyncWrite + Unpin + Send>(
    mut stream: S,
    scripts: Arc<Vec<Script>>,
    next: Arc<AtomicUsize>,
    bodies: Arc<Mutex<Vec<String>>>,
) {
    let Some((head, body)) = read_request(&mut stream).await else {
        return;
    };
    if head.starts_with("GET /v1/models ") {
        let body = r#"{"object":"list","data":[{"id":"scripted"},{"id":"other"}]}"#;
        let head = "HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length";
        let text = format!("{head}: {}\r\n\r\n{body}", body.len());
        let _ = stream.write_all(text.as_bytes()).await;
        return;
    }
    if head.starts_with("GET /metrics ") {
        let body = "serve_requests_waiting 3\n";
        let head = "HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length";
        let text = format!("{head}: {}\r\n\r\n{body}", body.len());
        let _ = stream.write_all(text.as_bytes()).await;
        return;
    }
    if head.starts_with("GET ") {
        let nothing = b"HTTP/1.1 404 Not Found\r\nConnection: close\r\nContent-Length: 0\r\n\r\n";
        let _ = stream.write_all(nothing).await;
        return;
    }
    assert!(head.starts_with("POST /v1/chat/completions "), "{head}");
    bodies.lock().unwrap().push(body);
    let turn = next.fetch_add(1, Ordering::Relaxed).min(scripts.len() - 1);
    for (wait, text) in &scripts[turn] {
        tokio::time::sleep(*wait).await;
        let sent = stream.write_all(text.as_bytes()).await;
        if sent.is_err() || stream.flush().await.is_err() {
            return;
        }
    }
}

async fn read_request<S: AsyncRead + AsyncWrite + Unpin + Send>(
    stream: &mut S,
) -> Option<(String, String)> {
    let mut bytes = Vec::new();
    loop {
        let mut buffer = [0; 4096];
        let read = stream.read(&mut buffer).await.ok()?;
        if read == 0 {
            return None;
        }
        bytes.extend_from_slice(&buffer[..read]);
        let text = String::from_utf8_lossy(&bytes).into_owned();
        let Some((head, body)) = text.split_once("\r\n\r\n") else {
            continue;
        };
        let length = head.lines().find_map(|line| {
            let (name, value) = line.split_once(':')?;
            let found = name.eq_ignore_ascii_case("content-length");
            found.then(|| value.trim().parse::<usize>().unwrap())
        });
        if body.len() >= length.unwrap_or(0) {
            return Some((head.to_owned(), body.to_owned()));
        }
    }
}

/// The head of a streamed answer. It ends with the connection.
pub(crate) fn head() -> Part {
    let head = "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nConnection: close\r\n\r\n";
    (Duration::ZERO, head.to_owned())
}

/// A chunk with text, some milliseconds after the part before.
pub(crate) fn text(wait_ms: u64, text: &str) -> Part {
    let delta = serde_json::json!({"choices": [{"delta": {"content": text}}]});
    event(wait_ms, &delta.to_string())
}

/// An event with the given data.
pub(crate) fn event(wait_ms: u64, data: &str) -> Part {
    (Duration::from_millis(wait_ms), format!("data: {data}\n\n"))
}

/// The end of an answer: finish reason, usage with `tokens` output tokens, `[DONE]`.
pub(crate) fn end(tokens: u32) -> Part {
    let finish = r#"{"choices":[{"delta":{},"finish_reason":"length"}]}"#;
    let usage = format!(r#"{{"prompt_tokens":5,"completion_tokens":{tokens}}}"#);
    let usage = format!(r#"{{"choices":[],"usage":{usage}}}"#);
    let events = format!("data: {finish}\n\ndata: {usage}\n\ndata: [DONE]\n\n");
    (Duration::ZERO, events)
}

/// A whole answer of another kind.
pub(crate) fn status(line: &str, body: &str) -> Script {
    let text = format!("HTTP/1.1 {line}\r\nConnection: close\r\nContent-Length");
    vec![(
        Duration::ZERO,
        format!("{text}: {}\r\n\r\n{body}", body.len()),
    )]
}
