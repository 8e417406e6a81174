//! Whether a run was steady: its first, middle and last third side by side.
//!
//! A queue that grows, a warm-up, a stall and bursts all show as thirds that differ, where [Little's law](super::little)
//! may hold all the same. Thirds of few requests differ by chance, which is said with the verdict.

use serde::Serialize;

/// One third of the time in which requests were sent.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Third {
    /// Requests that were sent in it.
    pub requests: usize,
    /// The mean number in flight, integrated over it.
    pub in_flight_mean: f64,
    /// The median time to the first token of those sent in it, in milliseconds; absent where none has one.
    pub ttft_p50_ms: Option<f64>,
}

/// The thirds of a run, in order.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Thirds(pub [Third; 3]);

/// What a request did: when it was sent, when it ended, and its time to the first token, in nanoseconds.
pub(crate) type Stay = (u64, u64, Option<u64>);

/// How many times the least of the thirds the largest may be.
const FACTOR_MAX: f64 = 1.5;

/// In thirds of fewer requests a difference may be chance.
const REQUESTS_MIN: usize = 30;

/// What the thirds say.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// None is more than half as large again as another.
    Steady,
    /// Some are.
    Differ,
    /// Some are, and a third has so few requests that this may be chance.
    DifferOrChance,
}

impl Thirds {
    /// From all requests that were sent, whatever their end. The window runs from the first to the last of them.
    /// Absent for fewer than three requests, or where all were sent at once. O(n log n).
    pub(crate) fn of(stays: &[Stay]) -> Option<Self> {
        let start = stays.iter().map(|stay| stay.0).min()?;
        let end = stays.iter().map(|stay| stay.0).max()?;
        if stays.len() < 3 || end - start < 3 {
            return None;
        }
        let bound = |third: u64| start + (end - start) * third / 3;
        let third = |index: u64| {
            let (from, to) = (bound(index), bound(index + 1));
            // The last request is sent as the window ends.
            let is_last = index == 2;
            let sent = |at: u64| from <= at && (at < to || is_last);
            let inside: Vec<_> = stays.iter().filter(|stay| sent(stay.0)).collect();
            let overlap = |&(sent, ended, _): &Stay| ended.min(to).saturating_sub(sent.max(from));
            let stayed: u64 = stays.iter().map(overlap).sum();
            let mut first: Vec<u64> = inside.iter().filter_map(|stay| stay.2).collect();
            first.sort_unstable();
            let median = first.get(first.len().saturating_sub(1) / 2);
            Third {
                requests: inside.len(),
                in_flight_mean: stayed as f64 / (to - from) as f64,
                ttft_p50_ms: median.map(|&nanos| nanos as f64 / 1e6),
            }
        };
        Some(Self([third(0), third(1), third(2)]))
    }

    pub(crate) fn verdict(&self) -> Verdict {
        let in_flight = self.0.map(|third| third.in_flight_mean);
        let ttft = self.0.map(|third| third.ttft_p50_ms);
        // A third in which nobody was answered is as different as can be from one in which somebody was.
        let ttft = match ttft.iter().all(Option::is_none) {
            true => [1.0; 3],
            false => ttft.map(|ttft| ttft.unwrap_or(f64::INFINITY)),
        };
        let fewest = self.0.iter().map(|third| third.requests).min();
        match differ(in_flight) || differ(ttft) {
            false => Verdict::Steady,
            true if fewest < Some(REQUESTS_MIN) => Verdict::DifferOrChance,
            true => Verdict::Differ,
        }
    }
}

fn differ(values: [f64; 3]) -> bool {
    let most = values.into_iter().fold(0.0, f64::max);
    let least = values.into_iter().fold(f64::INFINITY, f64::min);
    most > FACTOR_MAX * least
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    /// Requests every `gap` ms for `seconds`; each has its first token after so many ms, and stays as long again.
    fn run(seconds: u64, gap: u64, ttft: impl Fn(u64) -> u64) -> Thirds {
        let stays = (0..=seconds * 1_000 / gap).map(|i| {
            let (sent, first) = (i * gap * MS, ttft(i * gap) * MS);
            (sent, sent + 2 * first, Some(first))
        });
        Thirds::of(&stays.collect::<Vec<_>>()).unwrap()
    }

    #[test]
    fn equal_thirds_are_steady() {
        let thirds = run(90, 100, |_| 200);
        assert_eq!(thirds.verdict(), Verdict::Steady);
        for third in thirds.0 {
            assert!((third.in_flight_mean - 4.0).abs() < 0.05, "{third:?}");
            assert_eq!(third.ttft_p50_ms, Some(200.0));
        }
        assert_eq!(thirds.0.map(|third| third.requests), [300, 300, 301]);
    }

    #[test]
    fn a_queue_that_grows_or_drains_a_stall_and_a_warm_up_are_not() {
        let grows = run(90, 100, |at| 200 + at / 100);
        let drains = run(90, 100, |at| 2_000 - at / 50);
        // All that come in ten seconds of the middle wait for their end.
        let stall = run(90, 100, |at| match at {
            40_000..50_000 => 50_200 - at,
            _ => 200,
        });
        let warm_up = run(90, 100, |at| if at < 30_000 { 900 } else { 200 });
        for (name, thirds) in [
            ("grows", grows),
            ("drains", drains),
            ("stall", stall),
            ("warm", warm_up),
        ] {
            assert_eq!(thirds.verdict(), Verdict::Differ, "{name}: {thirds:?}");
        }
    }

    /// One a second, and a server that stands still for four of ten seconds.
    #[test]
    fn thirds_of_few_requests_are_said_to_be_such() {
        let stall = run(9, 1_000, |at| match at {
            2_000..6_000 => 6_000 - at,
            _ => 20,
        });
        assert_eq!(stall.verdict(), Verdict::DifferOrChance, "{stall:?}");
    }

    #[test]
    fn a_third_without_an_answer_differs_and_a_run_without_any_has_no_first_token() {
        let mut stays: Vec<Stay> = (0..300).map(|i| (i * MS, (i + 4) * MS, Some(MS))).collect();
        assert_eq!(Thirds::of(&stays).unwrap().verdict(), Verdict::Steady);
        stays[..100].iter_mut().for_each(|stay| stay.2 = None);
        assert_eq!(Thirds::of(&stays).unwrap().verdict(), Verdict::Differ);
        stays.iter_mut().for_each(|stay| stay.2 = None);
        assert_eq!(Thirds::of(&stays).unwrap().verdict(), Verdict::Steady);
    }

    #[test]
    fn too_few_requests_or_one_instant_have_no_thirds_and_a_few_are_never_told_from_chance() {
        let every = |n: u64| (0..n).map(|i| (i * MS, (i + 4) * MS, Some(MS)));
        for n in 0..3 {
            assert_eq!(Thirds::of(&every(n).collect::<Vec<_>>()), None, "{n}");
        }
        for n in [3, 400] {
            assert_eq!(Thirds::of(&vec![(5, 9, Some(1)); n]), None, "{n} at once");
        }
        // The last of five alone waits long, or the middle third has none at all.
        let mut late: Vec<Stay> = every(5).collect();
        late[4] = (4 * MS, 90 * MS, Some(80 * MS));
        let apart = [0, 1, 98, 99, 100].map(|at| (at * MS, (at + 1) * MS, Some(MS)));
        for stays in [&late[..], &apart] {
            let thirds = Thirds::of(stays).unwrap();
            assert_eq!(thirds.verdict(), Verdict::DifferOrChance, "{thirds:?}");
        }
    }
}
