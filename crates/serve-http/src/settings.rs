//! What the edge can be told; what the scheduler can be told are its policies.

use std::time::Duration;

use serde_json::Value;
use serve_core::Class;

use crate::auth::Keys;

/// What the edge itself can be told.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Requests that may wait beside those that run; 0 lets any number wait.
    pub queue_cap: u32,
    /// How long accepted work may go on once the server is told to stop.
    pub drain_timeout: Duration,
    /// Bytes of one request's body at most.
    pub body_bytes_max: usize,
    /// How long a request may take in all, waiting included.
    pub request_timeout: Option<Duration>,
    /// How long no step may end while there is work, before the server says that it is stalled.
    pub stalled_after: Duration,
    /// How long the answer to an `Idempotency-Key` is given again; zero takes no heed of keys.
    pub idempotency_ttl: Duration,
    /// Bytes that such answers may take in all.
    pub idempotency_bytes_max: usize,
    /// The status of a refusal for want of capacity.
    pub capacity_status: CapacityStatus,
    /// The names of the classes, the highest first.
    pub classes: Vec<String>,
    /// Who is let in.
    pub keys: Keys,
    /// What `GET /v1/config` shows. It must hold no secret.
    pub shown: Value,
}

/// The status of a refusal for want of capacity.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum CapacityStatus {
    /// 503, which is what it is.
    #[default]
    Unavailable,
    /// 429, for clients that retry on nothing else.
    TooManyRequests,
}

impl Settings {
    /// The name of a class.
    pub fn class_name(&self, class: Class) -> &str {
        let name = self.classes.get(usize::from(class.rank()));
        name.map_or("unnamed", String::as_str)
    }
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            queue_cap: 256,
            drain_timeout: Duration::from_secs(30),
            body_bytes_max: 8 << 20,
            request_timeout: None,
            stalled_after: Duration::from_secs(60),
            idempotency_ttl: Duration::from_secs(600),
            idempotency_bytes_max: 64 << 20,
            capacity_status: CapacityStatus::default(),
            classes: vec!["paid".to_owned(), "free".to_owned()],
            keys: Keys::default(),
            shown: Value::Null,
        }
    }
}
