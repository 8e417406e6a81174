//! An engine on a thread, or turn by turn: whatever happens to it, each request ends exactly once.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod behaviour;
mod hand;
mod interleaved;
mod threads;

use serve_core::mock::{CostModel, Mock, MockConfig};
use serve_core::{Limits, Request, RequestId, Span, Time, TokenId};
use serve_sched::Stats;

/// Room for three sequences of 64 positions.
fn mock() -> Mock {
    let limits = Limits {
        sequences_max: 3,
        step_tokens_max: 32,
        context_max: 64,
        block_size: 4,
        blocks: 33,
    };
    let cost = CostModel::new(
        vec![(1, Span::from_millis(10))],
        Span::from_millis(1),
        Span::ZERO,
    );
    Mock::new(MockConfig {
        limits,
        cost: cost.unwrap(),
        ..MockConfig::default()
    })
}

fn request(id: u64, at: Time, prompt: u32, output: u32) -> Request {
    let tokens = vec![TokenId::new(id as u32); prompt as usize];
    Request::new(RequestId::new(id), at, tokens, output).unwrap()
}

/// Every request that has arrived waits, runs, or has ended once.
fn assert_conserved(stats: &Stats) {
    let counters = stats.counters;
    let ended = counters.finished + counters.refused + counters.cancelled + counters.failed;
    let live = u64::from(stats.waiting + stats.running);
    assert_eq!(counters.arrived, ended + live, "{stats:?}");
    let classes = stats.classes.iter().map(|class| class.counters.arrived);
    assert_eq!(classes.sum::<u64>(), counters.arrived, "{stats:?}");
}

/// The same, and nothing is held.
fn assert_all_ended(stats: &Stats) {
    assert_conserved(stats);
    let left = (stats.waiting, stats.running, stats.blocks.held);
    assert_eq!(left, (0, 0, 0), "{stats:?}");
}
