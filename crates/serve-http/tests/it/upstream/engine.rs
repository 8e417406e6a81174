//! An engine that does what a test says: on a socket, so that what goes over the wire is what is tested.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};

use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::{Request, State};
use axum::http::{HeaderMap, HeaderName, StatusCode};
use axum::response::{IntoResponse, Response};
use futures::StreamExt;
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio::sync::mpsc::{UnboundedSender, unbounded_channel};
use tokio::task::JoinHandle;

/// A request as it reached the engine.
#[derive(Clone, Debug)]
pub(crate) struct Seen {
    pub(crate) path: String,
    pub(crate) headers: HeaderMap,
    pub(crate) text: String,
}

impl Seen {
    /// Whether the server asks of itself if the engine serves.
    pub(crate) fn is_probe(&self) -> bool {
        self.json()["max_tokens"] == 1
    }

    pub(crate) fn json(&self) -> Value {
        serde_json::from_str(&self.text).unwrap_or_default()
    }
}

/// What the engine does with a request.
pub(crate) enum Reply {
    Json(u16, Vec<(&'static str, &'static str)>, String),
    /// A stream of what comes here; without [`Piece::End`] it breaks off.
    Stream(tokio::sync::mpsc::UnboundedReceiver<Piece>),
    /// Works at it for ever.
    Never,
    /// As an engine that is well: an answer of one token.
    Usual,
}

pub(crate) enum Piece {
    Data(String),
    End,
}

/// The other end of a stream.
pub(crate) struct Stream(UnboundedSender<Piece>);

impl Stream {
    pub(crate) fn new() -> (Self, Reply) {
        let (sender, receiver) = unbounded_channel();
        (Self(sender), Reply::Stream(receiver))
    }

    pub(crate) fn raw(&self, text: &str) {
        self.0.send(Piece::Data(text.to_owned())).ok().unwrap();
    }

    pub(crate) fn chunk(&self, chunk: &Value) {
        self.raw(&format!("data: {chunk}\n\n"));
    }

    pub(crate) fn token(&self, text: &str) {
        self.chunk(&chat_chunk(text, None));
    }

    /// Ends the body in order, whatever has been said.
    pub(crate) fn close(self) {
        self.0.send(Piece::End).ok().unwrap();
    }

    pub(crate) fn end(self) {
        self.chunk(&chat_chunk("", Some("stop")));
        self.raw("data: [DONE]\n\n");
        self.close();
    }
}

pub(crate) fn chat_chunk(text: &str, finish: Option<&str>) -> Value {
    json!({
        "id": "chatcmpl-engine", "object": "chat.completion.chunk", "created": 1, "model": "engine/model",
        "choices": [{"index": 0, "delta": {"content": text}, "finish_reason": finish}],
    })
}

type Script = Box<dyn FnMut(&Seen) -> Reply + Send>;

#[derive(Clone)]
pub(crate) struct Engine {
    pub(crate) address: SocketAddr,
    shared: Arc<Shared>,
}

struct Shared {
    script: Mutex<Script>,
    seen: Mutex<Vec<Seen>>,
    /// Requests that it works at.
    working: AtomicU32,
    task: Mutex<Option<JoinHandle<()>>>,
}

/// Work at one request, for as long as somebody waits for it.
struct Working(Arc<Shared>);

impl Drop for Working {
    fn drop(&mut self) {
        self.0.working.fetch_sub(1, Ordering::SeqCst);
    }
}

impl Engine {
    /// One that is well until a test says otherwise.
    pub(crate) async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let engine = Self {
            address: listener.local_addr().unwrap(),
            shared: Arc::new(Shared {
                script: Mutex::new(Box::new(|_| Reply::Usual)),
                seen: Mutex::default(),
                working: AtomicU32::new(0),
                task: Mutex::default(),
            }),
        };
        engine.listen(listener);
        engine
    }

    fn listen(&self, listener: TcpListener) {
        let app = Router::new().fallback(answer);
        let app = app.with_state(Arc::clone(&self.shared));
        let task = tokio::spawn(async move {
            // Connections live in tasks of their own; what ends this one ends them too.
            let mut connections = tokio::task::JoinSet::new();
            loop {
                let Ok((socket, _)) = listener.accept().await else {
                    return;
                };
                let app = app.clone();
                connections.spawn(async move {
                    let service = hyper_util::service::TowerToHyperService::new(app);
                    let socket = hyper_util::rt::TokioIo::new(socket);
                    let http = hyper::server::conn::http1::Builder::new();
                    let _ = http.serve_connection(socket, service).await;
                });
            }
        });
        *self.shared.task.lock().unwrap() = Some(task);
    }

    /// Dies with all its connections; its port refuses others.
    pub(crate) async fn die(&self) {
        let task = self.shared.task.lock().unwrap().take().unwrap();
        task.abort();
        let _ = task.await;
    }

    /// Comes back where it was.
    pub(crate) async fn come_back(&self) {
        let socket = tokio::net::TcpSocket::new_v4().unwrap();
        socket.set_reuseaddr(true).unwrap();
        socket.bind(self.address).unwrap();
        self.listen(socket.listen(64).unwrap());
    }

    /// From now on `script` decides.
    pub(crate) fn does(&self, script: impl FnMut(&Seen) -> Reply + Send + 'static) {
        *self.shared.script.lock().unwrap() = Box::new(script);
    }

    /// The next request of a client gets this, all others the usual.
    pub(crate) fn next(&self, reply: Reply) {
        let mut next = Some(reply);
        self.does(move |seen| match seen.is_probe() {
            true => Reply::Usual,
            false => next.take().unwrap_or(Reply::Usual),
        });
    }

    /// The requests for text that have reached it since this was last asked.
    pub(crate) fn seen(&self) -> Vec<Seen> {
        std::mem::take(&mut self.shared.seen.lock().unwrap())
    }

    /// Requests that it works at.
    pub(crate) fn working(&self) -> u32 {
        self.shared.working.load(Ordering::SeqCst)
    }

    pub(crate) fn url(&self) -> String {
        format!("http://{}", self.address)
    }
}

async fn answer(State(shared): State<Arc<Shared>>, request: Request) -> Response {
    let (head, body) = request.into_parts();
    let body = axum::body::to_bytes(body, usize::MAX)
        .await
        .unwrap_or_default();
    let seen = Seen {
        path: head.uri.path().to_owned(),
        headers: head.headers,
        text: String::from_utf8(body.to_vec()).unwrap(),
    };
    if seen.path == "/v1/models" {
        let model = json!({"id": "engine/model", "object": "model", "max_model_len": 4_096});
        return axum::Json(json!({"object": "list", "data": [model]})).into_response();
    }
    if seen.path == "/health" {
        return StatusCode::OK.into_response();
    }
    shared.working.fetch_add(1, Ordering::SeqCst);
    let working = Working(Arc::clone(&shared));
    let reply = (shared.script.lock().unwrap())(&seen);
    let asks_for_a_stream = seen.json()["stream"] == true;
    shared.seen.lock().unwrap().push(seen);
    match reply {
        Reply::Json(status, headers, body) => {
            let mut response = (StatusCode::from_u16(status).unwrap(), body).into_response();
            for (name, value) in [("content-type", "application/json")].into_iter().chain(headers) {
                let name = HeaderName::from_static(name);
                response.headers_mut().insert(name, value.parse().unwrap());
            }
            response
        }
        Reply::Never => {
            std::future::pending::<()>().await;
            drop(working);
            StatusCode::OK.into_response()
        }
        Reply::Usual if asks_for_a_stream => {
            let (stream, reply) = Stream::new();
            stream.token("hello");
            stream.end();
            streamed(reply, working)
        }
        Reply::Usual => axum::Json(json!({
            "id": "chatcmpl-whole", "object": "chat.completion", "created": 1, "model": "engine/model",
            "choices": [{"index": 0, "message": {"role": "assistant", "content": "hello"}, "finish_reason": "stop"}],
            "usage": {"prompt_tokens": 7, "completion_tokens": 3, "total_tokens": 10,
                      "prompt_tokens_details": {"cached_tokens": 2}},
        }))
        .into_response(),
        stream @ Reply::Stream(_) => streamed(stream, working),
    }
}

fn streamed(reply: Reply, working: Working) -> Response {
    let Reply::Stream(pieces) = reply else {
        panic!("a stream");
    };
    let pieces = futures::stream::unfold((pieces, working), |(mut pieces, working)| async {
        let piece = match pieces.recv().await {
            Some(Piece::Data(text)) => Ok(Bytes::from(text)),
            Some(Piece::End) => return None,
            None => Err(std::io::Error::other("the engine has crashed")),
        };
        Some((piece, (pieces, working)))
    });
    let mut response = Body::from_stream(pieces.fuse()).into_response();
    let event_stream = "text/event-stream".parse().unwrap();
    response.headers_mut().insert("content-type", event_stream);
    response
}
