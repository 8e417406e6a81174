//! What more load does: latency, goodput and tokens of several runs over the load of each. Runs that differ in
//! something else than their load are curves of their own.

use super::chart::{Chart, Hue, Mark, Series};
use super::ticks::Axis;
use crate::analysis::Analysis;
use crate::analysis::definitions::Metric;
use crate::analysis::group::QUANTILES;
use crate::analysis::tokens::Tokens;

/// A load and what came of it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Point<'a> {
    /// How much load.
    pub x: f64,
    /// What came of it.
    pub analysis: &'a Analysis,
}

/// Points that differ in their load alone.
#[derive(Clone, Debug)]
pub(crate) struct Curve<'a> {
    /// What sets it apart from the other curves, such as `max_batch 8`; empty where it is alone.
    pub name: String,
    /// In any order.
    pub points: Vec<Point<'a>>,
}

/// Charts over the load, which `label` names with its unit. `offered` says that the load is a rate of
/// requests, which goodput can be held against. One curve has colours for what is shown; several have a
/// colour each.
pub(crate) fn charts(label: &str, offered: bool, curves: &[Curve<'_>]) -> Vec<Chart> {
    let mut curves = curves.to_vec();
    for curve in &mut curves {
        curve.points.sort_by(|a, b| a.x.total_cmp(&b.x));
    }
    let loads = curves.iter().flat_map(|curve| &curve.points);
    let mut loads = loads.map(|point| point.x).collect::<Vec<_>>();
    loads.sort_by(f64::total_cmp);
    let x = Axis::linear(label, loads.iter().copied());
    let drawing = Drawing { curves: &curves };
    let times = |shown: &[(&str, Hue, Metric)]| {
        let each = shown.iter().flat_map(|(name, hue, metric)| {
            let p50 = drawing.times(&format!("{name} p50"), *hue, Mark::Dotted, *metric, 0);
            let p99 = drawing.times(&format!("{name} p99"), *hue, Mark::Dashed, *metric, 3);
            [p50, p99]
        });
        each.flatten().collect::<Vec<_>>()
    };
    let ttft = ("TTFT", Hue::Blue, Metric::Ttft);
    let e2e = ("E2E", Hue::Orange, Metric::E2e);
    // Two times of several curves would be too many lines for one chart.
    let latencies = match curves.len() {
        0 | 1 => vec![("Latency against load", times(&[ttft, e2e]))],
        _ => vec![
            ("TTFT against load", times(&[ttft])),
            ("E2E against load", times(&[e2e])),
        ],
    };
    let cadence = times(&[("TPOT", Hue::Green, Metric::Tpot)]);
    let mut requests = drawing.of("answered", Hue::Blue, Mark::Dotted, |it| {
        Some(it.rates.answers_per_s)
    });
    // Beside the answers of its own colour.
    let second = if curves.len() > 1 {
        Mark::Dashed
    } else {
        Mark::Dotted
    };
    requests.extend(drawing.of("goodput", Hue::Green, second, |it| it.rates.goodput_per_s));
    if offered {
        loads.dedup();
        let offered = loads.iter().map(|x| (*x, *x)).collect();
        requests.push(Series::new("offered", Hue::Faint, Mark::Dashed, offered));
    }
    let tokens = drawing.of("output tokens", Hue::Purple, Mark::Dotted, |it| {
        it.rates.output_tokens_per_s
    });
    let mut shares = drawing.of("answered", Hue::Blue, Mark::Dotted, |it| {
        Some(percent(it.all().requests.ok, it.all().requests.scheduled()))
    });
    shares.extend(drawing.of("kept every SLO", Hue::Green, second, |it| {
        let judged = it.all().unjudged == 0;
        judged.then(|| percent(it.all().good, it.all().requests.scheduled()))
    }));
    let chart = |title: &str, note: &str, y: Axis, series: Vec<Series>| Chart {
        title: title.to_owned(),
        note: note.to_owned(),
        x: x.clone(),
        y,
        series,
    };
    let answered = "of answered requests, from the scheduled send; bars are 95% intervals";
    let mut charts = Vec::new();
    for (title, series) in latencies {
        charts.push(chart(
            title,
            answered,
            Axis::log("time (ms)", values(&series)),
            series,
        ));
    }
    charts.extend([
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
            &of_whole_answers(&curves),
            Axis::linear("output tokens/s", values(&tokens)),
            tokens,
        ),
        chart(
            "Share of requests against load",
            "of all that were scheduled, refused and failed ones among them",
            Axis::percent("requests (%)"),
            shares,
        ),
    ]);
    charts.retain(|chart| !chart.is_empty());
    charts
}

/// What the tokens of a chart are of, and of how many answers they are not known.
fn of_whole_answers(curves: &[Curve<'_>]) -> String {
    let mut all = Tokens::default();
    for point in curves.iter().flat_map(|curve| &curve.points) {
        let tokens = point.analysis.all().output_tokens;
        all.answers += tokens.answers;
        all.uncounted += tokens.uncounted;
    }
    match all.missing() {
        None => "of whole answers".to_owned(),
        Some(missing) => {
            format!("of whole answers; loads are left out that have any of the {missing}")
        }
    }
}

/// Curves that are to be drawn.
struct Drawing<'a> {
    curves: &'a [Curve<'a>],
}

impl Drawing<'_> {
    /// A series of each curve, with its name and its colour where there are several.
    fn series(&self, name: &str, hue: Hue, of: impl Fn(&Curve<'_>) -> Series) -> Vec<Series> {
        let several = self.curves.len() > 1;
        let each = self.curves.iter().enumerate().map(|(n, curve)| Series {
            name: match several {
                true => format!("{}: {name}", curve.name),
                false => name.to_owned(),
            },
            color: if several { Hue::of_series(n) } else { hue },
            ..of(curve)
        });
        each.filter(|series| !series.points.is_empty()).collect()
    }

    fn of(
        &self,
        name: &str,
        hue: Hue,
        mark: Mark,
        value: fn(&Analysis) -> Option<f64>,
    ) -> Vec<Series> {
        self.series(name, hue, |curve| {
            let points = curve.points.iter();
            let points = points.filter_map(|point| Some((point.x, value(point.analysis)?)));
            Series::new("", hue, mark, points.collect())
        })
    }

    fn times(&self, name: &str, hue: Hue, mark: Mark, metric: Metric, at: usize) -> Vec<Series> {
        self.series(name, hue, |curve| times(mark, &curve.points, metric, at))
    }
}

fn times(mark: Mark, points: &[Point<'_>], metric: Metric, at: usize) -> Series {
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
        ..Series::new("", Hue::Ink, mark, line.collect())
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
    use crate::analysis::AnalysisOptions;
    use crate::analysis::testing::{answer, numbered, refused};
    use crate::store::folder::Run;

    #[test]
    fn points_stand_over_their_loads_in_order() {
        let run = |ttft| {
            let rows = (0..20).map(|i| match i % 4 {
                3 => refused(i * 100),
                _ => answer(i * 100, &[i * 100 + ttft, i * 100 + ttft + 50], Some(6)),
            });
            Analysis::of(&[Run::of_rows(numbered(rows))], &AnalysisOptions::default())
        };
        let (slow, fast) = (run(80), run(20));
        let point = |x, analysis| Point { x, analysis };
        let one = Curve {
            name: String::new(),
            points: vec![point(9.0, &slow), point(3.0, &fast)],
        };
        let charts = charts("offered load (requests/s)", true, &[one]);
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

    #[test]
    fn no_line_joins_points_that_differ_in_more_than_their_load() {
        let run = |ttft| {
            let rows =
                (0..20).map(|i| answer(i * 100, &[i * 100 + ttft, i * 100 + ttft + 50], Some(6)));
            Analysis::of(&[Run::of_rows(numbered(rows))], &AnalysisOptions::default())
        };
        let runs = [20, 30, 40, 60, 70, 80].map(run);
        let curve = |name: &str, of: &[usize]| Curve {
            name: name.to_owned(),
            points: of
                .iter()
                .zip([9.0, 3.0, 6.0])
                .map(|(at, x)| Point {
                    x,
                    analysis: &runs[*at],
                })
                .collect(),
        };
        let curves = [
            curve("max_batch 1", &[5, 3, 4]),
            curve("max_batch 8", &[2, 0, 1]),
        ];
        let charts = charts("offered load (requests/s)", true, &curves);
        assert_eq!(charts[0].title, "TTFT against load");
        assert_eq!(charts[0].series[0].name, "max_batch 1: TTFT p50");
        assert_eq!(
            charts[0].series[0].points,
            [(3.0, 60.0), (6.0, 70.0), (9.0, 80.0)]
        );
        assert_eq!(
            charts[0].series[1].points,
            [(3.0, 20.0), (6.0, 30.0), (9.0, 40.0)]
        );
        for chart in &charts {
            for series in &chart.series {
                let loads = series
                    .points
                    .iter()
                    .map(|point| point.0)
                    .collect::<Vec<_>>();
                assert!(
                    loads.is_sorted_by(|a, b| a < b),
                    "{}: {loads:?}",
                    series.name
                );
            }
            let looks = chart
                .series
                .iter()
                .map(|it| format!("{:?} {:?}", it.color, it.mark));
            let looks = looks.collect::<std::collections::BTreeSet<_>>();
            assert_eq!(
                looks.len(),
                chart.series.len(),
                "{}: told apart",
                chart.title
            );
            assert!(chart.figure().is_ok());
        }
    }
}
