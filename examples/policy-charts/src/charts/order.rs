//! Orders: who is next, and what it does to those who are not.

use std::error::Error;

use examples_support::request;
use serve_core::rng::Rng;
use serve_core::{Class, Request, Span, TenantId, Time};
use serve_sched::order::{
    AgingTiers, EarliestDeadline, FairTenants, Fifo, Order, Place, ResponseRatio, StrictTiers,
    Waiting,
};
use serve_sched::sim::{Report, Row};

use super::load::{CAPACITY, arrivals, by_arrival, chats, merged, ordered, secs, sweep};
use crate::chart::{Axis, Chart, Role, Series};

fn under(order: impl Order + 'static, load: Vec<Request>) -> Result<Report, Box<dyn Error>> {
    ordered(Box::new(order), load)
}

/// The control of first come, first served: last come, first served.
struct Lifo;

impl Order for Lifo {
    fn name(&self) -> &'static str {
        "lifo"
    }

    fn place(&mut self, waiting: &Waiting<'_>, _now: Time) -> Place {
        Place::by_key(u64::MAX - waiting.sequence)
    }
}

/// The control of the response ratio: the shortest first, however long a long one has waited.
struct ShortestFirst;

impl Order for ShortestFirst {
    fn name(&self) -> &'static str {
        "shortest-first"
    }

    fn place(&mut self, waiting: &Waiting<'_>, _now: Time) -> Place {
        Place::by_key(u64::from(waiting.request.output_tokens_max()))
    }
}

pub(super) fn fifo() -> Result<Chart, Box<dyn Error>> {
    let waits = |report: &Report| {
        let wait = |percent: f64| secs(percent as u32, report.rows.iter().filter_map(Row::waited));
        sweep(1, 100, 1)
            .map(|percent| (percent, wait(percent)))
            .collect()
    };
    let load: Vec<Request> = chats(2, 0.95, 600).collect();
    Ok(Chart {
        title: "First come, first served: the longest wait is the shortest it can be",
        setting: "8 slots at 95% load for 10 min, answers of 64 tokens",
        x: Axis::to(100.0, "percentile of requests"),
        y: Axis::to(12.0, "wait in the queue (s)"),
        series: vec![
            Series::new(
                "first come, first served",
                Role::Policy,
                waits(&under(Fifo, load.clone())?),
            ),
            Series::new(
                "last come, first served",
                Role::Control,
                waits(&under(Lifo, load)?),
            ),
        ],
    })
}

const PAID: Class = Class::HIGHEST;
const FREE: Class = Class::new(1);

/// Paid traffic at 90% of the capacity, and free traffic at 7%.
fn two_tiers() -> Vec<Request> {
    let paid = arrivals(3, 0.90 * CAPACITY, 90).map(|(id, at)| request(id, at, 30, 64));
    let free = arrivals(4, 0.07 * CAPACITY, 90);
    let free = free.map(|(id, at)| request(1_000_000 + id, at, 30, 64).with_class(FREE));
    merged(paid.chain(free))
}

fn waits_of(report: &Report, class: Class) -> Vec<(f64, f64)> {
    let rows = report.rows.iter().filter(|row| row.class == class);
    by_arrival(rows, 6.0, Row::waited)
}

pub(super) fn strict_tiers() -> Result<Chart, Box<dyn Error>> {
    let (strict, fifo) = (under(StrictTiers, two_tiers())?, under(Fifo, two_tiers())?);
    Ok(Chart {
        title: "Strict tiers: the free tier waits for the paid one",
        setting: "8 slots; paid traffic at 90% of what they can do, free at 7%",
        x: Axis::to(90.0, "time of arrival (s)"),
        y: Axis::to(30.0, "mean wait in the queue (s)"),
        series: vec![
            Series::new("paid, strict tiers", Role::Policy, waits_of(&strict, PAID)),
            Series::new(
                "free, strict tiers",
                Role::PolicyToo,
                waits_of(&strict, FREE),
            ),
            Series::new(
                "both, first come, first served",
                Role::Control,
                by_arrival(fifo.rows.iter(), 6.0, Row::waited),
            ),
        ],
    })
}

pub(super) fn aging_tiers() -> Result<Chart, Box<dyn Error>> {
    let age_after = Span::from_secs(3);
    let aging = under(AgingTiers::new(age_after), two_tiers())?;
    let strict = under(StrictTiers, two_tiers())?;
    Ok(Chart {
        title: "Aging ends a free request's wait soon after three seconds",
        setting: "8 slots; paid traffic at 90% of what they can do, free at 7%",
        x: Axis::to(90.0, "time of arrival (s)"),
        y: Axis::to(30.0, "mean wait in the queue (s)"),
        series: vec![
            Series::new("free, aging", Role::Policy, waits_of(&aging, FREE)),
            Series::new("paid, aging", Role::PolicyToo, waits_of(&aging, PAID)),
            Series::new("free, no aging", Role::Control, waits_of(&strict, FREE)),
            Series::new("age_after", Role::Guide, vec![(0.0, 3.0), (90.0, 3.0)]),
        ],
    })
}

pub(super) fn fair_tenants() -> Result<Chart, Box<dyn Error>> {
    let (first, second) = (TenantId::new(1), TenantId::new(2));
    let load = || {
        let short = (0..2_000).map(|id| request(id, Time::ZERO, 30, 32).with_tenant(first));
        let long = (0..500).map(|id| request(10_000 + id, Time::ZERO, 30, 128).with_tenant(second));
        let mut load: Vec<Request> = short.chain(long).collect();
        // One of each in turn, as long as there are both.
        load.sort_by_key(|request| request.id().get() % 10_000);
        load
    };
    let service = |report: &Report, tenant| {
        let mut total = 0.0;
        let rows = report.rows.iter().filter(|row| row.tenant == tenant);
        let points = rows.map(|row| {
            let service = row.usage.prompt_tokens + 2 * row.usage.output_tokens;
            total += f64::from(service) / 1_000.0;
            (row.end.as_secs_f64(), total)
        });
        std::iter::once((0.0, 0.0)).chain(points).collect()
    };
    let (fair, fifo) = (under(FairTenants::default(), load())?, under(Fifo, load())?);
    Ok(Chart {
        title: "Fair tenants: equal service, whatever the length of the answers",
        setting: "8 slots; two tenants with requests of 128 and of 32 tokens always have some waiting",
        x: Axis::to(60.0, "time (s)"),
        y: Axis::to(50.0, "prompt + 2 x output tokens so far (thousands)"),
        series: vec![
            Series::new("128-token, fair", Role::Policy, service(&fair, second)),
            Series::new("32-token, fair", Role::PolicyToo, service(&fair, first)),
            Series::new("128-token, fifo", Role::Control, service(&fifo, second)),
            Series::new("32-token, fifo", Role::ControlToo, service(&fifo, first)),
        ],
    })
}

pub(super) fn earliest_deadline() -> Result<Chart, Box<dyn Error>> {
    let met = |earliest: bool| -> Result<Vec<(f64, f64)>, Box<dyn Error>> {
        let point = |percent: f64| {
            let due = |request: Request| {
                let patience = Span::from_secs(if request.id().get().is_multiple_of(2) {
                    2
                } else {
                    10
                });
                let deadline = request.arrival() + patience;
                request.with_deadline(Some(deadline))
            };
            let load: Vec<Request> = chats(5, percent / 100.0, 200).map(due).collect();
            let report = match earliest {
                true => under(EarliestDeadline, load)?,
                false => under(Fifo, load)?,
            };
            let met = report.rows.iter().filter(|row| row.is_finished()).count();
            Ok((percent, 100.0 * met as f64 / report.rows.len() as f64))
        };
        sweep(70, 150, 5).map(point).collect()
    };
    Ok(Chart {
        title: "Earliest deadline first: best below capacity, among the worst above it",
        setting: "8 slots for 200 s; half of the requests are due in 2 s, half in 10 s",
        x: Axis {
            min: 70.0,
            ..Axis::to(150.0, "offered load (% of capacity)")
        },
        y: Axis::to(105.0, "answered by their deadline (%)"),
        series: vec![
            Series::new("earliest deadline first", Role::Policy, met(true)?),
            Series::new("first come, first served", Role::Control, met(false)?),
        ],
    })
}

pub(super) fn response_ratio() -> Result<Chart, Box<dyn Error>> {
    /// As many runs as give each point its waits.
    const RUNS: u64 = 50;
    const WAITS_MIN: usize = 1_000;
    let load = |run: u64| -> Vec<Request> {
        let mut lengths = Rng::new(100 + run);
        let mut length = move || 8 + (lengths.exponential(80.0) as u32).min(392);
        arrivals(run, 5.2, 400)
            .map(|(id, at)| request(id, at, 30, length()))
            .collect()
    };
    let waits = |order: &dyn Fn() -> Box<dyn Order>| -> Result<Vec<_>, Box<dyn Error>> {
        let mut buckets = vec![Vec::new(); 8];
        for run in 1..=RUNS {
            for row in ordered(order(), load(run))?.rows {
                let bucket = row.usage.output_tokens as usize / 50;
                buckets[bucket.min(7)].extend(row.waited());
            }
        }
        if buckets.iter().any(|waits| waits.len() < WAITS_MIN) {
            return Err("too few waits for a mean".into());
        }
        let middle = |bucket: usize| bucket as f64 * 50.0 + 25.0;
        let mean = |spans: Vec<Span>| examples_support::mean(spans).as_secs_f64();
        let points = buckets.into_iter().enumerate();
        Ok(points.map(|(n, spans)| (middle(n), mean(spans))).collect())
    };
    Ok(Chart {
        title: "Highest response ratio: a wait in proportion to the work",
        setting: "8 slots at about full load, answers of 88 tokens in the mean; 50 runs of 400 s, seeds 1 to 50",
        x: Axis::to(400.0, "length of the answer (tokens)"),
        y: Axis::to(20.0, "mean wait in the queue (s)"),
        series: vec![
            Series::new(
                "highest response ratio",
                Role::Policy,
                waits(&|| Box::new(ResponseRatio::new(Span::ZERO)))?,
            ),
            Series::new(
                "first come, first served",
                Role::Control,
                waits(&|| Box::new(Fifo))?,
            ),
            Series::new(
                "shortest first",
                Role::ControlToo,
                waits(&|| Box::new(ShortestFirst))?,
            ),
        ],
    })
}
