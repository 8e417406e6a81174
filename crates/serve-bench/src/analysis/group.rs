//! One part of a workload in numbers: how its requests ended, and the percentiles of each metric beside
//! that.

use std::fmt;

use serde::Serialize;

use super::bootstrap::{Bootstrap, Estimate, Scheme};
use super::quantile::Sample;
use super::request::{Kept, Request};
use super::strata::Key;
use super::table::percent;
use super::tokens::Tokens;
use crate::analysis::definitions::Metric;
use crate::store::record::Outcome;

/// The percentiles of every table.
pub(crate) const QUANTILES: [f64; 4] = [0.5, 0.9, 0.95, 0.99];

/// Fewer values than this beyond a percentile, and it rests on too few.
pub(crate) const BEYOND_MIN: usize = 10;

/// How attempts, or requests, ended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Counts {
    /// Whole answers.
    pub ok: u64,
    /// Too busy.
    pub refused: u64,
    /// Anything else that went wrong.
    pub failed: u64,
    /// Cancelled by the workload or by a stop of the run.
    pub cancelled: u64,
    /// Never sent.
    pub not_sent: u64,
}

impl Counts {
    /// Counts ends.
    pub fn of(outcomes: impl IntoIterator<Item = Outcome>) -> Self {
        let mut counts = Self::default();
        for outcome in outcomes {
            let counter = match outcome {
                Outcome::Ok => &mut counts.ok,
                Outcome::Refused => &mut counts.refused,
                Outcome::Failed => &mut counts.failed,
                Outcome::Cancelled => &mut counts.cancelled,
                Outcome::NotSent => &mut counts.not_sent,
            };
            *counter += 1;
        }
        counts
    }

    /// All of them.
    pub fn scheduled(&self) -> u64 {
        self.sent() + self.not_sent
    }

    /// Those that left the client.
    pub fn sent(&self) -> u64 {
        self.ok + self.refused + self.failed + self.cancelled
    }

    /// Those that nobody waited for to the end.
    pub fn unfinished(&self) -> u64 {
        self.cancelled + self.not_sent
    }
}

/// The accounting of a run, in one line.
impl fmt::Display for Counts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} scheduled = {} sent + {} not sent; sent = {} ok + {} refused + {} failed + {} cancelled",
            self.scheduled(),
            self.sent(),
            self.not_sent,
            self.ok,
            self.refused,
            self.failed,
            self.cancelled,
        )
    }
}

/// A percentile.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Percentile {
    /// Which, from 0 to 1.
    pub quantile: f64,
    /// In milliseconds, among the values that there are.
    pub estimate: Estimate,
    /// In milliseconds, among all requests of the group: absent where it falls on one without an
    /// answer. Absent for a metric with many values for each request.
    pub of_all: Option<f64>,
    /// How many values lie beyond it.
    pub beyond: usize,
}

impl Percentile {
    /// Whether it rests on fewer than [`BEYOND_MIN`] values.
    pub fn is_thin(&self) -> bool {
        self.beyond < BEYOND_MIN
    }
}

/// A metric over a group.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Distribution {
    /// Which.
    pub metric: Metric,
    /// How many values there are.
    pub count: usize,
    /// Their mean, in milliseconds.
    pub mean_ms: Option<f64>,
    /// [`QUANTILES`] of them.
    pub percentiles: [Percentile; QUANTILES.len()],
    /// The largest, in milliseconds.
    pub max_ms: Option<f64>,
}

/// A part of the workload in numbers.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Group {
    /// Which part.
    pub key: Key,
    /// How its requests ended, retries not counted.
    pub requests: Counts,
    /// How its attempts ended.
    pub attempts: Counts,
    /// Requests whose answer kept every SLO.
    pub good: u64,
    /// Requests whose answer kept every SLO but that on TPOT, which cannot be told without a count of tokens.
    pub unjudged: u64,
    /// Good requests as a share of all; absent where some are not judged.
    pub good_share: Estimate,
    /// Output tokens of whole answers.
    pub output_tokens: Tokens,
    /// Output tokens of answers that kept every SLO.
    pub good_tokens: Tokens,
    /// One for each metric that has values.
    pub distributions: Vec<Distribution>,
}

impl Group {
    /// A metric of the group, if it has values.
    pub fn distribution(&self, metric: Metric) -> Option<&Distribution> {
        self.distributions.iter().find(|it| it.metric == metric)
    }

    /// The share of good requests, or what it is at least, as a cell of a table.
    pub(crate) fn good_cell(&self) -> String {
        let all = self.requests.scheduled();
        let share = percent((all > 0).then(|| self.good as f64 / all as f64));
        match (self.unjudged, self.good) {
            (0, _) => share,
            (_, 0) => "unknown".to_owned(),
            _ => format!(">= {share}"),
        }
    }

    /// A percentile of a metric, in milliseconds; `quantile` must be one of [`QUANTILES`].
    pub fn percentile_ms(&self, metric: Metric, quantile: f64) -> Option<f64> {
        let percentiles = &self.distribution(metric)?.percentiles;
        let found = percentiles.iter().find(|it| it.quantile == quantile)?;
        found.estimate.value
    }
}

/// The values from which a group's numbers and their intervals are computed.
struct Raw {
    members: Vec<u32>,
    samples: Vec<(Metric, Sample)>,
}

/// Groups with intervals, and how often requests were drawn for these. `kept` says of each request
/// whether it kept every SLO.
pub(super) fn groups(
    requests: &[Request<'_>],
    kept: &[Kept],
    parts: Vec<(Key, Vec<u32>)>,
    scheme: &Scheme,
    bootstrap: &Bootstrap,
) -> (Vec<Group>, u32) {
    let raw = |(key, members): (Key, Vec<u32>)| {
        let sample = |metric: Metric| (metric, sample(metric, requests, &members));
        let samples = Metric::ALL.map(sample).into_iter();
        let samples = samples.filter(|(_, sample)| !sample.is_empty()).collect();
        (key, Raw { members, samples })
    };
    let (keys, raws): (Vec<_>, Vec<_>) = parts.into_iter().map(raw).unzip();
    let visits = |raw: &Raw| raw.samples.iter().map(|it| it.1.len()).sum::<usize>();
    let resamples = bootstrap.affordable(raws.iter().map(visits).sum());
    let statistics = |raw: &Raw| 1 + QUANTILES.len() * raw.samples.len();
    let intervals = bootstrap.intervals(
        scheme,
        resamples,
        raws.iter().map(statistics).sum(),
        |weights, out| {
            for raw in &raws {
                out.push(weighted_share(kept, &raw.members, weights));
                for (_, sample) in &raw.samples {
                    out.extend(sample.weighted(weights, QUANTILES));
                }
            }
        },
    );
    let mut intervals = intervals.into_iter();
    let groups = keys.into_iter().zip(&raws).map(|(key, raw)| {
        let mut next = || intervals.next().flatten();
        group(key, raw, requests, kept, &mut next)
    });
    (groups.collect(), resamples)
}

fn group(
    key: Key,
    raw: &Raw,
    requests: &[Request<'_>],
    kept: &[Kept],
    next: &mut impl FnMut() -> Option<[f64; 2]>,
) -> Group {
    let members = || raw.members.iter().map(|&position| position as usize);
    let is = |position: &usize, verdict| kept[*position] == verdict;
    let answer = |position: usize| requests[position].answer();
    let attempts = members().flat_map(|position| requests[position].attempts());
    let good = members().filter(|it| is(it, Kept::Yes));
    let unjudged = members().filter(|it| is(it, Kept::Unknown)).count();
    let all = raw.members.len();
    let judged = all > 0 && unjudged == 0;
    let good_share = Estimate {
        value: judged.then(|| good.clone().count() as f64 / all as f64),
        interval: next().filter(|_| judged),
    };
    let distribution = |(metric, sample): &(Metric, Sample)| {
        let percentile = |quantile| Percentile {
            quantile,
            estimate: Estimate {
                value: sample.quantile(quantile),
                interval: next(),
            },
            of_all: is_one_each(*metric)
                .then(|| sample.quantile_among(quantile, all))
                .flatten(),
            beyond: beyond(sample.len(), quantile),
        };
        Distribution {
            metric: *metric,
            count: sample.len(),
            mean_ms: Some(sample.values().sum::<f64>() / sample.len() as f64),
            percentiles: QUANTILES.map(percentile),
            max_ms: sample.quantile(1.0),
        }
    };
    Group {
        key,
        requests: Counts::of(members().map(|position| requests[position].last().outcome)),
        attempts: Counts::of(attempts.map(|attempt| attempt.outcome)),
        good: good.clone().count() as u64,
        unjudged: unjudged as u64,
        good_share,
        output_tokens: Tokens::of(members().filter_map(answer)),
        good_tokens: Tokens::of(good.filter_map(answer)),
        distributions: raw.samples.iter().map(distribution).collect(),
    }
}

/// The values of a metric of some requests.
pub(crate) fn sample(metric: Metric, requests: &[Request<'_>], members: &[u32]) -> Sample {
    let mut values = Vec::new();
    let of = |&position: &u32| {
        values.clear();
        metric.values(&requests[position as usize], &mut values);
        let values = values.iter().map(|value| (position, *value));
        values.collect::<Vec<_>>()
    };
    Sample::new(members.iter().flat_map(of))
}

/// Whether a request has at most one value of a metric, which it lacks only without an answer.
fn is_one_each(metric: Metric) -> bool {
    use Metric::{E2e, E2eSent, Ttft, TtftSent};
    matches!(metric, Ttft | TtftSent | E2e | E2eSent)
}

fn beyond(count: usize, quantile: f64) -> usize {
    count - (quantile * count as f64 - 1e-9).ceil().max(0.0) as usize
}

fn weighted_share(kept: &[Kept], members: &[u32], weights: &[u32]) -> Option<f64> {
    let (mut all, mut good) = (0_u64, 0_u64);
    for &position in members {
        let weight = u64::from(weights[position as usize]);
        all += weight;
        good += weight * u64::from(kept[position as usize] == Kept::Yes);
    }
    (all > 0).then(|| good as f64 / all as f64)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::analysis::testing::{answer, numbered, refused};

    #[test]
    fn a_fast_few_do_not_hide_the_many_that_got_nothing() {
        // A: twenty of a hundred answered at once. B: a hundred answered after a second.
        let fast = numbered((0..100).map(|i| match i < 20 {
            true => answer(0, &[200], Some(1)),
            false => refused(0),
        }));
        let slow = numbered((0..100).map(|_| answer(0, &[1_000], Some(1))));
        let group = |rows: &[crate::store::record::Record]| {
            let requests = Request::all(rows, 0);
            let kept = |it: &Request<'_>| match it.answer() {
                Some(_) => Kept::Yes,
                None => Kept::No,
            };
            let kept = requests.iter().map(kept).collect::<Vec<_>>();
            let parts = vec![(Key::All, (0..100).collect())];
            let bootstrap = Bootstrap {
                resamples: 100,
                ..Bootstrap::default()
            };
            let scheme = Scheme::new(vec![100]);
            groups(&requests, &kept, parts, &scheme, &bootstrap)
                .0
                .remove(0)
        };
        let (fast, slow) = (group(&fast), group(&slow));
        let p95 = |group: &Group| group.distribution(Metric::Ttft).unwrap().percentiles[2];
        assert_eq!(p95(&fast).estimate.value, Some(200.0));
        assert_eq!(
            (p95(&fast).of_all, p95(&slow).of_all),
            (None, Some(1_000.0))
        );
        assert!(p95(&fast).is_thin(), "one of twenty lies beyond");
        assert_eq!(
            (fast.good_share.value, slow.good_share.value),
            (Some(0.2), Some(1.0))
        );
        assert_eq!((fast.requests.refused, fast.requests.ok), (80, 20));
        let [low, high] = fast.good_share.interval.unwrap();
        assert!(low < 0.2 && 0.2 < high, "{low} {high}");
    }

    #[test]
    fn thin_percentiles_are_known_as_such() {
        assert_eq!([beyond(1_000, 0.99), beyond(999, 0.99)], [10, 9]);
        assert_eq!(
            [beyond(100, 0.5), beyond(1, 0.5), beyond(0, 0.5)],
            [50, 0, 0]
        );
    }
}
