//! HTTP to one engine: a connection for each request, the engine's key, and whether a request that failed has
//! reached it.
//!
//! A connection is not used twice. Engines close theirs without a word (llama-server after a stream), and a request that is written
//! into one that is being closed may have begun: it could not be sent again, and would fail though the engine is well. The client is hyper's, which the server is built on already: a response or the wait for it that is dropped closes
//! its connection, which is how an engine learns that nobody waits any more.

use std::error::Error;
use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use axum::body::Bytes;
use axum::http::uri::{Authority, PathAndQuery, Scheme};
use axum::http::{HeaderMap, HeaderValue, Method, Request, Response, Uri, header};
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::{Body, Incoming};
use hyper_util::client::legacy::Client as Pool;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use thiserror::Error as ThisError;

/// How long a connection may take to come about.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// Where an engine is: `http://HOST:PORT`, with or without a path and the `/v1` at its end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UpstreamUrl {
    authority: Authority,
    /// What stands before `/v1`, without a slash at its end.
    prefix: String,
}

/// A text that is no such place.
#[derive(Clone, Debug, PartialEq, Eq, ThisError)]
#[error("it must be http://HOST:PORT, with or without /v1{0}")]
pub struct InvalidUrl(&'static str);

impl FromStr for UpstreamUrl {
    type Err = InvalidUrl;

    fn from_str(text: &str) -> Result<Self, InvalidUrl> {
        let uri: Uri = text.parse().map_err(|_| InvalidUrl(""))?;
        let parts = uri.into_parts();
        match parts.scheme {
            Some(scheme) if scheme == Scheme::HTTP => {}
            Some(scheme) if scheme == Scheme::HTTPS => {
                return Err(InvalidUrl("; TLS is another program's work"));
            }
            _ => return Err(InvalidUrl("")),
        }
        let authority = parts.authority.ok_or(InvalidUrl(""))?;
        if authority.as_str().contains('@') {
            return Err(InvalidUrl("; a key belongs into upstream_api_key"));
        }
        let path = parts.path_and_query.as_ref();
        if path.is_some_and(|path| path.query().is_some()) {
            return Err(InvalidUrl("; what follows a ? would be lost"));
        }
        let path = path.map_or("", PathAndQuery::path).trim_end_matches('/');
        let prefix = path.strip_suffix("/v1").unwrap_or(path);
        Ok(Self {
            authority,
            prefix: prefix.to_owned(),
        })
    }
}

impl fmt::Display for UpstreamUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "http://{}{}", self.authority, self.prefix)
    }
}

impl UpstreamUrl {
    /// On this machine.
    pub(super) fn local(port: u16) -> Self {
        let authority = Authority::try_from(format!("127.0.0.1:{port}"));
        Self {
            // Digits and dots are one.
            authority: authority.unwrap_or_else(|_| Authority::from_static("127.0.0.1")),
            prefix: String::new(),
        }
    }

    /// Host and port, as for a connection.
    pub(super) fn address(&self) -> (String, u16) {
        let host = self.authority.host().trim_matches(['[', ']']);
        (host.to_owned(), self.authority.port_u16().unwrap_or(80))
    }

    fn uri(&self, path: &str) -> Result<Uri, axum::http::Error> {
        Uri::builder()
            .scheme(Scheme::HTTP)
            .authority(self.authority.clone())
            .path_and_query(format!("{}{path}", self.prefix))
            .build()
    }
}

/// The key that an engine wants. It is shown to nobody else.
#[derive(Clone)]
pub struct UpstreamKey(HeaderValue);

/// A text that cannot be in a header.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ThisError)]
#[error("it must be visible ASCII text")]
pub struct InvalidKey;

impl FromStr for UpstreamKey {
    type Err = InvalidKey;

    fn from_str(text: &str) -> Result<Self, InvalidKey> {
        if text.is_empty() || !text.bytes().all(|byte| byte.is_ascii_graphic()) {
            return Err(InvalidKey);
        }
        let mut value = HeaderValue::try_from(format!("Bearer {text}")).map_err(|_| InvalidKey)?;
        value.set_sensitive(true);
        Ok(Self(value))
    }
}

impl fmt::Debug for UpstreamKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("UpstreamKey(..)")
    }
}

/// A request that got no response.
#[derive(Clone, Debug, PartialEq, Eq, ThisError)]
pub(super) enum SendError {
    /// Nothing of it has reached the engine.
    #[error("it cannot be reached: {0}")]
    Unsent(String),
    /// It may have reached the engine.
    #[error("the connection broke: {0}")]
    Broken(String),
}

/// Asks one engine; a clone asks the same one.
#[derive(Clone)]
pub(super) struct Client {
    url: UpstreamUrl,
    key: Option<UpstreamKey>,
    pool: Pool<HttpConnector, Full<Bytes>>,
}

impl Client {
    pub(super) fn new(url: UpstreamUrl, key: Option<UpstreamKey>) -> Self {
        let mut connector = HttpConnector::new();
        // A request is a small packet, and it must not wait for the one after it.
        connector.set_nodelay(true);
        connector.set_connect_timeout(Some(CONNECT_TIMEOUT));
        let pool = Pool::builder(TokioExecutor::new())
            .pool_max_idle_per_host(0)
            .build(connector);
        Self { url, key, pool }
    }

    pub(super) fn url(&self) -> &UpstreamUrl {
        &self.url
    }

    /// Asks for what is at `path`.
    pub(super) async fn get(&self, path: &str) -> Result<Response<Incoming>, SendError> {
        self.send(Method::GET, path, HeaderMap::new(), Bytes::new())
            .await
    }

    /// Sends JSON to `path`.
    pub(super) async fn post(
        &self,
        path: &str,
        mut headers: HeaderMap,
        body: Bytes,
    ) -> Result<Response<Incoming>, SendError> {
        let json = HeaderValue::from_static("application/json");
        headers.insert(header::CONTENT_TYPE, json);
        self.send(Method::POST, path, headers, body).await
    }

    async fn send(
        &self,
        method: Method,
        path: &str,
        headers: HeaderMap,
        body: Bytes,
    ) -> Result<Response<Incoming>, SendError> {
        let unsent = |error: axum::http::Error| SendError::Unsent(error.to_string());
        let uri = self.url.uri(path).map_err(unsent)?;
        let mut request = Request::new(Full::new(body));
        *request.method_mut() = method;
        *request.uri_mut() = uri;
        *request.headers_mut() = headers;
        let close = HeaderValue::from_static("close");
        request.headers_mut().insert(header::CONNECTION, close);
        if let Some(UpstreamKey(key)) = &self.key {
            let headers = request.headers_mut();
            headers.insert(header::AUTHORIZATION, key.clone());
        }
        let sent = self.pool.request(request).await;
        sent.map_err(|error| {
            let cause = causes(&error);
            let inner = error
                .source()
                .and_then(|source| source.downcast_ref::<hyper::Error>());
            match error.is_connect() || inner.is_some_and(hyper::Error::is_canceled) {
                true => SendError::Unsent(cause),
                false => SendError::Broken(cause),
            }
        })
    }
}

/// The whole of a body of at most `bytes_max` bytes.
///
/// # Errors
///
/// What broke it off, in words.
pub(super) async fn whole(
    body: impl Body<Data = Bytes, Error = hyper::Error>,
    bytes_max: usize,
) -> Result<Bytes, String> {
    let read = Limited::new(body, bytes_max).collect().await;
    match read {
        Ok(read) => Ok(read.to_bytes()),
        Err(error) => Err(causes(&*error)),
    }
}

/// An error with what is behind it.
pub(super) fn causes(error: &dyn Error) -> String {
    let mut told = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        let cause_told = cause.to_string();
        if !told.ends_with(&cause_told) {
            told = format!("{told}: {cause_told}");
        }
        source = cause.source();
    }
    told
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_is_read_with_and_without_its_version() {
        for (text, uri) in [
            ("http://127.0.0.1:8080", "http://127.0.0.1:8080/v1/models"),
            ("http://127.0.0.1:8080/", "http://127.0.0.1:8080/v1/models"),
            ("http://host/v1", "http://host/v1/models"),
            ("http://host:1/a/v1/", "http://host:1/a/v1/models"),
            ("http://[::1]:9/a", "http://[::1]:9/a/v1/models"),
        ] {
            let url: UpstreamUrl = text.parse().unwrap();
            assert_eq!(url.uri("/v1/models").unwrap(), uri, "{text}");
        }
        assert_eq!(
            "http://[::1]:9".parse::<UpstreamUrl>().unwrap().address(),
            ("::1".to_owned(), 9)
        );
        for wrong in [
            "",
            "host",
            "host:80",
            "https://host",
            "ftp://host",
            "http://k@host",
            "http://h/?a=b",
            "http://",
        ] {
            assert!(wrong.parse::<UpstreamUrl>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_key_is_not_shown() {
        let key: UpstreamKey = "sk-secret".parse().unwrap();
        assert!(!format!("{key:?}").contains("secret"));
        assert!(!format!("{:?}", key.0).contains("secret"));
        for wrong in ["", "a b", "ä", "a\nb"] {
            assert!(wrong.parse::<UpstreamKey>().is_err(), "{wrong:?}");
        }
    }
}
