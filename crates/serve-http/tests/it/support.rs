//! A server without a socket, and a backend that says what a test wants it to say.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};

use axum::Router;
use axum::body::Body;
use axum::http::{HeaderMap, Request, StatusCode};
use serde_json::{Value, json};
use serve_core::{
    Backend, BackendError, Limits, RequestId, Sampled, Span, StepOutcome, StepPlan, TokenId,
    TokenLogprob,
};
use serve_http::text::{MockText, Text};
use serve_http::{EdgeSettings, Loaded, Service, router};
use serve_sched::Policies;
use tower::ServiceExt;

pub(crate) const LIMITS: Limits = Limits {
    sequences_max: 4,
    step_tokens_max: 64,
    context_max: 128,
    block_size: 16,
    blocks: 33,
};

/// Room for answers that are far from over when a test has seen enough of them.
pub(crate) const ROOMY: Limits = Limits {
    context_max: 10_000,
    blocks: 4_000,
    ..LIMITS
};

/// Words that may lie before a gated backend.
const WORDS_MAX: usize = 8;

/// A backend that gives every request the same answer, then end tokens, and fails where it is told
/// to.
pub(crate) struct Script {
    limits: Limits,
    answer: Vec<TokenId>,
    /// Of each request, how long its prompt is and how many alternatives it asks for.
    requests: HashMap<RequestId, (u32, Option<u8>)>,
    /// Each step waits for a word from here, and for none once the other side is gone.
    gate: Option<Receiver<Word>>,
}

/// What a test lets the next step do.
pub(crate) enum Word {
    Run,
    Fail,
    Panic,
}

impl Script {
    /// Answers with `answer`, byte for byte: each byte is a token of its own.
    pub(crate) fn saying(answer: &str) -> Self {
        Self::tokens(answer.bytes().map(MockText::byte).collect())
    }

    pub(crate) fn tokens(answer: Vec<TokenId>) -> Self {
        Self {
            limits: LIMITS,
            answer,
            requests: HashMap::new(),
            gate: None,
        }
    }

    /// The log-probability of the token at `index` of an answer: no two are the same.
    pub(crate) fn logprob(index: usize) -> f32 {
        -0.25 * (index + 1) as f32
    }

    /// Pretends to hold as much as `limits` say.
    pub(crate) fn within(mut self, limits: Limits) -> Self {
        self.limits = limits;
        self
    }

    /// Lets no step run without a word from the sender, until that is dropped.
    pub(crate) fn gated(mut self) -> (Self, SyncSender<Word>) {
        let (sender, receiver) = sync_channel(WORDS_MAX);
        self.gate = Some(receiver);
        (self, sender)
    }
}

impl Backend for Script {
    fn limits(&self) -> Limits {
        self.limits
    }

    fn execute(&mut self, plan: &StepPlan, outcome: &mut StepOutcome) -> Result<(), BackendError> {
        outcome.reset(plan.step());
        for request in plan.starts() {
            let known = (request.prompt_tokens(), request.logprobs());
            self.requests.insert(request.id(), known);
        }
        let has_work = !plan.segments().is_empty();
        if let Some(gate) = self.gate.as_ref().filter(|_| has_work) {
            // Without any time, nothing is measured and no refusal says when to come back.
            outcome.elapsed = Span::from_micros(1);
            match gate.recv() {
                Ok(Word::Run) | Err(_) => {}
                Ok(Word::Fail) => {
                    let cause = "the script says so".to_owned();
                    return Err(BackendError::Step { cause });
                }
                Ok(Word::Panic) => panic!("the script says so"),
            }
        }
        for segment in plan.segments().iter().filter(|segment| segment.sample) {
            let (prompt, asked) = self.requests[&segment.request];
            let index = (segment.positions.end - prompt) as usize;
            let token = self.answer.get(index).copied().unwrap_or(MockText::END);
            if let Some(alternatives) = asked {
                let own = TokenLogprob {
                    token,
                    logprob: Self::logprob(index),
                };
                let end = TokenLogprob {
                    token: MockText::END,
                    logprob: -20.0,
                };
                let most_likely = [own, end].into_iter().take(alternatives.into());
                let told = [own].into_iter().chain(most_likely);
                outcome.logprobs.push(outcome.sampled.len(), told);
            }
            outcome.sampled.push(Sampled {
                request: segment.request,
                token,
            });
        }
        for request in plan.releases() {
            self.requests.remove(request);
        }
        Ok(())
    }
}

/// A server on `backend`, ready.
pub(crate) async fn serving(
    backend: impl Backend + Send + 'static,
    settings: EdgeSettings,
) -> Server {
    let service = Service::new(settings);
    service.launch(loaded(backend)).await.unwrap();
    Server::over(service)
}

pub(crate) fn loaded(backend: impl Backend + Send + 'static) -> Loaded {
    Loaded {
        name: "mock".to_owned(),
        text: Arc::new(MockText::new()),
        backend: Box::new(backend),
        policies: Policies::default(),
        rebuild: None,
    }
}

/// Tokens of a text as the mock counts them.
pub(crate) fn tokens_in(text: &str) -> u64 {
    MockText::new().encode(text).unwrap().len() as u64
}

#[derive(Clone)]
pub(crate) struct Server {
    pub(crate) service: Arc<Service>,
    app: Router,
}

/// A whole answer.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: StatusCode,
    pub(crate) headers: HeaderMap,
    pub(crate) body: String,
}

impl Server {
    pub(crate) fn over(service: Arc<Service>) -> Self {
        let app = router(Arc::clone(&service));
        Self { service, app }
    }

    /// The response with its body unread.
    pub(crate) async fn open(&self, request: Request<Body>) -> axum::response::Response {
        self.app.clone().oneshot(request).await.unwrap()
    }

    pub(crate) async fn send(&self, request: Request<Body>) -> Answer {
        let response = self.open(request).await;
        let (parts, body) = response.into_parts();
        let bytes = axum::body::to_bytes(body, usize::MAX).await.unwrap();
        Answer {
            status: parts.status,
            headers: parts.headers,
            body: String::from_utf8(bytes.to_vec()).unwrap(),
        }
    }

    pub(crate) async fn get(&self, path: &str) -> Answer {
        self.send(Request::get(path).body(Body::empty()).unwrap())
            .await
    }

    pub(crate) async fn post(&self, path: &str, body: Value) -> Answer {
        self.send(post(path, body.to_string())).await
    }

    /// Waits until the engine has let go of everything, and checks that nothing is left.
    pub(crate) async fn settled(&self) {
        let worker = self.service.serving().unwrap().worker();
        let emptied = async {
            while worker.live() > 0 {
                tokio::task::yield_now().await;
            }
        };
        // So that a request that is never let go of fails a test and does not hang it.
        let watchdog = std::time::Duration::from_secs(60);
        let emptied = tokio::time::timeout(watchdog, emptied).await;
        assert!(emptied.is_ok(), "{} requests are still held", worker.live());
        let stats = worker.stats();
        assert_eq!((stats.waiting, stats.running), (0, 0), "{stats:?}");
        assert_eq!(stats.blocks.held, 0, "{stats:?}");
    }
}

pub(crate) fn post(path: &str, body: impl Into<Body>) -> Request<Body> {
    Request::post(path)
        .header("content-type", "application/json")
        .body(body.into())
        .unwrap()
}

pub(crate) fn user(text: &str) -> Value {
    json!([{"role": "user", "content": text}])
}

impl Answer {
    pub(crate) fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap_or_else(|_| panic!("no JSON: {}", self.body))
    }

    /// The events of a stream.
    pub(crate) fn events(&self) -> Vec<Event> {
        events(&self.body)
    }
}

#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Event {
    Data(Value),
    Done,
}

/// Parses a whole stream and insists on its framing.
pub(crate) fn events(body: &str) -> Vec<Event> {
    let body = body
        .strip_suffix("\n\n")
        .expect("an event ends with a blank line");
    let parse = |frame: &str| match frame.strip_prefix("data: ").expect("only data lines") {
        "[DONE]" => Event::Done,
        data => Event::Data(serde_json::from_str(data).unwrap()),
    };
    body.split("\n\n").map(parse).collect()
}

/// The chunks of a stream that ended well.
pub(crate) fn chunks(body: &str) -> Vec<Value> {
    let mut events = events(body);
    assert_eq!(events.pop(), Some(Event::Done), "{body}");
    let data = events.into_iter().map(|event| match event {
        Event::Data(data) => data,
        Event::Done => panic!("[DONE] in the middle of a stream"),
    });
    data.collect()
}

/// The text of a stream's chunks.
pub(crate) fn streamed_text(chunks: &[Value]) -> String {
    let text = |chunk: &Value| {
        let choice = &chunk["choices"][0];
        let text = choice["delta"]["content"].as_str();
        text.or(choice["text"].as_str()).unwrap_or("").to_owned()
    };
    chunks.iter().map(text).collect()
}
