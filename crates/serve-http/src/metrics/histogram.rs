//! Counts of measurements by size, which any thread can add to without waiting for another.

use std::ops::RangeInclusive;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::SystemTime;

use serve_core::Span;

/// What a histogram's whole numbers count.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Unit {
    /// Nanoseconds, which are exposed as seconds.
    Time,
    /// Tokens, or requests.
    Count,
}

/// How often a measurement was at most so large, for each of some bounds, and the sum of all.
///
/// Each bound is at most 1.42 times the one before, so that a quantile that is read from the buckets is within
/// 42% of the true one for whatever lies between the first bound and the last.
#[derive(Debug)]
pub(crate) struct Histogram {
    unit: Unit,
    bounds: Box<[Bound]>,
    /// One for each bound, not cumulative, and one for what is above them all.
    counts: Box<[AtomicU64]>,
    sum: AtomicU64,
    /// The latest measurement that came with a name, for each bucket.
    examples: Option<Mutex<Box<[Option<Example>]>>>,
}

/// The most that a bucket counts.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Bound {
    /// In whole numbers of the unit.
    most: u64,
    /// As it is exposed: between two whole counts a bound may lie anywhere.
    shown: f64,
}

/// One measurement by name: an exemplar.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Example {
    /// The request.
    pub(crate) id: String,
    pub(crate) value: f64,
    pub(crate) at: SystemTime,
}

/// A histogram at one moment, as it is exposed.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Reading {
    /// Each bound, and how many measurements were at most that large.
    pub(crate) cumulative: Vec<(f64, u64)>,
    /// All measurements.
    pub(crate) count: u64,
    pub(crate) sum: f64,
    /// For each bound, and for what is above them all; or nothing at all.
    pub(crate) examples: Vec<Option<Example>>,
}

/// Characters of a name that an example can have: OpenMetrics allows 128 with the ten of `request_id`.
const NAME_CHARS: RangeInclusive<usize> = 1..=118;

/// Steps of the square root of two from a quarter of a millisecond to 1024 s.
const SECONDS_FIRST: f64 = 0.000_25;
const SECONDS_BOUNDS: i32 = 45;

/// The same steps to 1,048,576, from below 1 on: to tell what is 1 there must be a bound below it.
const COUNT_FIRST: f64 = std::f64::consts::FRAC_1_SQRT_2;
const COUNT_BOUNDS: i32 = 42;

impl Reading {
    /// Both together, of histograms with the same bounds.
    pub(crate) fn with(mut self, other: Self) -> Self {
        for (both, (_, count)) in self.cumulative.iter_mut().zip(other.cumulative) {
            both.1 += count;
        }
        for (both, example) in self.examples.iter_mut().zip(other.examples) {
            *both = example.or(both.take());
        }
        self.count += other.count;
        self.sum += other.sum;
        self
    }
}

impl Histogram {
    /// For times from 0.25 ms to 1024 s. Each of `exact` is a bound too, so that it is known exactly how many
    /// kept a limit of that length.
    pub(crate) fn seconds(exact: &[Span]) -> Self {
        let steps = (0..SECONDS_BOUNDS).map(|n| Span::from_secs_f64(step(SECONDS_FIRST, n)));
        let bound = |span: Span| Bound {
            most: span.as_nanos(),
            shown: span.as_secs_f64(),
        };
        Self::with(
            Unit::Time,
            steps.chain(exact.iter().copied()).map(bound).collect(),
        )
    }

    /// For counts from 1 to about a million.
    pub(crate) fn counts() -> Self {
        let bound = |shown: f64| Bound {
            most: shown as u64,
            shown,
        };
        let steps = (0..COUNT_BOUNDS).map(|n| step(COUNT_FIRST, n));
        Self::with(Unit::Count, steps.map(bound).collect())
    }

    /// The same, and for each bucket the latest measurement that came with a name.
    pub(crate) fn with_examples(mut self) -> Self {
        self.examples = Some(Mutex::new(vec![None; self.counts.len()].into()));
        self
    }

    fn with(unit: Unit, mut bounds: Vec<Bound>) -> Self {
        bounds.sort_by(|a, b| a.shown.total_cmp(&b.shown));
        bounds.dedup();
        Self {
            unit,
            counts: (0..=bounds.len()).map(|_| AtomicU64::new(0)).collect(),
            bounds: bounds.into(),
            sum: AtomicU64::new(0),
            examples: None,
        }
    }

    /// Adds a time. O(log n) in the bounds, without a lock.
    pub(crate) fn observe(&self, time: Span) {
        self.add(time.as_nanos());
    }

    /// Adds a count.
    pub(crate) fn observe_count(&self, count: u64) {
        self.add(count);
    }

    /// Has the bucket of `time`, which has been added, name a request that has ended, if its name can be told.
    pub(crate) fn exemplify(&self, time: Span, id: &str) {
        let Some(examples) = &self.examples else {
            return;
        };
        // No more is counted than has to be: an engine of others may call its answers what it likes.
        if !NAME_CHARS.contains(&id.chars().take(NAME_CHARS.end() + 1).count()) {
            return;
        }
        // Nobody waits for an example: the next one is as good.
        if let Ok(mut examples) = examples.try_lock() {
            examples[self.bucket(time.as_nanos())] = Some(Example {
                id: id.to_owned(),
                value: time.as_secs_f64(),
                at: SystemTime::now(),
            });
        }
    }

    fn bucket(&self, value: u64) -> usize {
        self.bounds.partition_point(|bound| bound.most < value)
    }

    fn add(&self, value: u64) {
        self.counts[self.bucket(value)].fetch_add(1, Ordering::Relaxed);
        // Nanoseconds of 584 years; beyond that it begins anew, which a rate takes for a restart.
        self.sum.fetch_add(value, Ordering::Relaxed);
    }

    /// What has been added so far. The count is the last bucket's, also while others add.
    pub(crate) fn read(&self) -> Reading {
        let mut count = 0;
        let mut cumulative = Vec::with_capacity(self.bounds.len());
        for (bound, bucket) in self.bounds.iter().zip(&self.counts) {
            count += bucket.load(Ordering::Relaxed);
            cumulative.push((bound.shown, count));
        }
        let above = self.counts.last();
        count += above.map_or(0, |bucket| bucket.load(Ordering::Relaxed));
        let examples = self.examples.as_ref().map(|examples| {
            let examples = examples.lock().unwrap_or_else(PoisonError::into_inner);
            examples.to_vec()
        });
        Reading {
            cumulative,
            count,
            sum: self.shown(self.sum.load(Ordering::Relaxed)),
            examples: examples.unwrap_or_default(),
        }
    }

    fn shown(&self, value: u64) -> f64 {
        match self.unit {
            Unit::Time => Span::from_nanos(value).as_secs_f64(),
            Unit::Count => value as f64,
        }
    }
}

/// The `n`-th step from `first` on, in four digits, so that it can be read.
fn step(first: f64, n: i32) -> f64 {
    let exact = first * std::f64::consts::SQRT_2.powi(n);
    let scale = 10.0_f64.powi(3 - exact.log10().floor() as i32);
    (exact * scale).round() / scale
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// What `histogram_quantile` of Prometheus makes of the buckets.
    fn quantile(reading: &Reading, q: f64) -> f64 {
        let rank = q * reading.count as f64;
        let (mut below, mut before) = (0.0, 0);
        for &(bound, count) in &reading.cumulative {
            if count as f64 >= rank && count > before {
                return below + (bound - below) * (rank - before as f64) / (count - before) as f64;
            }
            (below, before) = (bound, count);
        }
        below
    }

    fn true_quantile(values: &[u64], q: f64) -> u64 {
        let mut sorted = values.to_vec();
        sorted.sort_unstable();
        let rank = (q * sorted.len() as f64).ceil() as usize;
        sorted[rank.clamp(1, sorted.len()) - 1]
    }

    #[test]
    fn a_measurement_counts_for_every_bound_that_it_is_not_above() {
        let limit = Span::from_millis(3_000);
        let histogram = Histogram::seconds(&[limit, limit, Span::from_secs(1024)]);
        let just_above = Span::from_nanos(limit.as_nanos() + 1);
        for time in [
            Span::from_nanos(1),
            limit,
            just_above,
            Span::from_secs(2_000),
        ] {
            histogram.observe(time);
        }
        let reading = histogram.read();
        let at = |bound: f64| {
            let of_it: Vec<_> = reading
                .cumulative
                .iter()
                .filter(|(at, _)| *at == bound)
                .collect();
            assert_eq!(of_it.len(), 1, "{bound}: {reading:?}");
            of_it[0].1
        };
        assert_eq!((at(0.00025), at(3.0), at(1024.0)), (1, 2, 3));
        assert_eq!(reading.count, 4);
        assert!((reading.sum - 2_006.0).abs() < 1e-6);
    }

    #[test]
    fn bounds_are_less_than_a_factor_of_1_42_apart() {
        for histogram in [Histogram::seconds(&[]), Histogram::counts()] {
            let cumulative = histogram.read().cumulative;
            for pair in cumulative.windows(2) {
                let factor = pair[1].0 / pair[0].0;
                assert!(1.0 < factor && factor < 1.42, "{pair:?}");
            }
        }
    }

    proptest! {
        #[test]
        fn a_quantile_is_within_42_percent(
            values in prop::collection::vec((0.0_f64..22.0).prop_map(|n| 2.0_f64.powf(n)), 1..60),
            q in 0.01_f64..1.0,
        ) {
            let counts = Histogram::counts();
            let times = Histogram::seconds(&[Span::from_millis(2_500)]);
            let of_counts: Vec<u64> = values.iter().map(|value| value.min(1_048_576.0) as u64).collect();
            let of_times: Vec<u64> = values.iter().map(|value| (value * 250_000.0) as u64).collect();
            of_counts.iter().for_each(|&value| counts.observe_count(value));
            of_times.iter().for_each(|&value| times.observe(Span::from_nanos(value)));
            for (histogram, values, one) in [(&counts, &of_counts, 1.0), (&times, &of_times, 1e9)] {
                let (read, exact) = (quantile(&histogram.read(), q), true_quantile(values, q) as f64 / one);
                prop_assert!((read - exact).abs() <= 0.42 * exact, "{read} for {exact}");
            }
        }
    }

    #[test]
    fn a_device_of_3_ms_a_token_shows_a_median_between_2_and_4_ms() {
        let histogram = Histogram::seconds(&[]);
        (0..100).for_each(|_| histogram.observe(Span::from_millis(3)));
        let median = quantile(&histogram.read(), 0.5);
        assert!((0.002..0.004).contains(&median), "{median}");
    }

    #[test]
    fn nothing_is_lost_when_many_threads_add() {
        let histogram = Histogram::counts();
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| (0..10_000).for_each(|_| histogram.observe_count(3)));
            }
        });
        let reading = histogram.read();
        assert_eq!((reading.count, reading.sum), (40_000, 120_000.0));
    }

    #[test]
    fn the_latest_of_a_bucket_is_its_example() {
        let histogram = Histogram::seconds(&[]).with_examples();
        histogram.exemplify(Span::from_millis(10), "first");
        histogram.exemplify(Span::from_millis(10), "second");
        histogram.exemplify(Span::from_secs(5_000), "beyond");
        let examples = histogram.read().examples;
        let names: Vec<_> = examples
            .iter()
            .flatten()
            .map(|example| &*example.id)
            .collect();
        assert_eq!(names, ["second", "beyond"]);
        assert_eq!(examples.len(), histogram.read().cumulative.len() + 1);
    }

    #[test]
    fn a_name_that_no_format_can_hold_is_no_example() {
        let histogram = Histogram::seconds(&[]).with_examples();
        let named = |millis: u64, id: &str| {
            histogram.exemplify(Span::from_millis(millis), id);
            let examples = histogram.read().examples;
            let found = examples.into_iter().flatten();
            found.last().is_some_and(|example| example.id == id)
        };
        assert!(!named(1, ""));
        assert!(!named(2, &"ä".repeat(119)));
        assert!(named(3, &"ä".repeat(118)));
    }
}
