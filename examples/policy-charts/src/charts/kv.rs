//! The prefix cache.

use std::error::Error;

use examples_support::percentile;
use serve_core::{Request, RequestId, TokenId};
use serve_sched::Policies;
use serve_sched::kv::KvSettings;
use serve_sched::sim::Row;

use super::load::{arrivals, serve, sweep};
use crate::chart::{Axis, Chart, Role, Series};

pub(super) fn prefix_cache() -> Result<Chart, Box<dyn Error>> {
    let first_token = |reuse_prefixes| {
        let point = |shared: f64| -> Result<(f64, f64), Box<dyn Error>> {
            let policies = Policies {
                admit: Vec::new(),
                kv: KvSettings {
                    reuse_prefixes,
                    ..KvSettings::default()
                },
                ..Policies::default()
            };
            let load: Result<Vec<Request>, _> = arrivals(10, 2.0, 100)
                .map(|(id, at)| {
                    let own = (0..60).map(|n| 10_000 + id as u32 * 60 + n);
                    let prompt = (0..shared as u32).chain(own).map(TokenId::new);
                    Request::new(RequestId::new(id), at, prompt.collect::<Vec<_>>(), 64)
                })
                .collect();
            let report = serve(policies, load?)?;
            let first = percentile(50, report.rows.iter().filter_map(Row::first_token_time));
            Ok((shared, first.as_millis_f64()))
        };
        sweep(0, 3_000, 250)
            .map(point)
            .collect::<Result<Vec<_>, _>>()
    };
    Ok(Chart {
        title: "A prefix that is kept costs nothing the second time",
        setting: "8 slots, 2 requests/s, prompts of shared instructions and 60 tokens of one's own",
        x: Axis::to(3_000.0, "shared instructions (tokens)"),
        y: Axis::to(300.0, "median time to first token (ms)"),
        series: vec![
            Series::new("prefixes are reused", Role::Policy, first_token(true)?),
            Series::new(
                "every prompt is run whole",
                Role::Control,
                first_token(false)?,
            ),
        ],
    })
}
