//! What the edge can be told; what the scheduler can be told are its policies.

use std::fmt;
use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::Duration;

use serde_json::Value;
use serve_core::Class;
use serve_sched::admit::QUEUE_CAP;
use serve_sched::settings::CLASSES;

use crate::auth::Keys;
use crate::cors::Origin;
use crate::hosts::AllowedHosts;

/// What the edge itself can be told.
#[derive(Clone, Debug)]
pub struct EdgeSettings {
    /// Requests that may wait beside those that run; 0 lets any number wait.
    pub queue_cap: u32,
    /// What one connection and one body may cost.
    pub connections: ConnectionSettings,
    /// How long accepted work may go on once the server is told to stop.
    pub drain_timeout: Duration,
    /// How long requests are still taken once the server is told to stop, while `/health/ready` says that it
    /// goes: what routes to it needs time to notice.
    pub drain_delay: Duration,
    /// How long a request may take in all, waiting included.
    pub request_timeout: Option<Duration>,
    /// How long a request may wait before its first step.
    pub queue_timeout: Option<Duration>,
    /// How long no step may end while there is work, before the server says that it is stalled.
    pub stalled_after: Duration,
    /// How long the answer to an `Idempotency-Key` is given again; zero takes no heed of keys.
    pub idempotency_ttl: Duration,
    /// Bytes that such answers may take in all.
    pub idempotency_bytes_max: usize,
    /// The status of a refusal for want of capacity.
    pub capacity_status: CapacityStatus,
    /// By which names it is called; others are refused with 403.
    pub allowed_hosts: AllowedHosts,
    /// Web pages of which origins may use the API.
    pub cors_origins: Vec<Origin>,
    /// The names of the classes, the highest first.
    pub classes: Vec<String>,
    /// Who is let in at the start.
    pub keys: Keys,
    /// How many lines of the log were lost.
    pub log_lines_lost: LinesLost,
    /// Tokens in a block of a prompt of which the access log tells a hash; none tells nothing of prompts.
    pub log_prompt_blocks: Option<NonZeroU32>,
    /// What `GET /metrics` has.
    pub metrics: MetricsSettings,
    /// What `GET /v1/config` shows at the start. It must hold no secret.
    pub shown: Value,
}

/// What `GET /metrics` has beside what it always has.
#[derive(Clone, Debug, Default)]
pub struct MetricsSettings {
    /// Whether it has vLLM's names, too.
    pub vllm_names: bool,
    /// Bounds that each histogram of times has among others: limits of which it is asked how many kept them. The
    /// server's own time limits are among them anyway.
    pub bounds: Vec<Duration>,
    /// Labels that say what this binary is.
    pub build: Vec<(&'static str, String)>,
}

/// Counts lines that could not be logged; it is asked at each scrape of the metrics.
#[derive(Clone)]
pub struct LinesLost(Arc<dyn Fn() -> u64 + Send + Sync>);

impl LinesLost {
    /// Asks `count` for the number until now, which must not fall.
    pub fn new(count: impl Fn() -> u64 + Send + Sync + 'static) -> Self {
        Self(Arc::new(count))
    }

    /// How many there are.
    pub(crate) fn count(&self) -> u64 {
        (self.0)()
    }
}

impl Default for LinesLost {
    fn default() -> Self {
        Self::new(|| 0)
    }
}

impl fmt::Debug for LinesLost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("LinesLost").field(&self.count()).finish()
    }
}

/// What one connection and one body may cost. Each limit bounds what a client can hold without
/// sending a request that is worth it; `None`, and 0 for [`connections_max`](Self::connections_max),
/// is no limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConnectionSettings {
    /// Connections at most.
    pub connections_max: u32,
    /// Connections beyond those, which get 429; still more are closed without a response.
    pub surplus_max: u32,
    /// From the first byte of a request, or a new connection, to the last of the headers.
    pub header_timeout: Option<Duration>,
    /// From the headers to the last byte of the body.
    pub body_timeout: Option<Duration>,
    /// From the end of an answer to the first byte of the next request.
    pub keep_alive_timeout: Option<Duration>,
    /// How long a client may take in nothing of an answer that is ready.
    pub write_timeout: Option<Duration>,
    /// Bytes of one request's body at most.
    pub body_bytes_max: usize,
    /// Bytes of all bodies together that are being read.
    pub bodies_bytes_max: usize,
}

impl Default for ConnectionSettings {
    fn default() -> Self {
        Self {
            connections_max: 8_192,
            surplus_max: 64,
            header_timeout: Some(Duration::from_secs(10)),
            body_timeout: Some(Duration::from_secs(30)),
            keep_alive_timeout: Some(Duration::from_secs(75)),
            write_timeout: Some(Duration::from_secs(30)),
            body_bytes_max: 8 << 20,
            bodies_bytes_max: 256 << 20,
        }
    }
}

/// The status of a refusal for want of capacity.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum CapacityStatus {
    /// 503, for gateways that retry elsewhere on nothing else.
    Unavailable,
    /// 429: this server is well and busy. A gateway does not take it for a broken one.
    #[default]
    TooManyRequests,
}

impl EdgeSettings {
    /// The name of a class.
    pub fn class_name(&self, class: Class) -> &str {
        let name = self.classes.get(usize::from(class.rank()));
        name.map_or("unnamed", String::as_str)
    }
}

impl Default for EdgeSettings {
    fn default() -> Self {
        Self {
            queue_cap: QUEUE_CAP.usual(),
            connections: ConnectionSettings::default(),
            drain_timeout: Duration::from_secs(30),
            drain_delay: Duration::ZERO,
            request_timeout: None,
            queue_timeout: None,
            stalled_after: Duration::from_secs(60),
            idempotency_ttl: Duration::from_secs(600),
            idempotency_bytes_max: 64 << 20,
            capacity_status: CapacityStatus::default(),
            allowed_hosts: AllowedHosts::Any,
            cors_origins: Vec::new(),
            classes: CLASSES.usual(),
            keys: Keys::default(),
            log_lines_lost: LinesLost::default(),
            log_prompt_blocks: None,
            metrics: MetricsSettings::default(),
            shown: Value::Null,
        }
    }
}
