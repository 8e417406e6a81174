//! Whether the engine serves: it has made a token of a real request. That a port is open, or that a health check or
//! a list of models says so, is no sign that a model is loaded.
//!
//! An engine that is busy serves. It is asked again only when there is a sign that it has gone.

use std::time::Duration;

use axum::body::Bytes;
use axum::http::{HeaderMap, Response};
use hyper::body::Incoming;
use serde_json::{Value, json};
use serve_sched::adapter::Verdict;
use tokio::net::TcpStream;
use tokio::time::{sleep, timeout};
use tracing::{info, warn};

use super::client::{Client, SendError, whole};
use super::engine::Engine;
use super::supervise::Supervisor;
use crate::lifecycle::{Lifecycle, State};

/// How long one token may take.
const PROBE_TIMEOUT: Duration = Duration::from_secs(60);

/// Between two tries to reach an engine that is not there: the first and the longest.
const PAUSE: Duration = Duration::from_millis(100);
const PAUSE_MAX: Duration = Duration::from_secs(2);

/// How often an engine that serves is asked whether it still takes connections.
const CHECK_EVERY: Duration = Duration::from_secs(5);
const CHECK_TIMEOUT: Duration = Duration::from_secs(2);

/// Bytes of an answer that are read.
const BYTES_MAX: usize = 1 << 20;

/// The model that an engine serves.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Model {
    /// What the engine calls it.
    pub(super) name: String,
    /// Tokens that one request can hold, if the engine says so.
    pub(super) context: Option<u32>,
}

/// What became of a request for one token.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Probe {
    Serves,
    /// It has too much to do, or is still loading: which of both is not known.
    Busy,
    No(String),
}

/// Asks one engine.
pub(super) struct Prober {
    engine: Engine,
    /// What the engine calls its model, where the operator says so.
    name: Option<String>,
    /// Of an engine that is started here: what listens on its port has to be it.
    supervisor: Option<Supervisor>,
}

/// An engine that is started here has ended too often, and is started no more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct GivenUp;

impl Prober {
    pub(super) fn new(
        engine: Engine,
        name: Option<String>,
        supervisor: Option<Supervisor>,
    ) -> Self {
        Self {
            engine,
            name,
            supervisor,
        }
    }

    /// Waits until the engine serves, for as long as that takes.
    ///
    /// # Errors
    ///
    /// [`GivenUp`].
    pub(super) async fn serves(&self) -> Result<Model, GivenUp> {
        let Some(supervisor) = &self.supervisor else {
            return Ok(self.served().await);
        };
        tokio::select! {
            model = self.served() => {
                supervisor.serves();
                Ok(model)
            }
            () = supervisor.given_up() => Err(GivenUp),
        }
    }

    async fn served(&self) -> Model {
        let mut told = String::new();
        let mut pause = PAUSE;
        loop {
            let cause = match self.attempt().await {
                Ok(model) => return model,
                Err(cause) => cause,
            };
            if cause != told {
                info!(url = %self.engine.client().url(), cause, "the engine does not serve yet");
                told = cause;
            }
            sleep(pause).await;
            pause = (pause * 2).min(PAUSE_MAX);
        }
    }

    /// Watches an engine that serves, and says in `lifecycle` when it does not. Ends when the server does.
    pub(super) async fn watch(&self, lifecycle: &Lifecycle) {
        loop {
            tokio::select! {
                () = self.gone() => {}
                _ = lifecycle.reached(State::Draining) => return,
            }
            if !lifecycle.rebuild() {
                // A server that is about to go looks no further.
                lifecycle.reached(State::Draining).await;
                return;
            }
            let served = tokio::select! {
                served = self.serves() => served,
                _ = lifecycle.reached(State::Draining) => return,
            };
            if served.is_err() {
                lifecycle.advance(State::Failed);
                return;
            }
            info!("the engine serves again");
            lifecycle.advance(State::Ready);
        }
    }

    /// Waits until the engine has gone.
    async fn gone(&self) {
        loop {
            let is_suspected = tokio::select! {
                () = self.engine.suspected() => true,
                () = sleep(CHECK_EVERY) => false,
            };
            let url = self.engine.client().url();
            if !is_suspected && takes_connections(url.address()).await {
                continue;
            }
            if let Probe::No(cause) = self.probe_known().await {
                warn!(%url, cause, "the engine does not serve any more");
                return;
            }
        }
    }

    async fn attempt(&self) -> Result<Model, String> {
        self.is_ours()?;
        let model = match &self.name {
            Some(name) => Model {
                name: name.clone(),
                context: context(self.engine.client(), name).await,
            },
            None => first_model(self.engine.client()).await?,
        };
        match probe(self.engine.client(), &model.name).await {
            Probe::Serves => Ok(model),
            Probe::Busy => Err("it is loading, or has too much to do".to_owned()),
            Probe::No(cause) => Err(cause),
        }
    }

    fn is_ours(&self) -> Result<(), String> {
        self.supervisor.as_ref().map_or(Ok(()), Supervisor::is_ours)
    }

    async fn probe_known(&self) -> Probe {
        if let Err(cause) = self.is_ours() {
            return Probe::No(cause);
        }
        let client = self.engine.client();
        match &self.name {
            Some(name) => probe(client, name).await,
            None => match first_model(client).await {
                Ok(model) => probe(client, &model.name).await,
                Err(cause) => Probe::No(cause),
            },
        }
    }
}

/// Asks for one token, as a text and, where the engine has no such path, as a chat.
pub(super) async fn probe(client: &Client, model: &str) -> Probe {
    let text = json!({"model": model, "prompt": "1", "max_tokens": 1, "temperature": 0});
    match one_token(client, "/v1/completions", &text).await {
        Err(Probe::No(cause)) => {
            let messages = json!([{"role": "user", "content": "1"}]);
            let chat = json!({"model": model, "messages": messages, "max_tokens": 1});
            match one_token(client, "/v1/chat/completions", &chat).await {
                Ok(()) => Probe::Serves,
                Err(Probe::No(_)) => Probe::No(cause),
                Err(other) => other,
            }
        }
        Err(other) => other,
        Ok(()) => Probe::Serves,
    }
}

async fn one_token(client: &Client, path: &str, body: &Value) -> Result<(), Probe> {
    let body = Bytes::from(body.to_string());
    let asked = async {
        let response = client.post(path, HeaderMap::new(), body).await;
        let response = response.map_err(|error| Probe::No(error.to_string()))?;
        let verdict = Verdict::of(response.status(), response.headers());
        if let Verdict::Overloaded(_) = verdict {
            return Err(Probe::Busy);
        }
        let (status, told) = read(response).await.map_err(Probe::No)?;
        let choices = told.get("choices").and_then(Value::as_array);
        match choices.is_some_and(|choices| !choices.is_empty()) {
            true => Ok(()),
            false => Err(Probe::No(format!(
                "it answers {status} to a request for one token"
            ))),
        }
    };
    // An engine that takes so long over one token has much to do.
    timeout(PROBE_TIMEOUT, asked)
        .await
        .unwrap_or(Err(Probe::Busy))
}

/// The first model that the engine lists.
async fn first_model(client: &Client) -> Result<Model, String> {
    let list = models(client).await?;
    let first = list.first();
    let name = first
        .and_then(|model| model.get("id"))
        .and_then(Value::as_str);
    match (first, name) {
        (Some(first), Some(name)) => Ok(Model {
            name: name.to_owned(),
            context: context_of(first),
        }),
        _ => Err("it lists no model; name one with --upstream-model".to_owned()),
    }
}

/// Tokens that a request to the model of this name can hold, if the engine says so.
async fn context(client: &Client, name: &str) -> Option<u32> {
    let list = models(client).await.ok()?;
    let is_it = |model: &&Value| model.get("id").is_some_and(|id| id == name);
    list.iter().find(is_it).and_then(context_of)
}

async fn models(client: &Client) -> Result<Vec<Value>, String> {
    let asked = async {
        let response = client.get("/v1/models").await;
        let response = response.map_err(|error: SendError| error.to_string())?;
        let (status, told) = read(response).await?;
        match told.get("data") {
            Some(Value::Array(list)) => Ok(list.clone()),
            _ => Err(format!("it answers {status} to GET /v1/models")),
        }
    };
    let late = Err("it does not answer GET /v1/models".to_owned());
    timeout(PROBE_TIMEOUT, asked).await.unwrap_or(late)
}

fn context_of(model: &Value) -> Option<u32> {
    // vLLM's, this server's and llama-server's.
    let places = ["/max_model_len", "/context_length", "/meta/n_ctx"];
    let tokens = places
        .iter()
        .find_map(|place| model.pointer(place)?.as_u64())?;
    u32::try_from(tokens).ok()
}

async fn read(response: Response<Incoming>) -> Result<(u16, Value), String> {
    let status = response.status().as_u16();
    let body = whole(response.into_body(), BYTES_MAX).await?;
    Ok((status, serde_json::from_slice(&body).unwrap_or_default()))
}

async fn takes_connections(address: (String, u16)) -> bool {
    let connected = timeout(CHECK_TIMEOUT, TcpStream::connect(address)).await;
    // One that is too busy to take a connection in time has not refused it.
    connected.is_err() || connected.is_ok_and(|connected| connected.is_ok())
}
