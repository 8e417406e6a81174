//! Counts of measurements by size, which any thread can add to without waiting for another.

use std::sync::atomic::{AtomicU64, Ordering};

/// How often a measurement was at most so large, for each of some bounds, and the sum of all.
#[derive(Debug)]
pub(crate) struct Histogram {
    bounds: Box<[f64]>,
    /// One for each bound, not cumulative, and one for what is above them all.
    counts: Box<[AtomicU64]>,
    /// The bits of an `f64`.
    sum: AtomicU64,
}

/// A histogram at one moment, as it is exposed.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Reading {
    /// Each bound, and how many measurements were at most that large.
    pub(crate) cumulative: Vec<(f64, u64)>,
    /// All measurements.
    pub(crate) count: u64,
    pub(crate) sum: f64,
}

impl Histogram {
    /// Bounds from `first` on, `bounds` of them, each twice the one before.
    pub(crate) fn doubling(first: f64, bounds: i32) -> Self {
        Self {
            bounds: (0..bounds).map(|n| first * 2.0_f64.powi(n)).collect(),
            counts: (0..=bounds).map(|_| AtomicU64::new(0)).collect(),
            sum: AtomicU64::new(0.0_f64.to_bits()),
        }
    }

    /// Adds a measurement. O(log n) in the bounds.
    pub(crate) fn observe(&self, value: f64) {
        let index = self.bounds.partition_point(|bound| *bound < value);
        self.counts[index].fetch_add(1, Ordering::Relaxed);
        let add = |bits| Some((f64::from_bits(bits) + value).to_bits());
        // It never refuses, so it never fails.
        let _ = self
            .sum
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, add);
    }

    /// What has been added so far. The count is the last bucket's, also while others add.
    pub(crate) fn read(&self) -> Reading {
        let mut count = 0;
        let mut cumulative = Vec::with_capacity(self.bounds.len());
        for (bound, bucket) in self.bounds.iter().zip(&self.counts) {
            count += bucket.load(Ordering::Relaxed);
            cumulative.push((*bound, count));
        }
        let above = self.counts.last();
        count += above.map_or(0, |bucket| bucket.load(Ordering::Relaxed));
        Reading {
            cumulative,
            count,
            sum: f64::from_bits(self.sum.load(Ordering::Relaxed)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_measurement_counts_for_every_bound_that_it_is_not_above() {
        let histogram = Histogram::doubling(1.0, 3);
        for value in [0.5, 1.0, 1.5, 4.0, 9.0] {
            histogram.observe(value);
        }
        let reading = histogram.read();
        assert_eq!(reading.cumulative, [(1.0, 2), (2.0, 3), (4.0, 4)]);
        assert_eq!((reading.count, reading.sum), (5, 16.0));
    }

    #[test]
    fn nothing_is_lost_when_many_threads_add() {
        let histogram = Histogram::doubling(1.0, 3);
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| (0..10_000).for_each(|_| histogram.observe(3.0)));
            }
        });
        let reading = histogram.read();
        assert_eq!((reading.count, reading.sum), (40_000, 120_000.0));
    }
}
