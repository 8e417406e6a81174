//! Little's law, L = lambda W: the mean number in flight is the rate of arrivals times the mean stay
//! (Little, *A Proof for the Queuing Formula L = lambda W*, Operations Research 9, 1961).
//!
//! It is an identity of steady flows, so a gap between the two sides says that the run was none: the
//! queue grew or drained while it was watched. That they agree says only that few stays cross the ends of the window: a
//! stall in the middle, or bursts, leave no gap. It says nothing of capacity or of tails.

use serde::Serialize;

/// Both sides, over the time in which requests arrived.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Little {
    /// L: the mean number of requests in flight, integrated over the window.
    pub in_flight_mean: f64,
    /// lambda: arrivals a second in the window.
    pub arrivals_per_s: f64,
    /// W: the mean stay of those that arrived in the window, in seconds.
    pub stay_mean_s: f64,
    /// (lambda W - L) / L. Positive: requests that arrived in the window left after it, so the queue
    /// grew.
    pub gap: f64,
}

/// The gap up to which both sides agree.
pub(crate) const AGREE_GAP: f64 = 0.1;

impl Little {
    /// From the stays of all requests that were sent, as (arrival, departure) in nanoseconds, whatever
    /// their end. The window runs from the first arrival to the last. Absent for fewer than two
    /// arrivals, or when all arrived at once.
    pub fn of(stays: &[(u64, u64)]) -> Option<Self> {
        let start = stays.iter().map(|stay| stay.0).min()?;
        let end = stays.iter().map(|stay| stay.0).max()?;
        let window_s = seconds(end - start);
        // The last arrival opens no further gap, and its stay lies outside.
        let inside = stays.iter().filter(|stay| stay.0 < end);
        let arrivals = inside.clone().count();
        if window_s <= 0.0 || arrivals == 0 {
            return None;
        }
        let stayed = inside
            .clone()
            .map(|stay| seconds(stay.1 - stay.0))
            .sum::<f64>();
        let within = inside.map(|stay| seconds(stay.1.min(end).saturating_sub(stay.0)));
        let in_flight_mean = within.sum::<f64>() / window_s;
        let arrivals_per_s = arrivals as f64 / window_s;
        let stay_mean_s = stayed / arrivals as f64;
        let gap = (arrivals_per_s * stay_mean_s - in_flight_mean) / in_flight_mean;
        (in_flight_mean > 0.0).then_some(Self {
            in_flight_mean,
            arrivals_per_s,
            stay_mean_s,
            gap,
        })
    }

    /// Whether both sides agree within [`AGREE_GAP`].
    pub fn agrees(&self) -> bool {
        self.gap.abs() <= AGREE_GAP
    }
}

fn seconds(nanos: u64) -> f64 {
    nanos as f64 / 1e9
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    /// One arrival every `gap` ms for 100 s, each of which stays as long as `stay` says.
    fn run(gap: u64, stay: impl Fn(u64) -> u64) -> Little {
        let stays = (0..=100_000 / gap).map(|i| {
            let arrival = i * gap * MS;
            (arrival, arrival + stay(i) * MS)
        });
        Little::of(&stays.collect::<Vec<_>>()).unwrap()
    }

    #[test]
    fn eight_a_second_for_half_a_second_are_four() {
        let steady = run(125, |_| 500);
        assert!((steady.arrivals_per_s - 8.0).abs() < 1e-9, "{steady:?}");
        assert!((steady.stay_mean_s - 0.5).abs() < 1e-9, "{steady:?}");
        // The window opens empty and fills within the first half second.
        assert!((steady.in_flight_mean - 4.0).abs() < 0.02, "{steady:?}");
        assert!(steady.agrees());
        // The same rate with a stay of two seconds: sixteen.
        let long = run(125, |_| 2_000);
        assert!((long.in_flight_mean - 16.0).abs() < 0.4, "{long:?}");
    }

    #[test]
    fn a_queue_that_grows_is_not_steady() {
        // Each waits 20 ms longer than the one before: 160 ms more for each second that passes.
        let overload = run(125, |i| 500 + 20 * i);
        assert!(!overload.agrees(), "{overload:?}");
        assert!(overload.gap > 0.05, "{overload:?}");
    }

    #[test]
    fn the_law_is_exact_when_all_have_left() {
        // By hand: [0, 3), [1, 2), [4, 4): over 4 s, L = (3 + 1) / 4, lambda = 2 / 4, W = 4 / 2.
        let s = 1_000 * MS;
        let law = Little::of(&[(0, 3 * s), (s, 2 * s), (4 * s, 4 * s)]).unwrap();
        assert!((law.in_flight_mean - 1.0).abs() < 1e-12);
        assert!((law.arrivals_per_s - 0.5).abs() < 1e-12);
        assert!((law.stay_mean_s - 2.0).abs() < 1e-12);
        assert!(law.gap.abs() < 1e-12);
        assert_eq!(Little::of(&[]), None);
        assert_eq!(Little::of(&[(5, 9), (5, 9)]), None);
    }
}
