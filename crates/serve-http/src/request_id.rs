//! `x-request-id`: on every answer and every log line, the client's own if it sent a usable one, else a fresh one.

use std::sync::LazyLock;
use std::sync::atomic::{AtomicU64, Ordering};

use axum::http::{HeaderMap, HeaderName, HeaderValue};

use crate::secret_ids::SecretIds;

pub(crate) const NAME: HeaderName = HeaderName::from_static("x-request-id");

/// Longer ones are replaced: they end up in logs.
const BYTES_MAX: usize = 128;

/// The id of a request with these headers: visible ASCII.
pub(crate) fn of(headers: &HeaderMap) -> HeaderValue {
    let sent = headers.get(NAME).filter(|id| is_usable(id));
    sent.cloned().unwrap_or_else(fresh)
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
