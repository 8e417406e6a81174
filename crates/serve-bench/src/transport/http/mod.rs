//! The HTTP side: one attempt as a request to any server that speaks the OpenAI API.
//!
//! It stands directly on hyper's HTTP/1 connections: what a client library does between a schedule and
//! a socket is time that would be measured with the server.

mod answer;
mod body;
pub(crate) mod connection;
mod target;

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http_body_util::BodyExt;
use hyper::header::{
    AUTHORIZATION, CONTENT_TYPE, HOST, HeaderMap, HeaderName, HeaderValue, RETRY_AFTER,
};
use hyper::{Request, Response, StatusCode};

pub(crate) use target::{Described, Target, TargetError};

use crate::store::manifest::Source;
use crate::transport::drive::{Attempt, AttemptError, Call, Transport};
use crate::workload::spec::{Endpoint, Spec};
use answer::{Answer, error_of};
use connection::{Body, Connection, Connections, SendError};

/// The header that names a class.
const CLASS: HeaderName = HeaderName::from_static("x-request-class");
/// The header that says how long an answer is of use.
const TIMEOUT_MS: HeaderName = HeaderName::from_static("x-request-timeout-ms");
/// The header with the server's name for a request.
const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");
/// As `Retry-After`, in milliseconds; OpenAI's own servers send it.
const RETRY_AFTER_MS: HeaderName = HeaderName::from_static("retry-after-ms");

/// How long a connection may take to become free after the last word of an answer.
const DRAIN: Duration = Duration::from_millis(200);

/// Sends the requests of one workload to one server.
#[derive(Clone, Debug)]
pub(crate) struct HttpClient(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    connections: Connections,
    spec: Spec,
    model: String,
    host: HeaderValue,
    /// What each tenant sends as `Authorization`; the last one is for requests without a tenant.
    keys: Vec<Option<HeaderValue>>,
    /// What each class sends as `x-request-class`.
    classes: Vec<HeaderValue>,
}

impl HttpClient {
    /// A client for a server and a workload.
    ///
    /// # Errors
    ///
    /// [`TargetError`] when a tenant's key is not in the environment, or a key or class cannot stand in
    /// a header.
    pub(crate) fn new(target: &Target, spec: &Spec) -> Result<Self, TargetError> {
        let keys = spec.tenants.iter().map(|tenant| target.key_of(tenant));
        let mut keys = keys.collect::<Result<Vec<_>, _>>()?;
        keys.push(target.key.clone());
        let class = |name: &String| {
            HeaderValue::from_str(name).map_err(|_| TargetError::Class(name.clone()))
        };
        let classes = spec.classes.iter().map(|spec| class(&spec.name));
        Ok(Self(Arc::new(Inner {
            connections: target.connections.clone(),
            spec: spec.clone(),
            model: target.model.clone(),
            host: target.host.clone(),
            keys,
            classes: classes.collect::<Result<_, _>>()?,
        })))
    }
}

impl Inner {
    /// A request for an attempt, with everything but its body.
    fn request(&self, call: &Call<'_>, body: Bytes) -> Result<Request<Body>, AttemptError> {
        let path = match self.spec.request.endpoint {
            Endpoint::Chat => "/v1/chat/completions",
            Endpoint::Completions | Endpoint::TokenIds => "/v1/completions",
        };
        let mut request = Request::post(path).body(Body::new(body));
        if let Ok(request) = &mut request {
            self.headers(call, request.headers_mut());
        }
        request.map_err(|error| AttemptError::failed("connect", error.to_string()))
    }

    fn headers(&self, call: &Call<'_>, headers: &mut HeaderMap) {
        headers.insert(HOST, self.host.clone());
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        let tenant = call.conversation.tenant.unwrap_or(self.spec.tenants.len());
        if let Some(key) = &self.keys[tenant] {
            headers.insert(AUTHORIZATION, key.clone());
        }
        if let Some(class) = call.conversation.class {
            headers.insert(CLASS, self.classes[class].clone());
        }
        if let Some(left) = call.time_left {
            let millis = u64::try_from(left.as_millis()).unwrap_or(u64::MAX).max(1);
            headers.insert(TIMEOUT_MS, HeaderValue::from(millis));
        }
    }

    /// Sends on a kept connection or a new one. A kept one may have been closed by the server in the
    /// meantime; if so before anything of the request was written, a new one is taken. Of what was
    /// written nobody knows how far the server has come with it: that is a failed attempt, and whether
    /// there is another is for the workload's retries to say.
    async fn exchange(
        &self,
        call: &Call<'_>,
        attempt: &mut Attempt,
    ) -> Result<(Connection, Response<hyper::body::Incoming>), AttemptError> {
        let cut_short = |error: SendError| AttemptError::failed("cut_short", error.cause);
        let body = Bytes::from(body::render(&self.spec, &self.model, call));
        let mut request = self.request(call, body)?;
        if let Some(mut kept) = self.connections.kept() {
            attempt.connected();
            match kept.send(request).await {
                Ok(response) => return Ok((kept, response)),
                Err(SendError {
                    unsent: Some(unsent),
                    ..
                }) => request = *unsent,
                Err(error) => return Err(cut_short(error)),
            }
        }
        let connected = self.connections.open().await;
        let mut connection = connected.map_err(|cause| AttemptError::failed("connect", cause))?;
        attempt.connected();
        let response = connection.send(request).await.map_err(cut_short)?;
        Ok((connection, response))
    }
}

impl Transport for HttpClient {
    const SOURCE: Source = Source::Http;

    async fn send(&self, call: &Call<'_>, attempt: &mut Attempt) -> Result<(), AttemptError> {
        let (connection, response) = self.0.exchange(call, attempt).await?;
        let (head, mut body) = response.into_parts();
        let request_id = head.headers.get(REQUEST_ID).and_then(|id| id.to_str().ok());
        attempt.headers(head.status.as_u16(), request_id.map(str::to_owned));
        let mut answer = Answer::new(self.0.spec.request.stream);
        if !head.status.is_success() {
            let text = body
                .collect()
                .await
                .map(http_body_util::Collected::to_bytes);
            attempt.ended(attempt.now());
            self.0.connections.keep(connection).await;
            return Err(refusal(
                head.status,
                &head.headers,
                &text.unwrap_or_default(),
            ));
        }
        loop {
            let frame = body.frame().await;
            let now = attempt.now();
            match frame {
                None => {
                    answer.end(now, attempt)?;
                    self.0.connections.keep(connection).await;
                    return Ok(());
                }
                Some(Ok(frame)) => {
                    let Some(data) = frame.data_ref() else {
                        continue; // trailers
                    };
                    if answer.take(data, now, attempt)? {
                        // Only the connection's own end is left; what waits for it is not the user.
                        let drained = async {
                            while body.frame().await.is_some_and(|frame| frame.is_ok()) {}
                        };
                        if tokio::time::timeout(DRAIN, drained).await.is_ok() {
                            self.0.connections.keep(connection).await;
                        }
                        return Ok(());
                    }
                }
                Some(Err(error)) => return Err(AttemptError::failed("cut_short", chain(&error))),
            }
        }
    }
}

/// What a bad status says.
fn refusal(status: StatusCode, headers: &HeaderMap, body: &[u8]) -> AttemptError {
    let (code, message) = error_of(body);
    let code = code.unwrap_or_else(|| format!("http_{}", status.as_u16()));
    let message = message.unwrap_or_else(|| String::from_utf8_lossy(body).trim().to_owned());
    let message = format!("{status}: {message}");
    AttemptError::of_status(status.as_u16(), code, message, retry_after(headers))
}

/// `Retry-After` as a number of seconds. A date, which no inference server sends, is left alone.
fn retry_after(headers: &HeaderMap) -> Option<Duration> {
    let number = |name| headers.get(name)?.to_str().ok()?.trim().parse::<f64>().ok();
    let millis = number(RETRY_AFTER_MS).or_else(|| Some(number(RETRY_AFTER)? * 1e3))?;
    Duration::try_from_secs_f64(millis / 1e3).ok()
}

/// An error with its causes: the outermost alone hides why.
fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        text = format!("{text}: {cause}");
        source = cause.source();
    }
    text
}
