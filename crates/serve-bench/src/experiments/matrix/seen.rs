//! A point in the few numbers that tables of the matrix are made of.

use crate::analysis::bootstrap::Bootstrap;
use crate::analysis::definitions::Metric;
use crate::analysis::group::{Counts, Group};
use crate::analysis::strata::Key;
use crate::analysis::{Analysis, AnalysisOptions};
use crate::experiments::series::Point;
use crate::store::record::{Outcome, Record};
use crate::store::timeline::Sample;

/// What a point says.
pub(super) struct Seen<'a> {
    analysis: Analysis,
    point: &'a Point,
}

impl<'a> Seen<'a> {
    pub(super) fn of(point: &'a Point) -> Self {
        Self::priced(point, None)
    }

    /// The same with what a million output tokens cost.
    pub(super) fn priced(point: &'a Point, price_per_hour: Option<f64>) -> Self {
        let options = AnalysisOptions {
            price_per_hour,
            // One run has no repeats to draw intervals from; the tables show none.
            bootstrap: Bootstrap {
                resamples: 0,
                ..Bootstrap::default()
            },
            ..AnalysisOptions::default()
        };
        Self {
            analysis: Analysis::of(std::slice::from_ref(&point.run), &options),
            point,
        }
    }

    pub(super) fn analysis(&self) -> &Analysis {
        &self.analysis
    }

    pub(super) fn counts(&self) -> Counts {
        self.analysis.all().requests
    }

    /// A percentile in milliseconds, of answered requests.
    pub(super) fn ms(&self, metric: Metric, quantile: f64) -> Option<f64> {
        self.analysis.all().percentile_ms(metric, quantile)
    }

    pub(super) fn mean_ms(&self, metric: Metric) -> Option<f64> {
        self.analysis.all().distribution(metric)?.mean_ms
    }

    pub(super) fn answers_per_s(&self) -> f64 {
        self.analysis.rates.answers_per_s
    }

    /// Output tokens of whole answers a second, where each has a count.
    pub(super) fn tokens_per_s(&self) -> Option<f64> {
        self.analysis.rates.output_tokens_per_s
    }

    /// The requests of a class.
    pub(super) fn class(&self, name: &str) -> Option<&Group> {
        let key = Key::Class(name.to_owned());
        self.analysis.groups.iter().find(|group| group.key == key)
    }

    /// The requests of a tenant: all, where nobody else sent any.
    pub(super) fn tenant(&self, name: &str) -> &Group {
        let key = Key::Tenant(name.to_owned());
        let found = self.analysis.groups.iter().find(|group| group.key == key);
        found.unwrap_or_else(|| self.analysis.all())
    }

    /// The greatest value that the server's counters showed.
    pub(super) fn most(&self, of: fn(&Sample) -> Option<f64>) -> Option<f64> {
        self.point.timeline.iter().filter_map(of).reduce(f64::max)
    }

    /// How often requests were made to yield, as the answers say, else as the counters do.
    pub(super) fn preemptions(&self) -> Option<u64> {
        let rows = &self.point.run.records;
        let said = rows.iter().filter_map(|row| row.timings?.preemptions);
        let said = said.map(u64::from).reduce(|sum, more| sum + more);
        let counted = || {
            let (first, last) = (self.point.timeline.first()?, self.point.timeline.last()?);
            Some((last.preemptions? - first.preemptions.unwrap_or(0.0)) as u64)
        };
        said.or_else(counted)
    }

    /// The middle of how long refusals took, in milliseconds.
    pub(super) fn refusal_ms(&self) -> Option<f64> {
        let rows = self.point.run.records.iter();
        let refused = rows.filter(|row| row.outcome == Outcome::Refused);
        median(refused.filter_map(|row| Some((row.end_ns? - row.sent_ns?) as f64 / 1e6)))
    }

    /// The longest that a request of a class was kept waiting, in seconds: by the server's word, else
    /// until its first token.
    pub(super) fn longest_wait_s(&self, class: &str) -> Option<f64> {
        let rows = self.point.run.records.iter();
        let of_class = rows.filter(|row| row.class.as_deref() == Some(class));
        let waited = |row: &Record| {
            let said = row.timings.and_then(|timings| timings.queue_ms);
            said.or_else(|| Some((row.first_token_ns()? - row.scheduled_ns) as f64 / 1e6))
        };
        of_class
            .filter_map(waited)
            .reduce(f64::max)
            .map(|ms| ms / 1e3)
    }

    pub(super) fn rows(&self) -> &[Record] {
        &self.point.run.records
    }
}

pub(super) fn median(values: impl Iterator<Item = f64>) -> Option<f64> {
    let mut values = values.collect::<Vec<_>>();
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied()
}
