//! How a problem is answered: its object, its headers, and what it tells those that it passes on its way out.

use axum::Json;
use axum::body::Bytes;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde::Serialize;

use super::Problem;

impl Problem {
    /// What the header `Retry-After` says, if anything.
    fn retry_after_s(&self) -> Option<u64> {
        match self {
            Self::Refused(refusal) => refusal.retry_after_s(),
            _ => None,
        }
    }

    /// The error object, as it stands in a body or in a stream.
    pub fn body(&self) -> ErrorBody<'_> {
        let kind = self.kind();
        ErrorBody {
            error: ErrorObject {
                message: shown(&self.to_string()).to_owned(),
                family: kind.family(),
                param: self.param().map(shown),
                code: kind.code,
            },
        }
    }
}

/// As much of a text as an answer holds: parts of it may be the client's own, of any length.
fn shown(text: &str) -> &str {
    const BYTES_MAX: usize = 1_000;

    &text[..text.floor_char_boundary(BYTES_MAX)]
}

impl IntoResponse for Problem {
    fn into_response(self) -> Response {
        let kind = self.kind();
        let mut response = match &self {
            Self::UpstreamRefused {
                body, content_type, ..
            } => as_it_is(kind.status, content_type.as_deref(), body),
            _ => (kind.status, Json(self.body())).into_response(),
        };
        response.extensions_mut().insert(Told {
            code: kind.code,
            for_capacity: self.is_capacity(),
            wrong_key: matches!(self, Self::WrongKey),
        });
        if matches!(self, Self::Unauthorized(_) | Self::WrongKey) {
            let bearer = HeaderValue::from_static("Bearer");
            response
                .headers_mut()
                .insert(header::WWW_AUTHENTICATE, bearer);
        }
        // Where the next request begins is not what a proxy in between may think, or not worth waiting for.
        if matches!(
            self,
            Self::SlowBody { .. }
                | Self::TooManyConnections { .. }
                | Self::Header { .. }
                | Self::TransferCoding
                | Self::ContentCoding
                | Self::Expectation
        ) {
            let close = HeaderValue::from_static("close");
            response.headers_mut().insert(header::CONNECTION, close);
        }
        if let Some(seconds) = self.retry_after_s() {
            let headers = response.headers_mut();
            headers.insert(header::RETRY_AFTER, HeaderValue::from(seconds));
        }
        if let Self::UpstreamBusy { retry_after, .. } = &self
            && let Some(said) = retry_after
                .as_ref()
                .and_then(|said| HeaderValue::try_from(said).ok())
        {
            response.headers_mut().insert(header::RETRY_AFTER, said);
        }
        response
    }
}

/// What another server has answered.
fn as_it_is(status: StatusCode, content_type: Option<&str>, body: &Bytes) -> Response {
    let mut response = (status, body.clone()).into_response();
    let usual = HeaderValue::from_static("application/json");
    let content_type = content_type.and_then(|text| HeaderValue::try_from(text).ok());
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, content_type.unwrap_or(usual));
    response
}

/// What a response tells of a problem, for those that it passes on its way out.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Told {
    pub(crate) code: &'static str,
    /// It was refused for want of capacity.
    pub(crate) for_capacity: bool,
    /// It was asked for with a key that nobody knows.
    pub(crate) wrong_key: bool,
}

/// The body of a failing answer.
#[derive(Debug, Serialize)]
pub struct ErrorBody<'a> {
    error: ErrorObject<'a>,
}

#[derive(Debug, Serialize)]
struct ErrorObject<'a> {
    message: String,
    #[serde(rename = "type")]
    family: &'static str,
    param: Option<&'a str>,
    code: &'static str,
}
