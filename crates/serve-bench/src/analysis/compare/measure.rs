//! What two runs are compared by.

use std::fmt;

use serde::{Serialize, Serializer};

use crate::analysis::definitions::Metric;
use crate::analysis::group::sample;
use crate::analysis::request::{Kept, Request};

/// A number of a run, or of a part of one.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Measure {
    /// The share of requests that got a whole answer.
    Answered,
    /// The share of requests whose answer kept every SLO.
    Good,
    /// A percentile of a time of answered requests.
    Percentile(Metric, f64),
}

impl Measure {
    /// All that a comparison looks at; goodput only where a limit is set.
    pub(crate) fn all(has_slo: bool) -> Vec<Self> {
        let good = has_slo.then_some(Self::Good);
        let times = [
            Self::Percentile(Metric::Ttft, 0.5),
            Self::Percentile(Metric::Ttft, 0.99),
            Self::Percentile(Metric::Tpot, 0.5),
            Self::Percentile(Metric::E2e, 0.5),
            Self::Percentile(Metric::E2e, 0.99),
        ];
        [Self::Answered]
            .into_iter()
            .chain(good)
            .chain(times)
            .collect()
    }

    /// Its value over some requests; `kept` says of each whether it kept every SLO. Absent where no
    /// request has one, and for the good share where some cannot be judged.
    pub(super) fn of(self, requests: &[Request<'_>], kept: &[Kept]) -> Option<f64> {
        let share = |count: usize| {
            let all = requests.len();
            (all > 0).then(|| count as f64 / all as f64)
        };
        match self {
            Self::Answered => share(requests.iter().filter(|it| it.answer().is_some()).count()),
            Self::Good if kept.contains(&Kept::Unknown) => None,
            Self::Good => share(kept.iter().filter(|kept| **kept == Kept::Yes).count()),
            Self::Percentile(metric, quantile) => {
                let members = (0..requests.len() as u32).collect::<Vec<_>>();
                sample(metric, requests, &members).quantile(quantile)
            }
        }
    }

    /// On what scale a difference is taken: times by their ratio, shares as they are.
    pub(super) fn scaled(self, value: f64) -> Option<f64> {
        match self {
            Self::Percentile(..) => (value > 0.0).then(|| value.ln()),
            Self::Answered | Self::Good => Some(value),
        }
    }

    /// What a difference on that scale says, as a change: +0.1 is a tenth longer, or ten percentage
    /// points more.
    pub(super) fn change(self, difference: f64) -> f64 {
        match self {
            Self::Percentile(..) => difference.exp() - 1.0,
            // A share has no more room than from none to all.
            Self::Answered | Self::Good => difference.clamp(-1.0, 1.0),
        }
    }

    /// Whether less is better.
    pub(crate) fn is_time(self) -> bool {
        matches!(self, Self::Percentile(..))
    }
}

impl fmt::Display for Measure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Answered => f.write_str("answered"),
            Self::Good => f.write_str("good share"),
            Self::Percentile(metric, quantile) => {
                write!(f, "{} p{}", metric.name(), quantile * 100.0)
            }
        }
    }
}

impl Serialize for Measure {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}
