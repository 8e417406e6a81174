//! The settings of requests that are the edge's alone: what becomes of them when the server stops, how
//! they are refused, and which answers are given again.

use clap::{Args, ValueEnum};
use serde::Serialize;

use super::units::{Bytes, Seconds};

/// What holds for every request, beside what the scheduler knows of it.
#[derive(Args, Clone, Debug, Serialize)]
#[command(next_help_heading = "Requests")]
pub(crate) struct RequestSettings {
    /// Seconds that accepted requests may still take once the server is told to stop
    #[arg(
        long,
        env = "SERVE_DRAIN_TIMEOUT",
        value_name = "SECONDS",
        default_value = "30"
    )]
    pub(crate) drain_timeout: Seconds,

    /// Seconds for which requests are still taken once the server is told to stop, while its health check says
    /// that it goes: those who route to it need them to notice
    #[arg(
        long,
        env = "SERVE_DRAIN_DELAY",
        value_name = "SECONDS",
        default_value = "0"
    )]
    pub(crate) drain_delay: Seconds,

    /// Seconds without a step, while there is work, after which the server says that it is stalled
    #[arg(
        long,
        env = "SERVE_STALLED_AFTER",
        value_name = "SECONDS",
        default_value = "60"
    )]
    pub(crate) stalled_after: Seconds,

    /// The status of a refusal for want of capacity
    #[arg(long, env = "SERVE_CAPACITY_STATUS", value_enum, default_value = "429")]
    pub(crate) capacity_status: CapacityStatus,

    /// Seconds that the answer to an Idempotency-Key is given again; 0 takes no heed of such keys
    #[arg(
        long,
        env = "SERVE_IDEMPOTENCY_TTL",
        value_name = "SECONDS",
        default_value = "600"
    )]
    pub(crate) idempotency_ttl: Seconds,

    /// Bytes that answers kept for an Idempotency-Key may take in all
    #[arg(
        long,
        env = "SERVE_IDEMPOTENCY_BYTES_MAX",
        value_name = "BYTES",
        default_value = "67108864"
    )]
    pub(crate) idempotency_bytes_max: Bytes,
}

/// The status of a refusal for want of capacity.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, ValueEnum)]
pub(crate) enum CapacityStatus {
    /// Service Unavailable: for gateways that retry elsewhere on nothing else
    #[value(name = "503")]
    #[serde(rename = "503")]
    Unavailable,
    /// Too Many Requests: the server is well and busy
    #[value(name = "429")]
    #[serde(rename = "429")]
    TooMany,
}

impl RequestSettings {
    /// Settings that cannot be meant.
    pub(crate) fn contradictions(&self) -> [(&'static str, bool, &'static str); 1] {
        [(
            "--stalled-after",
            self.stalled_after.if_on().is_none(),
            "it must be above 0",
        )]
    }
}
