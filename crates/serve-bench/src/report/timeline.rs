//! What the server's own counters said while the load ran: its queue, its batch, its KV blocks.

use super::chart::{Chart, Hue, Mark, Series};
use super::ticks::Axis;
use crate::store::timeline::Sample;

/// Charts of what the samples show; nothing where the server showed nothing.
pub(crate) fn charts(samples: &[Sample]) -> Vec<Chart> {
    let requests = chart(
        "Queue and batch",
        "requests",
        samples,
        &[
            ("waiting", Hue::Orange, |sample| sample.waiting),
            ("running", Hue::Blue, |sample| sample.running),
        ],
    );
    let blocks = chart(
        "KV blocks",
        "blocks",
        samples,
        &[
            ("held", Hue::Blue, |sample| sample.kv_held),
            ("cached", Hue::Purple, |sample| sample.kv_cached),
            ("free", Hue::Faint, |sample| sample.kv_free),
        ],
    );
    let batch = per_step(samples);
    [requests, batch, blocks].into_iter().flatten().collect()
}

type Field = fn(&Sample) -> Option<f64>;

fn chart(
    title: &str,
    unit: &str,
    samples: &[Sample],
    fields: &[(&str, Hue, Field)],
) -> Option<Chart> {
    let series = fields.iter().filter_map(|(name, hue, field)| {
        let points = samples
            .iter()
            .filter_map(|sample| Some((seconds(sample), field(sample)?)));
        let points = points.collect::<Vec<_>>();
        (points.len() > 1).then(|| Series::new(*name, *hue, Mark::Line, points))
    });
    finish(title, unit, samples, series.collect())
}

/// The mean batch of the steps between two samples, and how many preemptions.
fn per_step(samples: &[Sample]) -> Option<Chart> {
    let rise = |pair: &[Sample], field: Field| Some(field(&pair[1])? - field(&pair[0])?);
    let batch = samples.windows(2).filter_map(|pair| {
        let steps = rise(pair, |it| it.steps).filter(|steps| *steps > 0.0)?;
        Some((
            seconds(&pair[1]),
            rise(pair, |it| it.step_sequences)? / steps,
        ))
    });
    let batch = batch.collect::<Vec<_>>();
    let series =
        (batch.len() > 1).then(|| Series::new("sequences in a step", Hue::Blue, Mark::Line, batch));
    let series = series.into_iter().collect();
    finish(
        "Batch",
        "sequences in a step, mean between two samples",
        samples,
        series,
    )
}

fn finish(title: &str, unit: &str, samples: &[Sample], series: Vec<Series>) -> Option<Chart> {
    let values = series
        .iter()
        .flat_map(|it| it.points.iter().map(|point| point.1));
    let values = values.collect::<Vec<_>>();
    (!series.is_empty()).then(|| Chart {
        title: title.to_owned(),
        note: format!("from the server's own counters, {} samples", samples.len()),
        x: Axis::linear("time since the run began (s)", samples.iter().map(seconds)),
        y: Axis::linear(unit, values),
        series,
    })
}

fn seconds(sample: &Sample) -> f64 {
    sample.at_ns as f64 / 1e9
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(at_s: u64, waiting: Option<f64>, steps: f64, sequences: f64) -> Sample {
        Sample {
            at_ns: at_s * 1_000_000_000,
            waiting,
            steps: Some(steps),
            step_sequences: Some(sequences),
            ..Sample::default()
        }
    }

    #[test]
    fn a_chart_shows_what_the_server_showed() {
        let samples = [
            sample(0, Some(1.0), 100.0, 100.0),
            sample(1, Some(9.0), 110.0, 180.0),
            sample(2, Some(4.0), 110.0, 180.0),
            sample(3, None, 120.0, 200.0),
        ];
        let charts = charts(&samples);
        let titles = charts
            .iter()
            .map(|chart| chart.title.as_str())
            .collect::<Vec<_>>();
        assert_eq!(titles, ["Queue and batch", "Batch"]);
        assert_eq!(
            charts[0].series[0].points,
            [(0.0, 1.0), (1.0, 9.0), (2.0, 4.0)]
        );
        // Eighty sequences in ten steps; no step; twenty in ten.
        assert_eq!(charts[1].series[0].points, [(1.0, 8.0), (3.0, 2.0)]);
        assert!(super::charts(&[]).is_empty());
    }
}
