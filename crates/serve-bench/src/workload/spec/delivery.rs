//! When the load that was sent counts as the load that was asked for.

use serde::{Deserialize, Serialize};

/// What a client may do to its schedule before the run is void.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct DeliveryLimits {
    /// The delivered rate must be at least this share of the offered one.
    pub rate_share_min: f64,
    /// The 99th percentile of actual minus scheduled send, in milliseconds.
    pub lag_p99_ms_max: f64,
    /// The greatest distance between the distributions of scheduled and of actual gaps.
    pub gap_distance_max: f64,
}

impl Default for DeliveryLimits {
    fn default() -> Self {
        Self {
            rate_share_min: 0.98,
            lag_p99_ms_max: 20.0,
            gap_distance_max: 0.1,
        }
    }
}
