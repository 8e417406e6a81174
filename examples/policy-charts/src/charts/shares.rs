//! Shares: what a group of tenants is given, and what classes and tenants wait, beside a flood.

use std::error::Error;
use std::sync::Arc;

use examples_support::{mean, request};
use serve_core::{Class, Request, TenantId};
use serve_sched::order::{FairGroups, FairTenants, Fifo, Members, Order, OrderSettings};
use serve_sched::settings::GroupId;
use serve_sched::sim::{Report, Row};

use super::load::{CAPACITY, arrivals, merged, ordered, sweep};
use crate::chart::{Axis, Chart, Role, Series};

type Points = Result<Vec<(f64, f64)>, Box<dyn Error>>;

/// The requests of `tenant` at `load` times the capacity, with ids of their own.
fn sent(
    seed: u64,
    load: f64,
    secs: u64,
    tenant: impl Fn(u64) -> TenantId,
) -> impl Iterator<Item = Request> {
    arrivals(seed, load * CAPACITY, secs)
        .map(move |(n, at)| request(seed * 100_000 + n, at, 30, 64).with_tenant(tenant(n)))
}

const ONE: TenantId = TenantId::new(1);
const MANY: u32 = 100;

fn of_many(n: u64) -> TenantId {
    TenantId::new(100 + (n % u64::from(MANY)) as u32)
}

pub(super) fn fair_groups() -> Result<Chart, Box<dyn Error>> {
    let load = || merged(sent(1, 1.0, 60, |_| ONE).chain(sent(2, 3.0, 60, of_many)));
    let members = (0..u64::from(MANY)).fold(
        Members::new().with_group(ONE, GroupId::new(1)),
        |members, n| members.with_group(of_many(n), GroupId::new(2)),
    );
    let fifo = Arc::new(|| -> Box<dyn Order> { Box::new(Fifo) });
    let groups = FairGroups::over(Arc::new(members), 1, 2, fifo);
    // Prompt tokens and twice the output tokens, as the counters have them.
    let given = |report: &Report, one: bool| {
        let mut total = 0.0;
        let rows = report.rows.iter().filter(|row| (row.tenant == ONE) == one);
        let points = rows.map(|row| {
            let service = row.usage.prompt_tokens + 2 * row.usage.output_tokens;
            total += f64::from(service) / 1_000.0;
            (row.end.as_secs_f64(), total)
        });
        std::iter::once((0.0, 0.0)).chain(points).collect()
    };
    let grouped = ordered(Box::new(groups), load())?;
    let tenants = ordered(Box::<FairTenants>::default(), load())?;
    let fifo = ordered(Box::new(Fifo), load())?;
    Ok(Chart {
        title: "Fair groups: a hundred keys are given no more than one",
        setting: "8 slots; one tenant sends what they can do, 100 of a group three times that; seeds 1, 2",
        x: Axis::to(60.0, "time (s)"),
        y: Axis::to(40.0, "prompt + 2 x output tokens so far (thousands)"),
        series: vec![
            Series::new("one, fair-groups", Role::Policy, given(&grouped, true)),
            Series::new(
                "hundred, fair-groups",
                Role::PolicyToo,
                given(&grouped, false),
            ),
            Series::new("one, fifo", Role::Control, given(&fifo, true)),
            Series::new("one, fair-tenants", Role::ControlToo, given(&tenants, true)),
        ],
    })
}

const PAID: TenantId = TenantId::new(1);
const LIGHT: TenantId = TenantId::new(2);
const FLOOD: TenantId = TenantId::new(3);

/// The mean wait of a tenant, where one of class 0 sends 60% of the capacity, and in class 1 a light
/// one 10% and a flood so many percent.
fn wait(order: &str, tenant: TenantId, flood: f64) -> Result<f64, Box<dyn Error>> {
    let low = |request: Request| request.with_class(Class::new(1));
    let paid = sent(1, 0.6, 120, |_| PAID);
    let light = sent(2, 0.1, 120, |_| LIGHT).map(low);
    let flood = sent(3, flood / 100.0, 120, |_| FLOOD).map(low);
    let order = OrderSettings::default().order(order)?;
    let report = ordered(order, merged(paid.chain(light).chain(flood)))?;
    let rows = report.rows.iter().filter(|row| row.tenant == tenant);
    Ok(mean(rows.filter_map(Row::waited)).as_secs_f64())
}

pub(super) fn composed_orders() -> Result<Chart, Box<dyn Error>> {
    let waits = |order, tenant| -> Points {
        let point = |flood| Ok((flood, wait(order, tenant, flood)?));
        sweep(10, 200, 10).map(point).collect()
    };
    let composed = "strict-tiers/fair-tenants";
    Ok(Chart {
        title: "Tiers over fair tenants keep both promises; each alone keeps one",
        setting: "8 slots, 2 min; class 0 at 60% of them; in class 1 a light tenant at 10%, and a flood; seeds 1 to 3",
        x: Axis::to(200.0, "load of the flood (% of capacity)"),
        y: Axis::to(20.0, "mean wait in the queue (s)"),
        series: vec![
            Series::new("class 0, composed", Role::Policy, waits(composed, PAID)?),
            Series::new("light, composed", Role::PolicyToo, waits(composed, LIGHT)?),
            Series::new(
                "light, tiers only",
                Role::Control,
                waits("strict-tiers", LIGHT)?,
            ),
            Series::new(
                "class 0, fair only",
                Role::ControlToo,
                waits("fair-tenants", PAID)?,
            ),
        ],
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_order_alone_keeps_its_own_promise_and_only_that() {
        let wait = |order, tenant| wait(order, tenant, 200.0).unwrap();
        for (order, kept, broken) in [("strict-tiers", PAID, LIGHT), ("fair-tenants", LIGHT, PAID)]
        {
            let (kept, broken) = (wait(order, kept), wait(order, broken));
            assert!(kept < 2.0 && broken > 20.0, "{order}: {kept}, {broken}");
        }
        for tenant in [PAID, LIGHT] {
            let wait = wait("strict-tiers/fair-tenants", tenant);
            assert!(wait < 2.0, "{tenant:?}: {wait}");
        }
    }
}
