//! Admission: who is told no, and what that does for those who are told yes.

use std::error::Error;
use std::num::NonZeroU64;

use examples_support::request;
use serve_core::rng::Rng;
use serve_core::{Request, Span, Time};
use serve_sched::Policies;
use serve_sched::admit::{
    Admit, ConcurrencyLimit, Cost, DeadlinePrediction, FirstTokenBudget, LatencyBudget, QueueCap,
    Quota, TokenBucket,
};
use serve_sched::sim::{Report, Row};

use super::load::{CAPACITY, arrivals, by_arrival, chats, latencies, secs, serve, sweep};
use crate::chart::{Axis, Chart, Role, Series};

type Points = Result<Vec<(f64, f64)>, Box<dyn Error>>;

fn with(
    admit: Vec<Box<dyn Admit>>,
    load: impl Iterator<Item = Request>,
) -> Result<Report, Box<dyn Error>> {
    let policies = Policies {
        admit,
        ..Policies::default()
    };
    serve(policies, load)
}

/// A reading of a run of chats at each load, in percent of the capacity.
fn by_load(
    loads: impl Iterator<Item = f64>,
    admit: impl Fn() -> Vec<Box<dyn Admit>>,
    read: impl Fn(&Report) -> f64,
) -> Points {
    let point = |percent: f64| {
        let report = with(admit(), chats(1, percent / 100.0, 60))?;
        Ok((percent, read(&report)))
    };
    loads.map(point).collect()
}

fn p99(report: &Report) -> f64 {
    secs(99, latencies(report))
}

pub(super) fn queue_cap() -> Result<Chart, Box<dyn Error>> {
    let latency = |admit: Vec<Box<dyn Admit>>| -> Points {
        let report = with(admit, chats(1, 2.0, 60))?;
        let finished = report.rows.iter().filter(|row| row.is_finished());
        Ok(by_arrival(finished, 3.0, |row| Some(row.response_time())))
    };
    Ok(Chart {
        title: "A queue cap: those who are taken in are answered, however long it lasts",
        setting: "8 slots, offered twice what they can do for a minute",
        x: Axis::to(60.0, "time of arrival (s)"),
        y: Axis::to(40.0, "mean latency of the admitted (s)"),
        series: vec![
            Series::new(
                "10 may wait, the rest is refused",
                Role::Policy,
                latency(vec![Box::new(QueueCap::new(10))])?,
            ),
            Series::new("all may wait", Role::Control, latency(Vec::new())?),
        ],
    })
}

pub(super) fn latency_budget() -> Result<Chart, Box<dyn Error>> {
    let loads = || sweep(50, 250, 10);
    let budget =
        || -> Vec<Box<dyn Admit>> { vec![Box::new(LatencyBudget::new(Span::from_millis(2_500)))] };
    let depth = || -> Vec<Box<dyn Admit>> { vec![Box::new(QueueCap::new(16))] };
    Ok(Chart {
        title: "A latency budget holds at any load",
        setting: "8 slots for a minute, answers of 64 tokens",
        x: Axis {
            min: 50.0,
            ..Axis::to(250.0, "offered load (% of capacity)")
        },
        y: Axis::to(6.0, "p99 latency of the admitted (s)"),
        series: vec![
            Series::new(
                "budget of 2.5 s",
                Role::Policy,
                by_load(loads(), budget, p99)?,
            ),
            Series::new(
                "16 may wait",
                Role::ControlToo,
                by_load(loads(), depth, p99)?,
            ),
            Series::new(
                "all may wait",
                Role::Control,
                by_load(loads(), Vec::new, p99)?,
            ),
            Series::new("target", Role::Guide, vec![(50.0, 2.5), (250.0, 2.5)]),
        ],
    })
}

pub(super) fn concurrency_limit() -> Result<Chart, Box<dyn Error>> {
    let loads = || sweep(20, 200, 10);
    let limit = || -> Vec<Box<dyn Admit>> { vec![Box::new(ConcurrencyLimit)] };
    Ok(Chart {
        title: "Nobody waits: latency is the service time at any load",
        setting: "8 slots for a minute, answers of 64 tokens",
        x: Axis {
            min: 20.0,
            ..Axis::to(200.0, "offered load (% of capacity)")
        },
        y: Axis::to(6.0, "p99 latency of the admitted (s)"),
        series: vec![
            Series::new(
                "refused if no slot is free",
                Role::Policy,
                by_load(loads(), limit, p99)?,
            ),
            Series::new(
                "all may wait",
                Role::Control,
                by_load(loads(), Vec::new, p99)?,
            ),
        ],
    })
}

pub(super) fn deadline_prediction() -> Result<Chart, Box<dyn Error>> {
    let met = |predict: bool| -> Points {
        let point = |percent: f64| {
            let due = |request: Request| {
                let deadline = request.arrival() + Span::from_secs(5);
                request.with_deadline(Some(deadline))
            };
            let admit: Vec<Box<dyn Admit>> = match predict {
                true => vec![Box::new(DeadlinePrediction::default())],
                false => Vec::new(),
            };
            let report = with(admit, chats(1, percent / 100.0, 120).map(due))?;
            let met = report.rows.iter().filter(|row| row.is_finished()).count();
            Ok((percent, met as f64 / report.end.as_secs_f64()))
        };
        sweep(60, 250, 10).map(point).collect()
    };
    Ok(Chart {
        title: "Deadline prediction: no time is spent on answers that come too late",
        setting: "8 slots for 2 min, every request is due in 5 s and cut off then",
        x: Axis {
            min: 60.0,
            ..Axis::to(250.0, "offered load (% of capacity)")
        },
        y: Axis::to(8.0, "answers by their deadline (1/s)"),
        series: vec![
            Series::new("predicted to be late: refused", Role::Policy, met(true)?),
            Series::new("all may wait", Role::Control, met(false)?),
            Series::new(
                "capacity",
                Role::Guide,
                vec![(60.0, CAPACITY), (250.0, CAPACITY)],
            ),
        ],
    })
}

pub(super) fn first_token_budget() -> Result<Chart, Box<dyn Error>> {
    // One prompt in five is sixty times as long as the others; the answers are one word.
    let load = |rate: f64| {
        let mut lengths = Rng::new(4);
        arrivals(7, rate, 120).map(move |(id, at)| {
            let prompt = if lengths.below(5) == 0 { 3_000 } else { 50 };
            request(id, at, prompt, 2)
        })
    };
    let first_token = |admit: &dyn Fn() -> Vec<Box<dyn Admit>>| -> Points {
        let point = |rate: f64| {
            let report = with(admit(), load(rate))?;
            Ok((
                rate,
                secs(99, report.rows.iter().filter_map(Row::first_token_time)),
            ))
        };
        sweep(4, 36, 2).map(point).collect()
    };
    Ok(Chart {
        title: "A first-token budget counts what waiting prompts take, not the prompts",
        setting: "8 slots for 2 min, prompts of 50 tokens and, one in five, of 3,000",
        x: Axis {
            min: 4.0,
            ..Axis::to(36.0, "offered rate (requests/s)")
        },
        y: Axis::to(6.0, "p99 time to first token (s)"),
        series: vec![
            Series::new(
                "budget of 1 s",
                Role::Policy,
                first_token(&|| vec![Box::new(FirstTokenBudget::new(Span::from_secs(1)))])?,
            ),
            Series::new(
                "32 requests may wait",
                Role::ControlToo,
                first_token(&|| vec![Box::new(QueueCap::new(32))])?,
            ),
            Series::new("all may wait", Role::Control, first_token(&Vec::new)?),
            Series::new("target", Role::Guide, vec![(4.0, 1.0), (36.0, 1.0)]),
        ],
    })
}

pub(super) fn token_bucket() -> Result<Chart, Box<dyn Error>> {
    const RATE: NonZeroU64 = NonZeroU64::MIN.saturating_add(1);
    const BURST: NonZeroU64 = NonZeroU64::MIN.saturating_add(9);
    let quota = Quota::new(RATE, Span::from_secs(1), BURST);
    // Bursts of 30 within a second, every 10 s.
    let load = || {
        let burst = |n: u64| {
            let at = move |k: u64| Time::from_secs(n * 10 + 2) + Span::from_millis(33) * k;
            (0..30).map(move |k| request(n * 30 + k, at(k), 30, 16))
        };
        (0..6).flat_map(burst)
    };
    let count = |report: &Report| {
        let mut arrivals: Vec<f64> = report
            .rows
            .iter()
            .filter(|row| row.is_finished())
            .map(|row| row.arrival.as_secs_f64())
            .collect();
        arrivals.sort_by(f64::total_cmp);
        let mut points = vec![(0.0, 0.0)];
        for (n, at) in (0..).zip(arrivals) {
            points.extend([(at, f64::from(n)), (at, f64::from(n + 1))]);
        }
        points.extend(points.last().map(|&(_, n)| (60.0, n)));
        points
    };
    let bucket = with(
        vec![Box::new(TokenBucket::global(quota, Cost::Request))],
        load(),
    )?;
    Ok(Chart {
        title: "A token bucket lets a burst through, and then the rate",
        setting: "bursts of 30 requests every 10 s; 2 a second and 10 at once are allowed",
        x: Axis::to(60.0, "time (s)"),
        y: Axis::to(200.0, "requests admitted so far"),
        series: vec![
            Series::new("token bucket", Role::Policy, count(&bucket)),
            Series::new(
                "everything is admitted",
                Role::Control,
                count(&with(Vec::new(), load())?),
            ),
            Series::new(
                "burst + rate x time",
                Role::Guide,
                vec![(0.0, 10.0), (60.0, 130.0)],
            ),
        ],
    })
}
