//! What every request passes on its way to its handler and back: it gets an id and a line in the log, it is looked
//! at as HTTP, and what went wrong is counted.
//!
//! One service around all paths, and no layers of the router: those are made anew around each handler, and each
//! request would have copies of all of them.

use std::convert::Infallible;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use axum::body::{Body, Bytes, HttpBody};
use axum::extract::Request;
use axum::http::{StatusCode, header};
use axum::response::Response;
use axum::{BoxError, Router};
use tower::{Service, ServiceExt};
use tower_http::cors::Cors;
use tracing::{Instrument, info_span};

use crate::access::{Access, Peer};
use crate::cors;
use crate::error::Told;
use crate::linger::Lingering;
use crate::request_id;
use crate::service;
use crate::settings::CapacityStatus;
use crate::strict;

/// All paths with what is around them. Clones are of the same one; each connection has one.
#[derive(Clone)]
pub(crate) struct App {
    rules: Arc<Rules>,
    cors: Option<Cors<Shared>>,
    peer: Option<Peer>,
}

/// Whether requests come over a socket, where they must be such as HTTP allows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Origin {
    Socket,
    Program,
}

struct Rules {
    service: Arc<service::Service>,
    paths: Router,
    origin: Origin,
}

#[derive(Clone)]
struct Shared(Arc<Rules>);

type Answer = Pin<Box<dyn Future<Output = Result<Response, Infallible>> + Send>>;

impl App {
    pub(crate) fn new(service: Arc<service::Service>, paths: Router, origin: Origin) -> Self {
        let origins = &service.settings().cors_origins;
        let layer = (!origins.is_empty()).then(|| cors::layer(origins));
        let rules = Arc::new(Rules {
            service,
            paths,
            origin,
        });
        Self {
            cors: layer.map(|layer| tower::Layer::layer(&layer, Shared(Arc::clone(&rules)))),
            rules,
            peer: None,
        }
    }

    /// The same for the connection with this other end.
    pub(crate) fn for_peer(self, peer: Option<Peer>) -> Self {
        Self { peer, ..self }
    }

    /// What is answered has an id and a line in the log, wherever it is answered.
    async fn answer(self, mut request: Request) -> Response {
        let id = request_id::of(request.headers());
        let shown = id.to_str().unwrap_or_default();
        let span = info_span!("http", request_id = shown);
        let access = Access::new(&request, shown, self.peer, span.clone());
        request.extensions_mut().insert(access.clone());
        let answered = async {
            match self.cors {
                // It is always ready, and so are they behind it.
                Some(cors) => cors.oneshot(request).await,
                None => Ok(self.rules.answer(request).await),
            }
        };
        let Ok(mut response) = answered.instrument(span).await;
        let code = response.extensions().get::<Told>().map(|told| told.code);
        access.answered(response.status(), code);
        response.headers_mut().insert(request_id::NAME, id);
        response
    }
}

impl<B> Service<Request<B>> for App
where
    B: HttpBody<Data = Bytes> + Send + Unpin + 'static,
    B::Error: Into<BoxError>,
{
    type Response = Response;
    type Error = Infallible;
    type Future = Answer;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<B>) -> Answer {
        let request = match self.rules.origin {
            Origin::Socket => {
                let awaits_continue = request.headers().contains_key(header::EXPECT);
                request.map(|body| Lingering::over(body, awaits_continue))
            }
            Origin::Program => request.map(Body::new),
        };
        let answer = self.clone().answer(request);
        Box::pin(async { Ok(answer.await) })
    }
}

impl Service<Request> for Shared {
    type Response = Response;
    type Error = Infallible;
    type Future = Answer;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request) -> Answer {
        let rules = Arc::clone(&self.0);
        Box::pin(async move { Ok(rules.answer(request).await) })
    }
}

impl Rules {
    async fn answer(&self, request: Request) -> Response {
        let mut paths = self.paths.clone();
        let answer = move |request| async move {
            // A router is always ready.
            let Ok(response) = paths.call(request).await;
            response
        };
        let mut response = match self.origin {
            Origin::Socket => {
                let allowed = &self.service.settings().allowed_hosts;
                strict::answered(request, allowed, answer).await
            }
            Origin::Program => answer(request).await,
        };
        self.told(&mut response);
        response
    }

    /// Gives refusals for want of capacity the status that the settings ask for, and counts wrong keys.
    fn told(&self, response: &mut Response) {
        let Some(told) = response.extensions().get::<Told>().copied() else {
            return;
        };
        if told.wrong_key {
            self.service.metrics().wrong_key();
        }
        let unavailable = self.service.settings().capacity_status == CapacityStatus::Unavailable;
        if unavailable && told.for_capacity {
            *response.status_mut() = StatusCode::SERVICE_UNAVAILABLE;
        }
    }
}
