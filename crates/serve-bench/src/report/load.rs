//! What more load does: latency, goodput and tokens of several runs over the load of each.

use super::chart::{Chart, Hue, Mark, Series};
use super::ticks::Axis;
use crate::analysis::Analysis;
use crate::analysis::definitions::Metric;
use crate::analysis::group::QUANTILES;

/// A load and what came of it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Point<'a> {
    /// How much load.
    pub x: f64,
    /// What came of it.
    pub analysis: &'a Analysis,
}

/// Charts over the load, which `label` names with its unit. `offered` says that the load is a rate of
/// requests, which goodput can be held against. Points may come in any order.
pub(crate) fn charts(label: &str, offered: bool, points: &[Point<'_>]) -> Vec<Chart> {
    let mut points = points.to_vec();
    points.sort_by(|a, b| a.x.total_cmp(&b.x));
    let x = Axis::linear(label, points.iter().map(|point| point.x));
    let percentile =
        |name: &str, hue, mark, metric, at: usize| times(name, hue, mark, &points, metric, at);
    let latency = vec![
        percentile("TTFT p50", Hue::Blue, Mark::Dotted, Metric::Ttft, 0),
        percentile("TTFT p99", Hue::Blue, Mark::Dashed, Metric::Ttft, 3),
        percentile("E2E p50", Hue::Orange, Mark::Dotted, Metric::E2e, 0),
        percentile("E2E p99", Hue::Orange, Mark::Dashed, Metric::E2e, 3),
    ];
    let cadence = vec![
        percentile("TPOT p50", Hue::Green, Mark::Dotted, Metric::Tpot, 0),
        percentile("TPOT p99", Hue::Green, Mark::Dashed, Metric::Tpot, 3),
    ];
    let of = |name: &str, hue, mark, value: fn(&Analysis) -> f64| {
        let points = points.iter().map(|point| (point.x, value(point.analysis)));
        Series::new(name, hue, mark, points.collect())
    };
    let mut requests = vec![
        of("answered", Hue::Blue, Mark::Dotted, |it| {
            it.rates.answers_per_s
        }),
        of("goodput", Hue::Green, Mark::Dotted, |it| {
            it.rates.goodput_per_s.unwrap_or_default()
        }),
    ];
    if offered {
        let offered = points.iter().map(|point| (point.x, point.x)).collect();
        requests.push(Series::new("offered", Hue::Faint, Mark::Dashed, offered));
    }
    let tokens = vec![of("output tokens", Hue::Purple, Mark::Dotted, |it| {
        it.rates.output_tokens_per_s.unwrap_or_default()
    })];
    let shares = vec![
        of("answered", Hue::Blue, Mark::Dotted, |it| {
            percent(it.all().requests.ok, it.all().requests.scheduled())
        }),
        of("kept every SLO", Hue::Green, Mark::Dotted, |it| {
            percent(it.all().good, it.all().requests.scheduled())
        }),
    ];
    let chart = |title: &str, note: &str, y: Axis, series: Vec<Series>| Chart {
        title: title.to_owned(),
        note: note.to_owned(),
        x: x.clone(),
        y,
        series,
    };
    let answered = "of answered requests, from the scheduled send; bars are 95% intervals";
    let charts = [
        chart(
            "Latency against load",
            answered,
            Axis::log("time (ms)", values(&latency)),
            latency,
        ),
        chart(
            "Time per output token against load",
            "of answered requests; bars are 95% intervals",
            Axis::linear("TPOT (ms)", values(&cadence)),
            cadence,
        ),
        chart(
            "Answers against load",
            "goodput: answers that kept every SLO; the gap to the offered rate is what was late, refused or failed, and the time that the last answers took",
            Axis::linear("requests/s", values(&requests)),
            requests,
        ),
        chart(
            "Output tokens against load",
            "of whole answers",
            Axis::linear("output tokens/s", values(&tokens)),
            tokens,
        ),
        chart(
            "Share of requests against load",
            "of all that were scheduled, refused and failed ones among them",
            Axis::percent("requests (%)"),
            shares,
        ),
    ];
    charts
        .into_iter()
        .filter(|chart| !chart.is_empty())
        .collect()
}

fn times(
    name: &str,
    hue: Hue,
    mark: Mark,
    points: &[Point<'_>],
    metric: Metric,
    at: usize,
) -> Series {
    debug_assert!(at < QUANTILES.len());
    let estimates = points.iter().filter_map(|point| {
        let distribution = point.analysis.all().distribution(metric)?;
        Some((point.x, distribution.percentiles[at].estimate))
    });
    let estimates = estimates.collect::<Vec<_>>();
    let line = estimates.iter().filter_map(|(x, it)| Some((*x, it.value?)));
    let bars = estimates
        .iter()
        .filter_map(|(x, it)| Some((*x, it.interval?)));
    Series {
        intervals: bars.collect(),
        ..Series::new(name, hue, mark, line.collect())
    }
}

fn values(series: &[Series]) -> Vec<f64> {
    let points = series
        .iter()
        .flat_map(|it| it.points.iter().map(|point| point.1));
    let bars = series
        .iter()
        .flat_map(|it| it.intervals.iter().flat_map(|bar| bar.1));
    points.chain(bars).collect()
}

fn percent(part: u64, whole: u64) -> f64 {
    part as f64 * 100.0 / whole.max(1) as f64
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::analysis::Options;
    use crate::analysis::testing::{answer, numbered, refused};
    use crate::store::folder::Run;

    #[test]
    fn points_stand_over_their_loads_in_order() {
        let run = |ttft| {
            let rows = (0..20).map(|i| match i % 4 {
                3 => refused(i * 100),
                _ => answer(i * 100, &[i * 100 + ttft, i * 100 + ttft + 50], Some(6)),
            });
            Analysis::of(&[Run::of_rows(numbered(rows))], &Options::default())
        };
        let (slow, fast) = (run(80), run(20));
        let point = |x, analysis| Point { x, analysis };
        let points = [point(9.0, &slow), point(3.0, &fast)];
        let charts = charts("offered load (requests/s)", true, &points);
        let titles = charts.iter().map(|chart| chart.title.as_str());
        let expected = [
            "Latency against load",
            "Time per output token against load",
            "Answers against load",
            "Output tokens against load",
            "Share of requests against load",
        ];
        assert_eq!(titles.collect::<Vec<_>>(), expected);
        let ttft = &charts[0].series[0];
        assert_eq!(ttft.points, [(3.0, 20.0), (9.0, 80.0)]);
        assert_eq!(ttft.intervals, [(3.0, [20.0, 20.0]), (9.0, [80.0, 80.0])]);
        assert_eq!(
            charts[2].series[2].points,
            [(3.0, 3.0), (9.0, 9.0)],
            "offered"
        );
        assert_eq!(charts[4].series[0].points[0], (3.0, 75.0));
        assert!(charts.iter().all(|chart| chart.figure().is_ok()));
    }
}
