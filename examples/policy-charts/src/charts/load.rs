//! Loads and readings that several charts share.

use std::error::Error;

use examples_support::{l4, mean, percentile, request, simulate};
use serve_core::{Request, Span, Time};
use serve_sched::Policies;
use serve_sched::order::Order;
use serve_sched::sim::{Poisson, Report, Row};

/// Requests a second that 8 slots answer at most, with 30 tokens in and 64 out: the measure of 100%
/// load. A step of eight takes 17.31 ms, and a prompt 1.8 ms.
pub(super) const CAPACITY: f64 = 7.13;
pub(super) const SLOTS: u32 = 8;

/// Chat requests at random times, at `load` times the capacity, for so many seconds.
pub(super) fn chats(seed: u64, load: f64, secs: u64) -> impl Iterator<Item = Request> {
    arrivals(seed, load * CAPACITY, secs).map(|(id, at)| request(id, at, 30, 64))
}

/// Ids and random times, `rate` a second, for so many seconds.
pub(super) fn arrivals(seed: u64, rate: f64, secs: u64) -> impl Iterator<Item = (u64, Time)> {
    let end = Time::from_secs(secs);
    (0..).zip(Poisson::new(seed, rate).take_while(move |&at| at < end))
}

/// Runs requests at [`SLOTS`] slots.
pub(super) fn serve(
    policies: Policies,
    load: impl IntoIterator<Item = Request>,
) -> Result<Report, Box<dyn Error>> {
    Ok(simulate(&l4(SLOTS)?, policies, load)?)
}

/// Runs requests that all wait, in this order.
pub(super) fn ordered(order: Box<dyn Order>, load: Vec<Request>) -> Result<Report, Box<dyn Error>> {
    let policies = Policies {
        admit: Vec::new(),
        order,
        ..Policies::default()
    };
    serve(policies, load)
}

/// Requests in the order of their arrival.
pub(super) fn merged(streams: impl IntoIterator<Item = Request>) -> Vec<Request> {
    let mut load: Vec<Request> = streams.into_iter().collect();
    load.sort_by_key(Request::arrival);
    load
}

/// The mean in each bucket of arrival times, as points in seconds.
pub(super) fn by_arrival<'a>(
    rows: impl Iterator<Item = &'a Row>,
    bucket_secs: f64,
    read: impl Fn(&Row) -> Option<Span>,
) -> Vec<(f64, f64)> {
    let mut buckets: Vec<Vec<Span>> = Vec::new();
    for row in rows {
        let bucket = (row.arrival.as_secs_f64() / bucket_secs) as usize;
        if buckets.len() <= bucket {
            buckets.resize(bucket + 1, Vec::new());
        }
        buckets[bucket].extend(read(row));
    }
    let filled = buckets
        .into_iter()
        .enumerate()
        .filter(|(_, spans)| !spans.is_empty());
    let point = |(bucket, spans): (usize, Vec<Span>)| {
        (
            (bucket as f64 + 0.5) * bucket_secs,
            mean(spans).as_secs_f64(),
        )
    };
    filled.map(point).collect()
}

/// A percentile in seconds.
pub(super) fn secs(percent: u32, spans: impl Iterator<Item = Span>) -> f64 {
    percentile(percent, spans).as_secs_f64()
}

/// The times to the end of those that were answered.
pub(super) fn latencies(report: &Report) -> impl Iterator<Item = Span> {
    report
        .rows
        .iter()
        .filter(|row| row.is_finished())
        .map(Row::response_time)
}

/// `from` to `to` in steps, both included.
pub(super) fn sweep(from: u32, to: u32, step: usize) -> impl Iterator<Item = f64> {
    (from..=to).step_by(step).map(f64::from)
}
