//! The paths of the server, as a router that a test drives without a socket.

use std::sync::Arc;

use axum::extract::rejection::PathRejection;
use axum::extract::{Path, Request, State as Shared};
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::middleware::{self, Next};
use axum::response::{Html, IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Extension, Json, Router};
use serde_json::{Value, json};

use crate::access::Access;
use crate::api::{
    ChatRequest, CompletionRequest, Endpoint, Header, ModelList, ModelObject, Options,
};
use crate::app::{App, Origin};
use crate::auth::{Key, Keys};
use crate::body::Read;
use crate::error::Problem;
use crate::generate::Generation;
use crate::idempotency::BodyHash;
use crate::lifecycle::State;
use crate::metrics::{Arrived, Format};
use crate::once::{Once, idempotency_key};
use crate::served_model::ServedModel;
use crate::service::{STALLED, Service};
use crate::stream;
use crate::terms::{Caller, Terms};
use crate::upstream::{self, Answer, Upstream};

/// All paths over one server state.
pub fn router(service: Arc<Service>) -> Router {
    let paths = paths().with_state(Arc::clone(&service));
    Router::new().fallback_service(App::new(service, paths, Origin::Program))
}

/// The same behind a socket, where a request must be one that HTTP allows.
pub(crate) fn served(service: Arc<Service>) -> App {
    let paths = paths().with_state(Arc::clone(&service));
    App::new(service, paths, Origin::Socket)
}

/// The same for connections beyond those that may be: only health checks and metrics are answered.
pub(crate) fn crowded(service: Arc<Service>) -> App {
    let refuse = middleware::from_fn_with_state(Arc::clone(&service), refuse_surplus);
    let paths = paths().layer(refuse).with_state(Arc::clone(&service));
    App::new(service, paths, Origin::Socket)
}

/// Health checks and metrics alone.
pub(crate) fn health_paths(service: Arc<Service>) -> App {
    let paths = watched().fallback(not_found);
    let paths = paths.with_state(Arc::clone(&service));
    App::new(service, paths, Origin::Program)
}

/// What is asked by those that watch the server.
fn watched() -> Router<Arc<Service>> {
    Router::new()
        .route("/metrics", get(metrics))
        .route("/health", get(ready))
        .route("/health/live", get(live))
        .route("/health/ready", get(ready))
}

fn paths() -> Router<Arc<Service>> {
    watched()
        .route("/", get(page))
        .route("/v1/chat/completions", post(generate::<ChatRequest>))
        .route("/v1/completions", post(generate::<CompletionRequest>))
        .route("/v1/models", get(models))
        .route("/v1/models/{*name}", get(model))
        .route("/v1/requests/{id}/cancel", post(cancel))
        .route("/v1/config", get(config))
        .fallback(not_found)
        .method_not_allowed_fallback(method_not_allowed)
}

async fn refuse_surplus(
    Shared(service): Shared<Arc<Service>>,
    request: Request,
    next: Next,
) -> Response {
    let path = request.uri().path();
    let mut response = if path == "/metrics" || path.starts_with("/health") {
        next.run(request).await
    } else {
        let max = service.settings().connections.connections_max;
        Problem::TooManyConnections { max }.into_response()
    };
    let close = HeaderValue::from_static("close");
    response.headers_mut().insert(header::CONNECTION, close);
    response
}

async fn page() -> Html<&'static str> {
    Html(include_str!("page.html"))
}

/// A way to ask for text. The paths differ in what their body says, and in nothing else.
trait Ask: Sized + Send + 'static {
    const ENDPOINT: Endpoint;

    fn read(body: &[u8]) -> Result<Self, Problem>;

    fn options(&self) -> &Options;

    fn start(
        self,
        serving: &ServedModel,
        terms: Terms,
        body: Read,
    ) -> impl Future<Output = Result<(Header, Generation), Problem>> + Send;
}

impl Ask for ChatRequest {
    const ENDPOINT: Endpoint = Endpoint::Chat;

    fn read(body: &[u8]) -> Result<Self, Problem> {
        Self::parse(body)
    }

    fn options(&self) -> &Options {
        &self.options
    }

    async fn start(
        self,
        serving: &ServedModel,
        terms: Terms,
        body: Read,
    ) -> Result<(Header, Generation), Problem> {
        serving.chat(self, terms, body.bytes.len(), body).await
    }
}

impl Ask for CompletionRequest {
    const ENDPOINT: Endpoint = Endpoint::Completion;

    fn read(body: &[u8]) -> Result<Self, Problem> {
        Self::parse(body)
    }

    fn options(&self) -> &Options {
        &self.options
    }

    async fn start(
        self,
        serving: &ServedModel,
        terms: Terms,
        body: Read,
    ) -> Result<(Header, Generation), Problem> {
        serving.complete(self, terms, body.bytes.len(), body).await
    }
}

async fn generate<A: Ask>(
    Shared(service): Shared<Arc<Service>>,
    request: Request,
) -> Result<Response, Problem> {
    let mut arrived = Some(service.metrics().arrived());
    let result = match service.upstream() {
        Some(upstream) => {
            let upstream = Arc::clone(upstream);
            forward(&service, upstream, A::ENDPOINT, request, &mut arrived).await
        }
        None => answer::<A>(&service, request, &mut arrived).await,
    };
    match (&result, arrived) {
        (Ok(_), Some(arrived)) => arrived.finished(),
        (Err(problem), Some(arrived)) => arrived.failed(problem),
        (_, None) => {}
    }
    result
}

/// The answer. `arrived` is taken by one that is not complete yet.
async fn answer<A: Ask>(
    service: &Arc<Service>,
    request: Request,
    arrived: &mut Option<Arrived>,
) -> Result<Response, Problem> {
    let incoming = Incoming::read(service, request).await?;
    let Incoming {
        access,
        caller,
        key,
        body,
    } = incoming;
    let serving = service.launched().ok_or(Problem::EngineStopped)?;
    let ask = serving.preparation().read(&body.bytes, A::read).await?;
    let (stream, usage) = (ask.options().stream, ask.options().stream_usage);
    let terms = caller.terms(ask.options(), service.settings())?;
    known_terms(service, &terms, arrived.as_mut(), access.as_ref());
    if let Some(text) = key {
        let once = Once::new(A::ENDPOINT, text, &terms, stream)?;
        let hash = BodyHash::of(&body.bytes);
        let worker = Arc::clone(service);
        let work = async move {
            let (header, generation) = ask.start(worker.serving()?, terms, body).await?;
            stream::whole_json(&header, generation.logged(access)).await
        };
        // Of its own: every request's future would have its size.
        return Box::pin(once.answer(service, hash, work)).await;
    }
    let (header, generation) = ask.start(serving, terms, body).await?;
    let mut generation = generation.logged(access);
    if stream {
        generation.begun().await?;
        if let Some(arrived) = arrived.take() {
            generation.answers(arrived);
        }
        Ok(stream::events(header, generation, usage))
    } else {
        stream::whole(&header, generation).await
    }
}

/// A request for text whose body is here, and what its head says.
struct Incoming {
    access: Option<Access>,
    caller: Caller,
    key: Option<String>,
    body: Read,
}

impl Incoming {
    /// Reads it, if requests are taken now.
    async fn read(service: &Service, request: Request) -> Result<Self, Problem> {
        let access = request.extensions().get::<Access>().cloned();
        let caller = Caller::of(&request, &service.access().keys)?;
        let key = idempotency_key(&request, service.settings())?;
        service.takes_requests()?;
        let body = service.bodies().read_json(request).await?;
        Ok(Self {
            access,
            caller,
            key,
            body,
        })
    }
}

/// The request has been read, and its class is known.
fn known_terms(
    service: &Service,
    terms: &Terms,
    arrived: Option<&mut Arrived>,
    access: Option<&Access>,
) {
    if let Some(arrived) = arrived {
        arrived.classed(terms.class);
    }
    if let Some(access) = access {
        access.read();
        access.classed(service.settings().class_name(terms.class));
    }
}

/// The answer of an engine behind the gate. `arrived` is taken by one that is not complete yet.
async fn forward(
    service: &Arc<Service>,
    upstream: Arc<Upstream>,
    endpoint: Endpoint,
    request: Request,
    arrived: &mut Option<Arrived>,
) -> Result<Response, Problem> {
    let incoming = Incoming::read(service, request).await?;
    let Incoming {
        access,
        caller,
        key,
        body,
    } = incoming;
    let reader = Arc::clone(&upstream);
    let read = move |bytes: &[u8]| reader.read(endpoint, bytes);
    let asked = upstream.preparation().read(&body.bytes, read).await?;
    let terms = caller.terms(&asked.options, service.settings())?;
    known_terms(service, &terms, arrived.as_mut(), access.as_ref());
    let metrics = Arc::clone(service.metrics());
    if let Some(text) = key {
        let once = Once::new(endpoint, text, &terms, asked.options.stream)?;
        let hash = BodyHash::of(&body.bytes);
        let work = async move {
            match upstream.ask(asked, terms, body, &metrics, access).await? {
                Answer::Whole(bytes) => Ok(bytes),
                // It did not ask for one.
                Answer::Stream(_) => Err(Problem::EngineStopped),
            }
        };
        return Box::pin(once.answer(service, hash, work)).await;
    }
    match upstream.ask(asked, terms, body, &metrics, access).await? {
        Answer::Whole(bytes) => Ok(stream::json(bytes)),
        Answer::Stream(parts) => {
            let arrived = arrived.take().ok_or(Problem::EngineStopped)?;
            Ok(upstream::events(parts, arrived))
        }
    }
}

/// The key of a request that is not for text, or none where everybody is let in.
fn known<'a>(
    keys: &'a Keys,
    headers: &HeaderMap,
    access: &Access,
) -> Result<Option<&'a Key>, Problem> {
    let key = keys.find(headers)?;
    if let Some(key) = key {
        access.identified(key);
    }
    Ok(key)
}

async fn models(
    Shared(service): Shared<Arc<Service>>,
    Extension(line): Extension<Access>,
    headers: HeaderMap,
) -> Result<Response, Problem> {
    known(&service.access().keys, &headers, &line)?;
    let list = ModelList::from(described(&service)?);
    Ok(Json(list).into_response())
}

async fn model(
    Shared(service): Shared<Arc<Service>>,
    Extension(line): Extension<Access>,
    name: Result<Path<String>, PathRejection>,
    headers: HeaderMap,
) -> Result<Response, Problem> {
    let Path(name) = name.map_err(|_| Problem::Path)?;
    known(&service.access().keys, &headers, &line)?;
    let model = described(&service)?;
    if name != model.id() {
        return Err(Problem::ModelNotFound {
            asked: name,
            served: model.id().to_owned(),
        });
    }
    Ok(Json(model).into_response())
}

fn described(service: &Service) -> Result<ModelObject<'_>, Problem> {
    if let Some(upstream) = service.upstream() {
        service.takes_requests()?;
        let (name, context) = (upstream.name(), upstream.context());
        return Ok(ModelObject::new(name, upstream.created(), context));
    }
    let serving = service.serving()?;
    let context = Some(serving.tokens_max());
    Ok(ModelObject::new(serving.name(), serving.created(), context))
}

/// Cancels a live request of the caller's, by the id of its answer or by its `x-request-id`. Its
/// end is the same as that of a client that goes away.
async fn cancel(
    Shared(service): Shared<Arc<Service>>,
    Extension(line): Extension<Access>,
    id: Result<Path<String>, PathRejection>,
    headers: HeaderMap,
) -> Result<Response, Problem> {
    let Path(id) = id.map_err(|_| Problem::Path)?;
    let access = service.access();
    let key = known(&access.keys, &headers, &line)?;
    let tenant = key.map(|key| key.identity.tenant).unwrap_or_default();
    // Also while the server drains: a cancellation helps it to end.
    let cancelled = match service.upstream() {
        Some(upstream) => upstream.cancel(tenant, &id)?,
        None => service.running()?.cancel(tenant, &id)?,
    };
    Ok(Json(json!({ "id": id, "cancelled": cancelled })).into_response())
}

/// The settings as they are, wherever each of them came from.
async fn config(
    Shared(service): Shared<Arc<Service>>,
    Extension(line): Extension<Access>,
    headers: HeaderMap,
) -> Result<Response, Problem> {
    let access = service.access();
    let own = known(&access.keys, &headers, &line)?.map(|key| &*key.name);
    let mut shown = access.shown.clone();
    // A key is told of itself and of no other.
    if let Some(keys) = shown.get_mut("keys").and_then(Value::as_array_mut) {
        keys.retain(|key| key.get("name").and_then(Value::as_str) == own);
    }
    if let (Some(shown), Some(running)) = (shown.as_object_mut(), service.described()) {
        shown.insert("running".to_owned(), running.clone());
    }
    Ok(Json(shown).into_response())
}

/// What is counted and measured. It names no tenant and no request, and needs no key.
async fn metrics(Shared(service): Shared<Arc<Service>>, headers: HeaderMap) -> Response {
    let format = Format::asked(&headers);
    let content_type = HeaderValue::from_static(format.content_type());
    let text = service.metrics().text(&service.snapshot(), format);
    ([(header::CONTENT_TYPE, content_type)], text).into_response()
}

/// Whether the process should be left alone: everything but a dead inference thread is worth
/// waiting for.
async fn live(Shared(service): Shared<Arc<Service>>) -> Response {
    health(&service, |state| state != State::Failed)
}

/// Whether requests are taken, and the ones that are in get on.
async fn ready(Shared(service): Shared<Arc<Service>>) -> Response {
    if service.is_stalled() {
        let body = Json(json!({ "status": STALLED }));
        return (StatusCode::SERVICE_UNAVAILABLE, body).into_response();
    }
    health(&service, |state| state == State::Ready)
}

fn health(service: &Service, good: impl FnOnce(State) -> bool) -> Response {
    let state = service.lifecycle().state();
    let status = if good(state) {
        StatusCode::OK
    } else {
        StatusCode::SERVICE_UNAVAILABLE
    };
    (status, Json(json!({ "status": state.name() }))).into_response()
}

async fn not_found(request: Request) -> Problem {
    Problem::NotFound {
        method: request.method().to_string(),
        path: request.uri().path().to_owned(),
    }
}

async fn method_not_allowed(request: Request) -> Problem {
    Problem::MethodNotAllowed {
        method: request.method().to_string(),
        path: request.uri().path().to_owned(),
    }
}
