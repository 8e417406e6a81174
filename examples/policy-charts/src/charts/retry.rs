//! What failing requests do to the load, with and without a budget.

use std::error::Error;

use examples_support::attempts;

use super::load::sweep;
use crate::chart::{Axis, Chart, Role, Series};

const ORIGINALS: u32 = 5_000;

/// Attempts for each original, where each attempt fails with the given probability.
fn for_each(retries_percent: u32, fails: f64) -> f64 {
    let (sent, _) = attempts(ORIGINALS, retries_percent, fails, 0);
    f64::from(sent) / f64::from(ORIGINALS)
}

pub(super) fn budget() -> Result<Chart, Box<dyn Error>> {
    let by_failures = |retries_percent| {
        let point = |percent: f64| (percent, for_each(retries_percent, percent / 100.0));
        sweep(0, 100, 5).map(point).collect()
    };
    Ok(Chart {
        title: "A retry budget: failures cannot multiply the load",
        setting: "5,000 requests, up to four attempts for each",
        x: Axis::to(100.0, "attempts that fail (%)"),
        y: Axis::to(5.0, "attempts for each request"),
        series: vec![
            Series::new("20 retries for 100 requests", Role::Policy, by_failures(20)),
            Series::new("no budget", Role::Control, by_failures(400)),
            Series::new("1 + 20%", Role::Guide, vec![(0.0, 1.2), (100.0, 1.2)]),
        ],
    })
}
