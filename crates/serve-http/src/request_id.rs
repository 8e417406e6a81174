//! `x-request-id` on every answer and every log line: the client's own if it sent a usable one, else
//! a fresh one. And the line of the [access log](crate::access) that goes with it.

use std::sync::LazyLock;
use std::sync::atomic::{AtomicU64, Ordering};

use axum::extract::Request;
use axum::http::{HeaderName, HeaderValue};
use axum::middleware::Next;
use axum::response::Response;
use tracing::{Instrument, info_span};

use crate::access::{Access, Peer};
use crate::error::Told;
use crate::secret_ids::SecretIds;

const NAME: HeaderName = HeaderName::from_static("x-request-id");

/// Longer ones are replaced: they end up in logs.
const BYTES_MAX: usize = 128;

/// The name of a request in `x-request-id`, for its handler.
#[derive(Clone, Debug)]
pub(crate) struct RequestName(pub(crate) String);

pub(crate) async fn attach(mut request: Request, next: Next) -> Response {
    let sent = request.headers().get(NAME).filter(|id| is_usable(id));
    let id = sent.cloned().unwrap_or_else(fresh);
    let shown = id.to_str().unwrap_or_default();
    let span = info_span!("http", request_id = shown);
    let name = RequestName(shown.to_owned());
    let peer = request.extensions().get::<Peer>();
    let access = Access::new(request.method(), request.uri(), peer, span.clone());
    request.extensions_mut().insert(name);
    request.extensions_mut().insert(access.clone());
    let mut response = next.run(request).instrument(span).await;
    let code = response.extensions().get::<Told>().map(|told| told.code);
    access.answered(response.status(), code);
    response.headers_mut().insert(NAME, id);
    response
}

fn is_usable(id: &HeaderValue) -> bool {
    let bytes = id.as_bytes();
    (1..=BYTES_MAX).contains(&bytes.len()) && bytes.iter().all(u8::is_ascii_graphic)
}

fn fresh() -> HeaderValue {
    static IDS: LazyLock<SecretIds> = LazyLock::new(SecretIds::default);
    static COUNT: AtomicU64 = AtomicU64::new(0);
    let count = COUNT.fetch_add(1, Ordering::Relaxed);
    let id = format!("req-{:016x}", IDS.of(count));
    HeaderValue::try_from(id).unwrap_or_else(|_| HeaderValue::from_static("req-unknown"))
}
