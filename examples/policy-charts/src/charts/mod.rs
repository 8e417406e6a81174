//! The experiment behind each chart, by the name of the policy's page.

mod admit;
mod batch;
mod budget;
mod concurrency;
mod in_flight;
mod kv;
mod load;
mod order;
mod retry;
mod route;
mod shares;
mod victim;

use std::error::Error;

use crate::chart::Chart;

type Make = fn() -> Result<Chart, Box<dyn Error>>;

/// Every chart and what makes it.
pub(crate) const CHARTS: &[(&str, Make)] = &[
    ("queue-cap", admit::queue_cap),
    ("token-bucket", admit::token_bucket),
    ("latency-budget", admit::latency_budget),
    ("deadline-prediction", admit::deadline_prediction),
    ("first-token-budget", admit::first_token_budget),
    ("concurrency-limit", admit::concurrency_limit),
    ("in-flight-limits", in_flight::limits),
    ("fixed", concurrency::fixed),
    ("gradient", concurrency::gradient),
    ("aimd", concurrency::aimd),
    ("retry-budget", retry::budget),
    ("predicted-end", route::predicted_end),
    ("least-loaded", route::least_loaded),
    ("fifo", order::fifo),
    ("strict-tiers", order::strict_tiers),
    ("aging-tiers", order::aging_tiers),
    ("fair-tenants", order::fair_tenants),
    ("fair-groups", shares::fair_groups),
    ("composed-orders", shares::composed_orders),
    ("earliest-deadline", order::earliest_deadline),
    ("response-ratio", order::response_ratio),
    ("one-at-a-time", batch::one_at_a_time),
    ("static-batch", batch::static_batch),
    ("continuous", batch::continuous),
    ("first-come", budget::first_come),
    ("class-first", budget::class_first),
    ("inter-token-target", budget::inter_token_target),
    ("newest-of-lowest-class", victim::newest_of_lowest_class),
    ("least-progress-lost", victim::least_progress_lost),
    (
        "most-freed-for-least-lost",
        victim::most_freed_for_least_lost,
    ),
    ("over-share-first", victim::over_share_first),
    ("preemption-by-class", victim::by_class),
    ("prefix-cache", kv::prefix_cache),
];
