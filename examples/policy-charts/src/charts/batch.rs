//! Batches: what is gained by sharing a step, and lost by waiting for one another.

use std::error::Error;

use examples_support::{clients, l4, request};
use serve_core::rng::Rng;
use serve_core::{Request, Span};
use serve_sched::Policies;
use serve_sched::batch::{Batch, Continuous, OneAtATime, Static, Window};
use serve_sched::sim::Row;

use super::load::{arrivals, latencies, secs, serve, sweep};
use crate::chart::{Axis, Chart, Role, Series};

type Points = Result<Vec<(f64, f64)>, Box<dyn Error>>;

fn by(batch: impl Batch + 'static) -> Policies {
    Policies {
        admit: Vec::new(),
        batch: Box::new(batch),
        ..Policies::default()
    }
}

fn batches_of_8() -> Static {
    Static::new(8, Window::Fixed(Span::from_millis(10)))
}

pub(super) fn one_at_a_time() -> Result<Chart, Box<dyn Error>> {
    let rate = |policies: &dyn Fn() -> Policies| -> Points {
        let point = |many: f64| {
            let shape = |id, now| request(id, now, 30, 64);
            let report = clients(&l4(16)?, policies(), many as u32, 0..160, shape)?;
            Ok((many, 160.0 / report.end.as_secs_f64()))
        };
        sweep(1, 16, 1).map(point).collect()
    };
    Ok(Chart {
        title: "One at a time: more clients are no more throughput",
        setting: "a closed loop, answers of 64 tokens; sixteen sequences cost 1.11 times one",
        x: Axis::to(16.0, "clients, each waiting for its answer"),
        y: Axis::to(15.0, "throughput (requests/s)"),
        series: vec![
            Series::new("one at a time", Role::Policy, rate(&|| by(OneAtATime))?),
            Series::new(
                "continuous batching",
                Role::Control,
                rate(&|| by(Continuous::default()))?,
            ),
        ],
    })
}

pub(super) fn static_batch() -> Result<Chart, Box<dyn Error>> {
    let latency = |policies: &dyn Fn() -> Policies| -> Points {
        let point = |tenths: f64| {
            let rate = tenths / 10.0;
            let load = arrivals(3, rate, 300).map(|(id, at)| request(id, at, 30, 64));
            let report = serve(policies(), load)?;
            Ok((rate, secs(50, latencies(&report))))
        };
        sweep(2, 80, 2).map(point).collect()
    };
    Ok(Chart {
        title: "Static batches carry seven times the load of none",
        setting: "batches of 8 within 10 ms, answers of 64 tokens, 5 min at each rate",
        x: Axis::to(8.0, "offered rate (requests/s)"),
        y: Axis::to(6.0, "median latency (s)"),
        series: vec![
            Series::new(
                "static batches",
                Role::Policy,
                latency(&|| by(batches_of_8()))?,
            ),
            Series::new("one at a time", Role::Control, latency(&|| by(OneAtATime))?),
        ],
    })
}

pub(super) fn continuous() -> Result<Chart, Box<dyn Error>> {
    let load = |rate: f64| -> Vec<Request> {
        let mut lengths = Rng::new(2);
        let mut length = move || 8 + lengths.below(112) as u32;
        arrivals(3, rate, 300)
            .map(|(id, at)| request(id, at, 30, length()))
            .collect()
    };
    let first_token = |percent, policies: &dyn Fn() -> Policies| -> Points {
        let point = |tenths: f64| {
            let rate = tenths / 10.0;
            let report = serve(policies(), load(rate))?;
            Ok((
                rate,
                secs(
                    percent,
                    report.rows.iter().filter_map(Row::first_token_time),
                ),
            ))
        };
        sweep(2, 80, 2).map(point).collect()
    };
    let joining = || by(Continuous::default());
    let fixed = || by(batches_of_8());
    Ok(Chart {
        title: "Continuous batches: the first token is a step away until all slots are taken",
        setting: "8 slots, answers of 8 to 119 tokens, 5 min at each rate",
        x: Axis::to(8.0, "offered rate (requests/s)"),
        y: Axis::to(6.0, "time to first token (s)"),
        series: vec![
            Series::new("continuous, p50", Role::Policy, first_token(50, &joining)?),
            Series::new(
                "continuous, p99",
                Role::PolicyToo,
                first_token(99, &joining)?,
            ),
            Series::new("static, p50", Role::Control, first_token(50, &fixed)?),
            Series::new("static, p99", Role::ControlToo, first_token(99, &fixed)?),
        ],
    })
}
