//! Routing policies in front of four replicas with prefix caches.

use std::error::Error;

use examples_support::{cached_part, percentile, route};
use serve_core::Span;
use serve_core::mock::MockConfig;
use serve_sched::route::{LeastLoaded, PredictedEnd, Route};
use serve_sched::sim::{ConversationSettings, Conversations, RoutedRow};

use super::load::sweep;
use crate::chart::{Axis, Chart, Role, Series};

const SETTING: &str = "conversations of one to nine turns for 60 s, four replicas";

/// What came of conversations that begin at `tenths` / 10 a second.
fn rows(predicted: bool, tenths: f64) -> Result<Vec<RoutedRow>, Box<dyn Error>> {
    let policy: Box<dyn Route> = match predicted {
        true => Box::new(PredictedEnd),
        false => Box::new(LeastLoaded),
    };
    let device = MockConfig::default().with_room(16, 2_048, Some(20_000), Some(65_536));
    let load = Conversations::new(ConversationSettings {
        starts_per_s: tenths / 10.0,
        lasts: Span::from_secs(60),
        ..ConversationSettings::default()
    });
    Ok(route(policy, &device, 4, 16, load)?)
}

/// A reading of each run, by conversations that begin in a second.
fn by_load(
    predicted: bool,
    read: impl Fn(&[RoutedRow]) -> f64,
) -> Result<Vec<(f64, f64)>, Box<dyn Error>> {
    let point = |tenths: f64| Ok((tenths / 10.0, read(&rows(predicted, tenths)?)));
    sweep(10, 60, 10).map(point).collect()
}

pub(super) fn predicted_end() -> Result<Chart, Box<dyn Error>> {
    let p99 = |rows: &[RoutedRow]| {
        let times = rows.iter().filter_map(RoutedRow::first_token_time);
        percentile(99, times).as_secs_f64()
    };
    Ok(Chart {
        title: "Predicted end: a cached prefix is worth the seconds that it saves",
        setting: SETTING,
        x: Axis::to(6.0, "conversations that begin in a second"),
        y: Axis::to(1.5, "time to first token p99 (s)"),
        series: vec![
            Series::new("predicted-end", Role::Policy, by_load(true, p99)?),
            Series::new("least-loaded", Role::Control, by_load(false, p99)?),
        ],
    })
}

pub(super) fn least_loaded() -> Result<Chart, Box<dyn Error>> {
    let cached = |rows: &[RoutedRow]| 100.0 * cached_part(rows);
    Ok(Chart {
        title: "Least loaded: what is cached is found by chance",
        setting: SETTING,
        x: Axis::to(6.0, "conversations that begin in a second"),
        y: Axis::to(100.0, "prompt tokens that were cached (%)"),
        series: vec![
            Series::new("least-loaded", Role::Policy, by_load(false, cached)?),
            Series::new("predicted-end", Role::Control, by_load(true, cached)?),
        ],
    })
}
