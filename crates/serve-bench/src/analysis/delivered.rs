//! Whether the load that was asked for is the load that was sent. If the client was the bottleneck, the
//! run says nothing about the server and is void.
//!
//! Three questions to the rows of an open loop: was the rate delivered; was every request sent when it
//! was due; and do the gaps between sends have the distribution of the planned gaps. A closed loop has
//! no schedule, and only its lag is asked. A fourth question is to the manifest: was the client itself
//! awake when something came.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::store::folder::Run;
use crate::store::manifest::ClientLoad;
use crate::store::record::Record;
use crate::workload::spec::DeliveryLimits;
use crate::workload::spec::{Arrivals, Spec};

/// What was delivered of what was offered.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
#[serde(default)]
pub struct Delivered {
    /// Sends that were due a second, from the first to the last. Retries and later turns are not
    /// counted: they have no schedule. Absent in a closed loop.
    pub offered_per_s: Option<f64>,
    /// Actual sends a second of the same requests.
    pub delivered_per_s: Option<f64>,
    /// Actual minus scheduled send of every attempt, 50th percentile, in milliseconds.
    pub lag_p50_ms: Option<f64>,
    /// The same, 99th percentile.
    pub lag_p99_ms: Option<f64>,
    /// The same, the greatest.
    pub lag_max_ms: Option<f64>,
    /// How far apart the distributions of planned and actual gaps are (see [`gap_distance`]): 0 is
    /// equal, 1 as different as can be.
    pub gap_distance: Option<f64>,
    /// The planned gaps' coefficient of variation. 1 is Poisson.
    pub planned_gap_cv: Option<f64>,
    /// The actual gaps' coefficient of variation.
    pub actual_gap_cv: Option<f64>,
    /// For Poisson arrivals: the probability that gaps as far from the exponential distribution as the
    /// actual ones come out of it by chance (Kolmogorov and Smirnov).
    pub poisson_p: Option<f64>,
    /// Why the run is void; empty if the load was delivered.
    pub void: Vec<Void>,
}

/// A reason why a run says nothing about the server.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Serialize)]
#[serde(tag = "reason", rename_all = "snake_case")]
pub enum Void {
    /// Too few requests a second.
    Rate {
        /// Delivered / offered.
        share: f64,
        /// The least that is accepted.
        min: f64,
    },
    /// Requests were sent late.
    Lag {
        /// 99th percentile of actual minus scheduled send.
        p99_ms: f64,
        /// The most that is accepted.
        max_ms: f64,
    },
    /// Requests were sent in another rhythm.
    Gaps {
        /// The distance of the distributions.
        distance: f64,
        /// The most that is accepted.
        max: f64,
    },
    /// The client woke up late, and noted times late.
    Wake {
        /// 99th percentile of how late.
        p99_ms: f64,
        /// The most that is accepted.
        max_ms: f64,
    },
}

impl fmt::Display for Void {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Rate { share, min } => write!(
                f,
                "the client delivered {:.1}% of the offered rate; at least {:.1}% is asked",
                share * 100.0,
                min * 100.0
            ),
            Self::Lag { p99_ms, max_ms } => write!(
                f,
                "the client sent late: schedule lag p99 {p99_ms:.1} ms; at most {max_ms} ms is asked"
            ),
            Self::Gaps { distance, max } => write!(
                f,
                "the client sent in another rhythm: the gaps' distributions are {distance:.2} apart; at \
                 most {max} is asked"
            ),
            Self::Wake { p99_ms, max_ms } => write!(
                f,
                "the client noted times late: its clockwork woke {p99_ms:.1} ms late (p99); at most \
                 {max_ms} ms is asked"
            ),
        }
    }
}

/// Differences of gaps below this are the client's clock, and no difference.
const GAP_TOLERANCE_NS: u64 = 1_000_000;

/// Nor are differences below this share of the mean gap: a request that comes 5% of a gap earlier or
/// later meets the same server.
const GAP_TOLERANCE_SHARE: f64 = 0.05;

impl Delivered {
    /// Of a whole run, its warm-up left out.
    pub fn of_run(run: &Run) -> Self {
        let measurement = &run.manifest.measurement;
        let measured = |row: &&Record| row.scheduled_ns >= measurement.warmup_ns;
        let rows = run.records.iter().filter(measured).collect::<Vec<_>>();
        let spec = Spec::parse("manifest", &run.manifest.workload.spec).ok();
        let poisson = spec.and_then(|spec| match spec.arrivals {
            Arrivals::Poisson { rate_per_s } => Some(rate_per_s.get()),
            _ => None,
        });
        Self::of(
            &rows,
            &measurement.delivery,
            poisson,
            measurement.client.as_ref(),
        )
    }

    /// Of rows. `poisson_per_s` is the rate of arrivals that were meant to be Poisson.
    pub fn of(
        rows: &[&Record],
        limits: &DeliveryLimits,
        poisson_per_s: Option<f64>,
        client: Option<&ClientLoad>,
    ) -> Self {
        let mut lags = rows
            .iter()
            .filter_map(|row| Some(row.sent_ns?.saturating_sub(row.scheduled_ns)))
            .collect::<Vec<_>>();
        lags.sort_unstable();
        let mut delivered = Self {
            lag_p50_ms: quantile_ms(&lags, 0.5),
            lag_p99_ms: quantile_ms(&lags, 0.99),
            lag_max_ms: quantile_ms(&lags, 1.0),
            ..Self::default()
        };
        let first =
            |row: &&&Record| row.client.is_none() && row.attempt == 0 && row.turn.unwrap_or(0) == 0;
        let sent = rows
            .iter()
            .filter(first)
            .filter_map(|row| Some((row.scheduled_ns, row.sent_ns?)));
        let (mut planned, mut actual): (Vec<_>, Vec<_>) = sent.unzip();
        planned.sort_unstable();
        actual.sort_unstable();
        delivered.compare(&planned, &actual, poisson_per_s);
        delivered.judge(limits, client);
        delivered
    }

    fn compare(&mut self, planned: &[u64], actual: &[u64], poisson_per_s: Option<f64>) {
        self.offered_per_s = rate(planned);
        self.delivered_per_s = rate(actual);
        let (planned, actual) = (gaps(planned), gaps(actual));
        if planned.is_empty() {
            return;
        }
        let mean = planned.iter().sum::<u64>() as f64 / planned.len() as f64;
        let tolerance = GAP_TOLERANCE_NS.max((mean * GAP_TOLERANCE_SHARE) as u64);
        self.gap_distance = Some(gap_distance(&planned, &actual, tolerance));
        self.planned_gap_cv = variation(&planned);
        self.actual_gap_cv = variation(&actual);
        self.poisson_p = poisson_per_s.map(|rate| poisson_p(&actual, rate));
    }

    fn judge(&mut self, limits: &DeliveryLimits, client: Option<&ClientLoad>) {
        let share = self
            .offered_per_s
            .zip(self.delivered_per_s)
            .map(|(offered, delivered)| delivered / offered);
        let (min, max, max_ms) = (
            limits.rate_share_min,
            limits.gap_distance_max,
            limits.lag_p99_ms_max,
        );
        let rate = share
            .filter(|share| *share < min)
            .map(|share| Void::Rate { share, min });
        let lag = self.lag_p99_ms.filter(|lag| *lag > max_ms);
        let lag = lag.map(|p99_ms| Void::Lag { p99_ms, max_ms });
        let gaps = self.gap_distance.filter(|distance| *distance > max);
        let gaps = gaps.map(|distance| Void::Gaps { distance, max });
        let wake = client
            .map(|client| client.wake_lag_p99_ms)
            .filter(|lag| *lag > max_ms);
        let wake = wake.map(|p99_ms| Void::Wake { p99_ms, max_ms });
        self.void = [rate, lag, gaps, wake].into_iter().flatten().collect();
    }
}

fn quantile_ms(nanos: &[u64], quantile: f64) -> Option<f64> {
    super::quantile(nanos.iter().map(|nanos| *nanos as f64 / 1e6), quantile)
}

fn rate(sorted: &[u64]) -> Option<f64> {
    let span = sorted
        .last()?
        .checked_sub(*sorted.first()?)
        .filter(|span| *span > 0)?;
    Some((sorted.len() - 1) as f64 * 1e9 / span as f64)
}

fn gaps(sorted: &[u64]) -> Vec<u64> {
    let mut gaps = sorted
        .windows(2)
        .map(|pair| pair[1] - pair[0])
        .collect::<Vec<_>>();
    gaps.sort_unstable();
    gaps
}

fn variation(gaps: &[u64]) -> Option<f64> {
    let n = gaps.len() as f64;
    let mean = gaps.iter().map(|gap| *gap as f64).sum::<f64>() / n;
    let variance = gaps
        .iter()
        .map(|gap| (*gap as f64 - mean).powi(2))
        .sum::<f64>()
        / n;
    (mean > 0.0).then(|| variance.sqrt() / mean)
}

/// The Kolmogorov-Smirnov distance of two sorted samples, where a shift of up to `tolerance` is no
/// difference: the largest share of one sample that lies above, or below, everything that the other has
/// there when it is moved by `tolerance`.
pub(crate) fn gap_distance(a: &[u64], b: &[u64], tolerance: u64) -> f64 {
    one_sided(a, b, tolerance).max(one_sided(b, a, tolerance))
}

/// The largest excess of F_a(x) over F_b(x + tolerance).
fn one_sided(a: &[u64], b: &[u64], tolerance: u64) -> f64 {
    let share = |sorted: &[u64], x: u64| {
        sorted.partition_point(|value| *value <= x) as f64 / sorted.len() as f64
    };
    let excess = a
        .iter()
        .map(|x| share(a, *x) - share(b, x.saturating_add(tolerance)));
    excess.fold(0.0, f64::max)
}

/// The Kolmogorov-Smirnov test of sorted gaps against the exponential distribution of a rate.
/// Asymptotic, with the correction for small samples of Stephens (1970).
fn poisson_p(gaps: &[u64], rate_per_s: f64) -> f64 {
    let n = gaps.len() as f64;
    let distance = gaps.iter().zip(0..).map(|(gap, rank)| {
        let expected = 1.0 - (-rate_per_s * *gap as f64 / 1e9).exp();
        let (below, at) = (f64::from(rank) / n, f64::from(rank + 1) / n);
        (expected - below).max(at - expected)
    });
    let distance = distance.fold(0.0, f64::max);
    let root = n.sqrt();
    let lambda = (root + 0.12 + 0.11 / root) * distance;
    let term = |k: i32| {
        let sign = if k % 2 == 1 { 1.0 } else { -1.0 };
        sign * (-2.0 * f64::from(k * k) * lambda * lambda).exp()
    };
    // The series does not converge where the probability is 1 to many digits.
    if lambda < 0.2 {
        1.0
    } else {
        (2.0 * (1..=100).map(term).sum::<f64>()).clamp(0.0, 1.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serve_core::rng::Rng;

    const MS: u64 = 1_000_000;

    fn sent(times_ms: &[(u64, u64)]) -> Vec<Record> {
        let row = |(due, sent): &(u64, u64)| Record {
            sent_ns: Some(sent * MS),
            ..Record::not_sent(0, due * MS)
        };
        times_ms.iter().map(row).collect()
    }

    fn delivered(rows: &[Record]) -> Delivered {
        let rows = rows.iter().collect::<Vec<_>>();
        Delivered::of(&rows, &DeliveryLimits::default(), None, None)
    }

    #[test]
    fn a_client_that_keeps_its_schedule_has_delivered() {
        let rows = sent(
            &(0..200)
                .map(|i| (i * 100, i * 100 + i % 2))
                .collect::<Vec<_>>(),
        );
        let delivered = delivered(&rows);
        assert_eq!(delivered.void, []);
        assert_eq!(delivered.offered_per_s, Some(10.0));
        assert_eq!(
            (delivered.lag_p50_ms, delivered.lag_max_ms),
            (Some(0.0), Some(1.0))
        );
        assert_eq!(
            delivered.gap_distance,
            Some(0.0),
            "a hundredth of a gap is no difference"
        );
    }

    #[test]
    fn a_client_that_falls_behind_is_void_by_rate_and_by_lag() {
        let rows = sent(&(0..200).map(|i| (i * 100, i * 110)).collect::<Vec<_>>());
        let delivered = delivered(&rows);
        assert!((delivered.delivered_per_s.unwrap() - 1_000.0 / 110.0).abs() < 1e-9);
        assert!(
            matches!(delivered.void[0], Void::Rate { .. }),
            "{:?}",
            delivered.void
        );
        assert!(
            matches!(delivered.void[1], Void::Lag { .. }),
            "{:?}",
            delivered.void
        );
        assert!(
            matches!(delivered.void[2], Void::Gaps { .. }),
            "{:?}",
            delivered.void
        );
        let said = delivered.void[0].to_string();
        assert_eq!(
            said,
            "the client delivered 90.9% of the offered rate; at least 98.0% is asked"
        );
    }

    #[test]
    fn a_client_that_sends_in_clumps_is_void_though_rate_and_lag_are_kept() {
        // Ten at once every 20 ms, where one every 2 ms was planned.
        let rows = sent(
            &(0..1_000)
                .map(|i| (i * 2, (i / 10) * 20 + 18))
                .collect::<Vec<_>>(),
        );
        let delivered = delivered(&rows);
        assert!((delivered.delivered_per_s.unwrap() / 500.0 - 1.0).abs() < 0.02);
        assert!(
            matches!(delivered.void[..], [Void::Gaps { .. }]),
            "{:?}",
            delivered.void
        );
        assert_eq!(delivered.planned_gap_cv, Some(0.0));
        assert!(delivered.actual_gap_cv > Some(2.0));
    }

    #[test]
    fn poisson_gaps_pass_for_poisson_and_even_ones_do_not() {
        let mut rng = Rng::new(1);
        let mut gaps = (0..2_000)
            .map(|_| (rng.exponential(0.1) * 1e9) as u64)
            .collect::<Vec<_>>();
        gaps.sort_unstable();
        assert!(poisson_p(&gaps, 10.0) > 0.05, "{}", poisson_p(&gaps, 10.0));
        assert!(poisson_p(&gaps, 13.0) < 0.001);
        assert!(poisson_p(&vec![100 * MS; 2_000], 10.0) < 1e-6);
    }

    #[test]
    fn the_probability_is_the_tabulated_one() {
        // Two gaps, at the medians of two halves: D = 0.25, lambda = (1.4142 + 0.12 + 0.0778) / 4.
        let at = |share: f64| (-(1.0 - share).ln() * 1e9) as u64;
        let p = poisson_p(&[at(0.25), at(0.75)], 1.0);
        assert!((p - 0.997).abs() < 0.002, "{p}");
        // Kolmogorov's 5% point, 1.358, for a large sample: D = 1.358 / sqrt(n).
        let n = 1_000_000_u64;
        let d = 1.358 / (n as f64).sqrt();
        let shifted = (0..n).map(|i| at(((i as f64 + 0.5) / n as f64 - d).max(1e-12)));
        let p = poisson_p(&shifted.collect::<Vec<_>>(), 1.0);
        assert!((p - 0.05).abs() < 0.002, "{p}");
    }

    #[test]
    fn a_closed_loop_is_asked_for_its_lag_alone_and_a_sleepy_client_is_void() {
        let mut rows = sent(&(0..50).map(|i| (i, i)).collect::<Vec<_>>());
        rows.iter_mut().for_each(|row| row.client = Some(0));
        let rows = rows.iter().collect::<Vec<_>>();
        let client = ClientLoad {
            wake_lag_p99_ms: 35.0,
            ..ClientLoad::default()
        };
        let delivered = Delivered::of(&rows, &DeliveryLimits::default(), None, Some(&client));
        assert_eq!(
            (delivered.offered_per_s, delivered.gap_distance),
            (None, None)
        );
        assert!(
            matches!(delivered.void[..], [Void::Wake { .. }]),
            "{:?}",
            delivered.void
        );
        assert_eq!(self::delivered(&[]).void, []);
    }
}
