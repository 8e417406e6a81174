//! The settings of requests: how long each may take, in which classes they come, and which answers are
//! given again.

use std::num::NonZeroUsize;

use clap::{Args, ValueEnum};
use serde::Serialize;

use crate::units::{Seconds, one_or_more};

/// What holds for every request.
#[derive(Args, Clone, Debug, Serialize)]
#[command(next_help_heading = "Requests")]
pub(crate) struct RequestSettings {
    /// Seconds that a request may take in all, waiting included; 0 is no limit. A client can ask for
    /// less
    #[arg(
        long,
        env = "SERVE_REQUEST_TIMEOUT",
        value_name = "SECONDS",
        default_value = "0"
    )]
    pub(crate) request_timeout: Seconds,

    /// Seconds that a request may wait before its first step; 0 is no limit. A client can ask for less
    #[arg(
        long,
        env = "SERVE_QUEUE_TIMEOUT",
        value_name = "SECONDS",
        default_value = "0"
    )]
    pub(crate) queue_timeout: Seconds,

    /// Seconds that accepted requests may still take once the server is told to stop
    #[arg(
        long,
        env = "SERVE_DRAIN_TIMEOUT",
        value_name = "SECONDS",
        default_value = "30"
    )]
    pub(crate) drain_timeout: Seconds,

    /// Seconds without a step, while there is work, after which the server says that it is stalled
    #[arg(
        long,
        env = "SERVE_STALLED_AFTER",
        value_name = "SECONDS",
        default_value = "60"
    )]
    pub(crate) stalled_after: Seconds,

    /// The names of the request classes, the highest first
    #[arg(
        long,
        env = "SERVE_CLASSES",
        value_name = "NAMES",
        value_delimiter = ',',
        default_value = "paid,free"
    )]
    pub(crate) classes: Vec<String>,

    /// The status of a refusal for want of capacity
    #[arg(long, env = "SERVE_CAPACITY_STATUS", value_enum, default_value = "503")]
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
        value_name = "N",
        default_value = "67108864", value_parser = one_or_more::<NonZeroUsize>)]
    pub(crate) idempotency_bytes_max: NonZeroUsize,
}

/// The status of a refusal for want of capacity.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, ValueEnum)]
pub(crate) enum CapacityStatus {
    /// Service Unavailable: what it is
    #[value(name = "503")]
    #[serde(rename = "503")]
    Unavailable,
    /// Too Many Requests: for clients that retry on nothing else
    #[value(name = "429")]
    #[serde(rename = "429")]
    TooMany,
}

impl RequestSettings {
    /// Settings that cannot be meant.
    pub(crate) fn contradictions(&self) -> [(&'static str, bool, &'static str); 2] {
        let total = self.request_timeout.if_on();
        [
            (
                "--stalled-after",
                self.stalled_after.if_on().is_none(),
                "it must be above 0",
            ),
            (
                "--queue-timeout",
                total.is_some_and(|total| self.queue_timeout >= total),
                "it must be below --request-timeout, which ends the wait as well",
            ),
        ]
    }

    /// The rank of the class of this name.
    pub(crate) fn class_rank(&self, name: &str) -> Option<usize> {
        self.classes.iter().position(|class| class == name)
    }

    /// What is wrong with the names of the classes.
    pub(crate) fn wrong_classes(&self) -> Option<(&'static str, String)> {
        const CLASSES_MAX: usize = 16;

        let is_name = |name: &String| {
            let allowed = |b: u8| b.is_ascii_alphanumeric() || b"-_.".contains(&b);
            (1..=64).contains(&name.len()) && name.bytes().all(allowed)
        };
        let is_new = |(index, name): (usize, &String)| !self.classes[..index].contains(name);
        let classes = &self.classes;
        let good = (1..=CLASSES_MAX).contains(&classes.len())
            && classes.iter().all(is_name)
            && classes.iter().enumerate().all(is_new);
        let cause = format!(
            "it must be 1 to {CLASSES_MAX} different names of letters, digits, `-`, `_` and `.`"
        );
        (!good).then_some(("--classes", cause))
    }
}
