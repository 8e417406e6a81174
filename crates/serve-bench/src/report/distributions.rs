//! Distributions of times: what share of requests had it within so many milliseconds.

use super::chart::{Chart, Hue, Mark, Series};
use super::ticks::Axis;
use crate::analysis::definitions::Metric;
use crate::analysis::group::sample;
use crate::analysis::request::Request;

/// A line has at most so many points; between them it is straight.
const POINTS_MAX: usize = 400;

/// The distribution of a time over several sets of requests, one line each. A request without an answer
/// is in the denominator, so a line ends at the share that was answered.
pub(crate) fn cdf(metric: Metric, sets: &[(String, &[Request<'_>])]) -> Chart {
    let line = |(name, requests): &(String, &[Request<'_>])| {
        let members = (0..requests.len() as u32).collect::<Vec<_>>();
        let sample = sample(metric, requests, &members);
        // Metrics with many values for each request have no denominator but their own.
        let all = match metric {
            Metric::ItlChunk | Metric::ItlToken | Metric::Lag => sample.len(),
            _ => requests.len(),
        };
        (
            name.clone(),
            steps(&sample.values().collect::<Vec<_>>(), all),
        )
    };
    let lines = sets.iter().map(line).collect::<Vec<_>>();
    let values = lines
        .iter()
        .flat_map(|(_, points)| points.iter().map(|point| point.0));
    let x = Axis::log(format!("{} (ms)", metric.name()), values);
    let series = lines.into_iter().enumerate();
    let series =
        series.map(|(n, (name, points))| Series::new(name, Hue::of_series(n), Mark::Line, points));
    Chart {
        title: format!("{}: distribution", metric.name()),
        note: format!(
            "{}; a line ends at the share that was answered",
            metric.definition()
        ),
        x,
        y: Axis::percent("requests within (%)"),
        series: series.collect(),
    }
}

/// (value, percent of `all` that are not above it), thinned out.
fn steps(sorted: &[f64], all: usize) -> Vec<(f64, f64)> {
    let count = sorted.len();
    let stride = count.div_ceil(POINTS_MAX).max(1);
    let last = count.saturating_sub(1);
    let shown = (0..count).filter(|at| at % stride == 0 || *at == last);
    shown
        .map(|at| (sorted[at], (at + 1) as f64 * 100.0 / all.max(1) as f64))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::analysis::testing::{answer, numbered, refused};

    #[test]
    fn a_line_ends_at_the_share_that_was_answered() {
        let rows = numbered((0..4).map(|i| match i {
            3 => refused(0),
            i => answer(0, &[10 + i], Some(1)),
        }));
        let requests = Request::all(&rows, 0);
        let chart = cdf(Metric::Ttft, &[("all".to_owned(), &requests)]);
        assert_eq!(
            chart.series[0].points,
            [(10.0, 25.0), (11.0, 50.0), (12.0, 75.0)]
        );
    }

    #[test]
    fn a_long_run_is_thinned_out_but_keeps_its_ends() {
        let sorted = (0..10_001).map(f64::from).collect::<Vec<_>>();
        let points = steps(&sorted, sorted.len());
        assert!(points.len() <= POINTS_MAX + 1, "{}", points.len());
        assert_eq!(points.last(), Some(&(10_000.0, 100.0)));
    }
}
