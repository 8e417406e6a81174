//! Whether a calibration predicts: the same load measured and simulated, percentile beside percentile.

use serde::Serialize;

use crate::analysis::quantile::Sample;
use crate::analysis::table::Table;
use crate::store::record::{Outcome, Record};

/// How far a predicted median may be from the measured one, as a share of it.
pub(crate) const ERROR_P50_MAX: f64 = 0.05;
/// The same of the 99th percentile.
pub(crate) const ERROR_P99_MAX: f64 = 0.10;

/// A metric, measured and predicted.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct Line {
    /// Which.
    pub metric: &'static str,
    /// In milliseconds.
    pub measured_ms: f64,
    /// In milliseconds.
    pub predicted_ms: f64,
    /// (predicted - measured) / measured.
    pub error: f64,
    /// What the error may be; absent where nothing is promised.
    pub error_max: Option<f64>,
}

/// Predicted against measured.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct Verdict {
    /// Metric by metric.
    pub lines: Vec<Line>,
    /// Answers measured and predicted.
    pub answers: (usize, usize),
}

impl Verdict {
    /// Compares rows of the same requests.
    pub(crate) fn of(measured: &[Record], predicted: &[Record]) -> Self {
        let times = |rows: &[Record], of: fn(&Record) -> Option<u64>| {
            let answers = rows
                .iter()
                .filter(|row| row.outcome == Outcome::Ok)
                .zip(0_u32..);
            let times = answers.filter_map(|(row, at)| Some((at, of(row)? as f64 / 1e6)));
            Sample::new(times)
        };
        let ttft: fn(&Record) -> Option<u64> =
            |row| Some(row.first_token_ns()?.saturating_sub(row.scheduled_ns));
        let e2e: fn(&Record) -> Option<u64> =
            |row| Some(row.chunks.last()?.at_ns.saturating_sub(row.scheduled_ns));
        let mut lines = Vec::new();
        for (name, of) in [("TTFT", ttft), ("E2E", e2e)] {
            let (measured, predicted) = (times(measured, of), times(predicted, of));
            for (quantile, error_max) in [(0.5, ERROR_P50_MAX), (0.99, ERROR_P99_MAX)] {
                let at = |times: &Sample| times.quantile(quantile);
                let (Some(measured_ms), Some(predicted_ms)) = (at(&measured), at(&predicted))
                else {
                    continue;
                };
                lines.push(Line {
                    metric: match (name, quantile < 0.9) {
                        ("TTFT", true) => "TTFT p50",
                        ("TTFT", false) => "TTFT p99",
                        (_, true) => "E2E p50",
                        (_, false) => "E2E p99",
                    },
                    measured_ms,
                    predicted_ms,
                    error: predicted_ms / measured_ms - 1.0,
                    error_max: Some(error_max),
                });
            }
        }
        let ok = |rows: &[Record]| rows.iter().filter(|row| row.outcome == Outcome::Ok).count();
        Self {
            lines,
            answers: (ok(measured), ok(predicted)),
        }
    }

    /// Whether every promise is kept.
    pub(crate) fn holds(&self) -> bool {
        let kept = |line: &Line| line.error_max.is_none_or(|max| line.error.abs() <= max);
        !self.lines.is_empty() && self.lines.iter().all(kept)
    }

    /// For a person.
    pub(crate) fn table(&self) -> Table {
        let title = "a load that was not part of the fit";
        let columns = ["metric", "measured ms", "predicted ms", "error", "at most"];
        let mut table = Table::new(title, &columns);
        for line in &self.lines {
            let max = line
                .error_max
                .map_or_else(String::new, |max| format!("{:.0}%", max * 100.0));
            table.row([
                line.metric.to_owned(),
                format!("{:.1}", line.measured_ms),
                format!("{:.1}", line.predicted_ms),
                format!("{:+.1}%", line.error * 100.0),
                max,
            ]);
        }
        let (measured, predicted) = self.answers;
        table.note(format!(
            "{measured} answers measured, {predicted} predicted (simulated)"
        ));
        table
    }
}
