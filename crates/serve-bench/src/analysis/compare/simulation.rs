//! The verdict against worlds whose truth is known: where there is no difference none is found (but
//! for one time in twenty at most), and where there is one it is.
//!
//! The world is a queue with one server, the hardest case for intervals: every wait depends on the
//! waits before. Both sides get the same arrivals; how long each answer takes is their own luck.

use serve_core::rng::Rng;

use super::{CompareOptions, Verdict, compare};
use crate::analysis::testing::{answer, numbered};
use crate::store::folder::Run;
use crate::store::manifest::tests::example;
use crate::store::record::Record;

/// A world: how busy its server is, and how far runs of the same thing differ (a standard deviation, as
/// a share).
#[derive(Clone, Copy)]
struct World {
    requests: usize,
    utilisation: f64,
    run_noise: f64,
}

/// A run of a server that is `slowdown` times as slow as the control.
fn run(world: World, arrivals_seed: u64, luck: &mut Rng, slowdown: f64) -> Run {
    let mut arrivals = Rng::new(arrivals_seed);
    // Sums of twelve uniform numbers are close to normal.
    let normal = (0..12).map(|_| luck.next_f64()).sum::<f64>() - 6.0;
    let pace = slowdown * (world.run_noise * normal).exp();
    let (mut due_us, mut free_us) = (0.0_f64, 0.0_f64);
    let rows = (0..world.requests).map(|_| {
        due_us += arrivals.exponential(100_000.0 / world.utilisation);
        // Between half of the mean and three halves of it.
        let work_us = 100_000.0 * (0.5 + luck.next_f64()) * pace;
        let start_us = free_us.max(due_us);
        free_us = start_us + work_us;
        row(due_us, start_us + work_us / 4.0, free_us)
    });
    let records = numbered(rows.collect::<Vec<_>>());
    let mut manifest = example();
    manifest.workload.requests_sha256 = arrivals_seed.to_string();
    Run { manifest, records }
}

fn row(due_us: f64, first_us: f64, end_us: f64) -> Record {
    let nanos = |us: f64| (us * 1e3) as u64;
    Record {
        scheduled_ns: nanos(due_us),
        sent_ns: Some(nanos(due_us)),
        chunks: [first_us, end_us]
            .map(|us| (nanos(us), Some(4)).into())
            .to_vec(),
        end_ns: Some(nanos(end_us)),
        ..answer(0, &[0, 1], Some(8))
    }
}

/// How many of `seeds` comparisons say `verdict`.
fn count(world: World, repeats: u64, slowdown: f64, seeds: u64, verdict: Verdict) -> usize {
    let said = (0..seeds).filter(|seed| {
        let mut luck = Rng::new(seed * 7_919 + 13);
        let seeds = (0..repeats)
            .map(|repeat| seed * 1_000 + repeat)
            .collect::<Vec<_>>();
        let mut side = |slowdown| {
            let runs = seeds
                .iter()
                .map(|seed| run(world, *seed, &mut luck, slowdown));
            runs.collect::<Vec<_>>()
        };
        let (a, b) = (side(1.0), side(slowdown));
        compare(&a, &b, &CompareOptions::default()).unwrap().verdict == verdict
    });
    said.count()
}

const REPEATED: World = World {
    requests: 200,
    utilisation: 0.7,
    run_noise: 0.03,
};
const ALONE: World = World {
    requests: 1_200,
    utilisation: 0.8,
    run_noise: 0.0,
};

#[test]
fn without_a_difference_none_is_shown_in_95_of_100_worlds() {
    for (world, repeats) in [(REPEATED, 5), (REPEATED, 3), (ALONE, 1)] {
        let none = count(world, repeats, 1.0, 200, Verdict::NoDifferenceShown);
        assert!(none >= 190, "{repeats} repeats: {none} of 200");
        assert!(
            none < 200,
            "{repeats} repeats: intervals that never err are too wide"
        );
    }
}

#[test]
fn a_real_difference_is_found() {
    // A quarter slower.
    for (world, repeats) in [(REPEATED, 5), (ALONE, 1)] {
        let found = count(world, repeats, 1.25, 60, Verdict::Worse);
        assert!(found >= 57, "{repeats} repeats: {found} of 60");
    }
    let found = count(REPEATED, 5, 0.8, 60, Verdict::Better);
    assert!(found >= 57, "{found} of 60");
}
