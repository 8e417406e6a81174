//! What a limit on each tenant's requests in flight does for the others.

use std::error::Error;

use serve_core::{Request, Span, TenantId};
use serve_sched::Policies;
use serve_sched::admit::{Admit, Bound, InFlightLimits};
use serve_sched::sim::Row;

use super::load::{chats, merged, secs, serve, sweep};
use crate::chart::{Axis, Chart, Role, Series};

const SENDS: TenantId = TenantId::new(1);
const ASKS: TenantId = TenantId::new(2);

/// The chats of a tenant at `percent` of the capacity, and of another at 15%.
fn load(percent: f64) -> Vec<Request> {
    let sends = chats(1, percent / 100.0, 60).map(|request| request.with_tenant(SENDS));
    let asks = chats(2, 0.15, 60).map(|request| {
        let id = 1_000_000 + request.id().get();
        examples_support::request(id, request.arrival(), 30, 64).with_tenant(ASKS)
    });
    merged(sends.chain(asks))
}

pub(super) fn limits() -> Result<Chart, Box<dyn Error>> {
    let wait = |admit: fn() -> Vec<Box<dyn Admit>>| {
        let point = |percent: f64| {
            let policies = Policies {
                admit: admit(),
                ..Policies::default()
            };
            let report = serve(policies, load(percent))?;
            let rows = report.rows.iter().filter(|row| row.tenant == ASKS);
            let waits: Vec<Span> = rows.filter_map(Row::waited).collect();
            Ok((percent, secs(99, waits.into_iter())))
        };
        let points: Result<Vec<_>, Box<dyn Error>> = sweep(40, 240, 10).map(point).collect();
        points
    };
    let limited = || -> Vec<Box<dyn Admit>> {
        vec![Box::new(InFlightLimits::new(Bound {
            requests: 6,
            positions: 0,
        }))]
    };
    Ok(Chart {
        title: "A limit in flight: what one tenant sends, another does not wait for",
        setting: "8 slots for a minute; a tenant at 15% of the capacity beside one that sends more",
        x: Axis {
            min: 40.0,
            ..Axis::to(240.0, "load of the other tenant (% of capacity)")
        },
        y: Axis::to(6.0, "p99 wait of the tenant at 15% (s)"),
        series: vec![
            Series::new("6 in flight for each tenant", Role::Policy, wait(limited)?),
            Series::new("no limit", Role::Control, wait(Vec::new)?),
        ],
    })
}
