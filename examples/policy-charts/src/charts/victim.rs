//! Victims: what a full KV cache costs, and what it saves to choose who is preempted.

use std::error::Error;

use examples_support::{l4_with_blocks, request, simulate, simulate_preempting};
use serve_core::rng::Rng;
use serve_core::{Class, TenantId, Time};
use serve_sched::Policies;
use serve_sched::batch::Continuous;
use serve_sched::order::{FairTenants, StrictTiers};
use serve_sched::sim::{Report, Row};
use serve_sched::victim::{
    LeastProgressLost, MostFreedForLeastLost, NewestOfLowestClass, OverShareFirst, Preemption,
    Victim,
};

use super::load::{arrivals, merged, secs, serve, sweep};
use crate::chart::{Axis, Chart, Role, Series};

/// Blocks of the largest request: a prompt of 500 tokens and an answer of 400.
const BLOCKS_MAX: u32 = 57;
const SLOTS: u32 = 16;

struct Pressed {
    report: Report,
    /// Positions that had been run when their request was preempted.
    lost_tokens: u64,
}

/// 400 requests that all wait, at a cache of so many blocks.
fn pressed(
    blocks: u32,
    slots: u32,
    victim: impl Victim + 'static,
) -> Result<Pressed, Box<dyn Error>> {
    let policies = Policies {
        admit: Vec::new(),
        batch: Box::new(Continuous {
            sequences_max: Some(slots),
            ..Continuous::default()
        }),
        victim: Box::new(victim),
        ..Policies::default()
    };
    let mut lengths = Rng::new(1);
    let load = (0..400).map(|id| {
        let mut up_to = |most| 1 + lengths.below(most) as u32;
        request(id, Time::ZERO, up_to(500), up_to(400))
    });
    let device = l4_with_blocks(SLOTS, blocks)?;
    let (report, lost_tokens) = simulate_preempting(&device, policies, load)?;
    Ok(Pressed {
        report,
        lost_tokens,
    })
}

/// Sizes of the cache, as how many of the largest requests it holds.
fn sizes() -> impl Iterator<Item = f64> {
    sweep(2, SLOTS, 1)
}

pub(super) fn newest_of_lowest_class() -> Result<Chart, Box<dyn Error>> {
    let rate = |keep_room: bool| {
        let point = |size: f64| -> Result<(f64, f64), Box<dyn Error>> {
            let slots = if keep_room { size as u32 } else { SLOTS };
            let pressed = pressed(size as u32 * BLOCKS_MAX, slots, NewestOfLowestClass)?;
            Ok((size, 400.0 / pressed.report.end.as_secs_f64()))
        };
        sizes().map(point).collect::<Result<Vec<_>, _>>()
    };
    Ok(Chart {
        title: "The newest is preempted: a full cache serves more than one kept half empty",
        setting: "400 requests waiting, prompts of 1 to 500 tokens, answers of 1 to 400",
        x: Axis::to(16.0, "size of the KV cache (largest requests that fit)"),
        y: Axis::to(5.0, "throughput (requests/s)"),
        series: vec![
            Series::new(
                "16 slots, the newest is preempted",
                Role::Policy,
                rate(false)?,
            ),
            Series::new("as many slots as surely fit", Role::Control, rate(true)?),
        ],
    })
}

pub(super) fn least_progress_lost() -> Result<Chart, Box<dyn Error>> {
    let lost = |least: bool| {
        let point = |size: f64| -> Result<(f64, f64), Box<dyn Error>> {
            let blocks = size as u32 * BLOCKS_MAX;
            let pressed = match least {
                true => pressed(blocks, SLOTS, LeastProgressLost)?,
                false => pressed(blocks, SLOTS, NewestOfLowestClass)?,
            };
            Ok((size, pressed.lost_tokens as f64 / 1_000.0))
        };
        sizes().map(point).collect::<Result<Vec<_>, _>>()
    };
    Ok(Chart {
        title: "Least progress lost: fewer tokens are run again",
        setting: "400 requests waiting, prompts of 1 to 500 tokens, answers of 1 to 400; 16 slots",
        x: Axis::to(16.0, "size of the KV cache (largest requests that fit)"),
        y: Axis::to(80.0, "tokens lost to preemption (thousands)"),
        series: vec![
            Series::new("least progress lost", Role::Policy, lost(true)?),
            Series::new("newest of the lowest class", Role::Control, lost(false)?),
        ],
    })
}

pub(super) fn most_freed_for_least_lost() -> Result<Chart, Box<dyn Error>> {
    let sizes = || sweep(2, 7, 1);
    let of_newest = |read: fn(&Pressed) -> f64| {
        let point = |size: f64| -> Result<(f64, f64), Box<dyn Error>> {
            let blocks = size as u32 * BLOCKS_MAX;
            let most = read(&pressed(blocks, SLOTS, MostFreedForLeastLost)?);
            let newest = read(&pressed(blocks, SLOTS, NewestOfLowestClass)?);
            Ok((size, 100.0 * most / newest))
        };
        sizes().map(point).collect::<Result<Vec<_>, _>>()
    };
    let preempted = of_newest(|it| it.report.stats.counters.preempted as f64)?;
    let lost = of_newest(|it| it.lost_tokens as f64)?;
    Ok(Chart {
        title: "Most freed for least lost: fewer interruptions, of more work each",
        setting: "400 requests waiting, prompts of 1 to 500 tokens, answers of 1 to 400; 16 slots; seed 1",
        x: Axis {
            min: 2.0,
            ..Axis::to(7.0, "size of the KV cache (largest requests that fit)")
        },
        y: Axis::to(140.0, "part of what it is where the newest goes (%)"),
        series: vec![
            Series::new("preemptions", Role::Policy, preempted),
            Series::new("tokens lost", Role::PolicyToo, lost),
            Series::new(
                "newest of the lowest class",
                Role::Control,
                sizes().map(|size| (size, 100.0)).collect(),
            ),
        ],
    })
}

/// A tenant that sends 400 requests at once, and one that sends one every four seconds, at a cache
/// of so many of them: how often a request of each is preempted.
fn beside_a_flood(
    size: f64,
    victim: impl Victim + 'static,
) -> Result<[(f64, f64); 2], Box<dyn Error>> {
    const LARGEST: u32 = 300_u32.div_ceil(16);
    let tenants = [TenantId::new(1), TenantId::new(2)];
    let heavy = (0..400).map(|id| request(id, Time::ZERO, 100, 200).with_tenant(tenants[0]));
    let light = (0..20).map(|n| {
        let at = Time::from_millis(3_000 + n * 4_000);
        request(1_000 + n, at, 100, 200).with_tenant(tenants[1])
    });
    let policies = Policies {
        admit: Vec::new(),
        order: Box::<FairTenants>::default(),
        victim: Box::new(victim),
        ..Policies::default()
    };
    let device = l4_with_blocks(SLOTS, size as u32 * LARGEST)?;
    let report = simulate(&device, policies, merged(heavy.chain(light)))?;
    Ok(tenants.map(|tenant| {
        let rows = report.rows.iter().filter(|row| row.tenant == tenant);
        let times: u32 = rows.clone().map(|row| row.usage.preemptions).sum();
        (size, f64::from(times) / rows.count() as f64)
    }))
}

pub(super) fn over_share_first() -> Result<Chart, Box<dyn Error>> {
    type Tenants = (Vec<(f64, f64)>, Vec<(f64, f64)>);
    let by_size = |over_share: bool| {
        let point = |size| match over_share {
            true => beside_a_flood(size, OverShareFirst::default()),
            false => beside_a_flood(size, NewestOfLowestClass),
        };
        let points: Result<Vec<_>, Box<dyn Error>> = sweep(4, SLOTS, 1).map(point).collect();
        Ok::<Tenants, Box<dyn Error>>(
            points?
                .into_iter()
                .map(|[heavy, light]| (heavy, light))
                .unzip(),
        )
    };
    let (heavy, light) = by_size(true)?;
    let (heavy_newest, light_newest) = by_size(false)?;
    Ok(Chart {
        title: "Over share first: who took the blocks gives them back",
        setting: "16 slots, fair-tenants; 400 requests at once, beside one every 4 s of another tenant",
        x: Axis {
            min: 4.0,
            ..Axis::to(16.0, "size of the KV cache (requests that fit)")
        },
        y: Axis::to(3.5, "preemptions for each request"),
        series: vec![
            Series::new("light, over share", Role::Policy, light),
            Series::new("heavy, over share", Role::PolicyToo, heavy),
            Series::new("light, newest", Role::Control, light_newest),
            Series::new("heavy, newest", Role::ControlToo, heavy_newest),
        ],
    })
}

pub(super) fn by_class() -> Result<Chart, Box<dyn Error>> {
    let run = |by_class| -> Result<Report, Box<dyn Error>> {
        let policies = Policies {
            admit: Vec::new(),
            order: Box::new(StrictTiers),
            preemption: Preemption {
                by_class,
                ..Preemption::default()
            },
            ..Policies::default()
        };
        let low = (0..200).map(|id| request(id, Time::ZERO, 60, 400).with_class(Class::new(1)));
        let high = arrivals(2, 1.0, 150).map(|(id, at)| request(10_000 + id, at, 60, 40));
        serve(policies, merged(low.chain(high)))
    };
    let first_token = |report: &Report| -> Vec<(f64, f64)> {
        let rows = || report.rows.iter().filter(|row| row.class == Class::HIGHEST);
        let point = |percent: f64| secs(percent as u32, rows().filter_map(Row::first_token_time));
        sweep(1, 100, 1)
            .map(|percent| (percent, point(percent)))
            .collect::<Vec<_>>()
    };
    Ok(Chart {
        title: "A higher class takes a slot, or waits for one",
        setting: "8 slots full of class 1 with answers of 400 tokens; one of class 0 a second",
        x: Axis::to(100.0, "percentile of the requests of class 0"),
        y: Axis::to(8.0, "time to first token (s)"),
        series: vec![
            Series::new(
                "a lower class is preempted",
                Role::Policy,
                first_token(&run(true)?),
            ),
            Series::new(
                "nobody is preempted",
                Role::Control,
                first_token(&run(false)?),
            ),
        ],
    })
}
