//! The adapter for async programs: whatever is dropped, and whenever, slots come back exactly once.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod allocation;
mod behaviour;
mod crowd;
mod hand;
mod sockets;
mod stepped;

use serve_sched::DispatcherStats;

/// Every request has ended once, and nothing is held.
fn assert_all_ended(stats: DispatcherStats) {
    assert_conserved(stats);
    let left = (stats.waiting, stats.running, stats.aborting);
    assert_eq!(left, (0, 0, 0), "{stats:?}");
}

/// Every request that has arrived waits, runs, or has ended once.
fn assert_conserved(stats: DispatcherStats) {
    let counters = stats.counters;
    let ended = counters.finished + counters.refused + counters.cancelled + counters.failed;
    let live = u64::from(stats.waiting + stats.running);
    assert_eq!(counters.arrived, ended + live, "{stats:?}");
}
