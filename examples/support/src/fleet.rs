//! Several replicas behind one router in virtual time.

use serve_core::mock::{Mock, MockConfig};
use serve_core::{Backend as _, Span};
use serve_sched::route::{Route, Router, RouterSettings, Terms};
use serve_sched::sim::{Fleet, Routed, RoutedRow, SteppedEngine};
use serve_sched::{ConfigError, Policies, Scheduler};

use crate::{percentile, secs};

/// Runs a load on so many replicas of a device, all of which wait in their own queues, and gives out what came of each request.
/// `block_tokens` are those of the load's chains.
///
/// # Errors
///
/// A device that nothing could run on.
pub fn route(
    policy: Box<dyn Route>,
    device: &MockConfig,
    replicas: u32,
    block_tokens: u32,
    load: impl IntoIterator<Item = Routed>,
) -> Result<Vec<RoutedRow>, ConfigError> {
    let limits = device.limits;
    let terms = Terms {
        cache_blocks: limits.usable_blocks() * limits.block_size / block_tokens.max(1),
        ..Terms::default()
    };
    let engine = |_| {
        let policies = Policies {
            admit: Vec::new(),
            ..Policies::default()
        };
        let mock = Mock::new(device.clone());
        let scheduler = Scheduler::new(mock.limits(), policies)?;
        Ok(SteppedEngine::new(scheduler, mock))
    };
    let engines: Result<Vec<_>, ConfigError> = (0..replicas).map(engine).collect();
    let router = Router::new(policy, RouterSettings::default());
    let mut rows = Vec::new();
    Fleet::new(vec![router], engines?, terms).run(load, |row| rows.push(*row));
    Ok(rows)
}

/// First-token times at the median and the 99th percentile, and the part of all prompt tokens that was cached, for a table.
pub fn routed_cells(rows: &[RoutedRow]) -> [String; 3] {
    let times = || rows.iter().filter_map(RoutedRow::first_token_time);
    let (p50, p99): (Span, Span) = (percentile(50, times()), percentile(99, times()));
    let cached = format!("{:.0}%", 100.0 * cached_part(rows));
    [secs(p50), secs(p99), cached]
}

/// The part of all prompt tokens that was cached.
pub fn cached_part(rows: &[RoutedRow]) -> f64 {
    let used = || rows.iter().filter_map(|row| row.usage);
    let cached: u64 = used().map(|usage| u64::from(usage.cached_tokens)).sum();
    let prompts: u64 = used().map(|usage| u64::from(usage.prompt_tokens)).sum();
    cached as f64 / prompts.max(1) as f64
}
