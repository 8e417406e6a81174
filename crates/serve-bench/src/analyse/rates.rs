//! What was asked for and what came, a second.

use serde::Serialize;

use super::group::Group;
use super::request::Request;
use crate::record::Record;

/// Rates over all runs, and beside them those of each run.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Rates {
    /// First scheduled send to last end, in seconds, added up over runs.
    pub wall_s: f64,
    /// Requests due a second; absent for fewer than two, or all at once.
    pub offered_per_s: Option<f64>,
    /// Requests sent a second.
    pub delivered_per_s: Option<f64>,
    /// Whole answers a second.
    pub answers_per_s: f64,
    /// Output tokens of whole answers a second.
    pub output_tokens_per_s: f64,
    /// Answers that kept every SLO a second.
    pub goodput_per_s: f64,
    /// Output tokens of these a second.
    pub good_tokens_per_s: f64,
    /// Output tokens of whole answers a second in each run, to see how far runs differ.
    pub output_tokens_per_s_of_run: Vec<f64>,
}

impl Rates {
    /// From the requests of each run and the group of all of them.
    pub(super) fn of(runs: &[Vec<Request<'_>>], all: &Group) -> Self {
        let walls = runs
            .iter()
            .map(|requests| wall_s(requests))
            .collect::<Vec<_>>();
        let wall_s = walls.iter().sum();
        let per_s = |count: u64| rate(count, wall_s);
        let mean = |rates: Vec<Option<f64>>| {
            let rates = rates.into_iter().flatten().collect::<Vec<_>>();
            (!rates.is_empty()).then(|| rates.iter().sum::<f64>() / rates.len() as f64)
        };
        let tokens = runs.iter().map(|requests| output_tokens(requests));
        Self {
            wall_s,
            offered_per_s: mean(runs.iter().map(|run| offered_per_s(run)).collect()),
            delivered_per_s: mean(runs.iter().map(|run| delivered_per_s(run)).collect()),
            answers_per_s: per_s(all.requests.ok),
            output_tokens_per_s: per_s(all.output_tokens),
            goodput_per_s: per_s(all.good),
            good_tokens_per_s: per_s(all.good_tokens),
            output_tokens_per_s_of_run: tokens.zip(&walls).map(|it| rate(it.0, *it.1)).collect(),
        }
    }
}

/// From the first scheduled send to the last end, in seconds.
pub fn wall_s(requests: &[Request<'_>]) -> f64 {
    let start = requests.iter().map(Request::scheduled_ns).min();
    let ends = requests.iter().flat_map(Request::attempts);
    let end = ends.filter_map(|row| row.end_ns).max();
    end.unwrap_or(0).saturating_sub(start.unwrap_or(0)) as f64 / 1e9
}

/// Output tokens of whole answers.
pub fn output_tokens(requests: &[Request<'_>]) -> u64 {
    let answers = requests.iter().filter_map(Request::answer);
    answers
        .map(|row| u64::from(row.output_tokens.unwrap_or(0)))
        .sum()
}

fn offered_per_s(requests: &[Request<'_>]) -> Option<f64> {
    gaps_per_s(originals(requests).map(|row| row.scheduled_ns))
}

fn delivered_per_s(requests: &[Request<'_>]) -> Option<f64> {
    gaps_per_s(originals(requests).filter_map(|row| row.sent_ns))
}

fn originals<'a>(requests: &'a [Request<'_>]) -> impl Iterator<Item = &'a Record> {
    requests
        .iter()
        .map(Request::first)
        .filter(|row| row.sent_ns.is_some())
}

/// Events a second between the first and the last.
fn gaps_per_s(times: impl Iterator<Item = u64>) -> Option<f64> {
    let (mut count, mut first, mut last) = (0_u64, u64::MAX, 0);
    for time in times {
        count += 1;
        first = first.min(time);
        last = last.max(time);
    }
    let gaps = count.checked_sub(1).filter(|gaps| *gaps > 0)?;
    (last > first).then(|| gaps as f64 * 1e9 / (last - first) as f64)
}

fn rate(count: u64, wall_s: f64) -> f64 {
    match wall_s > 0.0 {
        true => count as f64 / wall_s,
        false => 0.0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::analyse::testing::{MS, answer, numbered};

    #[test]
    fn offered_is_what_was_due_and_delivered_what_was_sent() {
        // Due every 100 ms, sent every 200 ms.
        let mut rows = numbered((0..11).map(|i| answer(i * 100, &[i * 100 + 5], Some(3))));
        for (row, i) in rows.iter_mut().zip(0..) {
            row.sent_ns = Some(i * 200 * MS);
        }
        rows.push(Record::not_sent(11, 9_000 * MS));
        let requests = Request::all(&rows, 0);
        assert_eq!(offered_per_s(&requests), Some(10.0));
        assert_eq!(delivered_per_s(&requests), Some(5.0));
        assert_eq!(offered_per_s(&requests[..1]), None);
        // The last answer ended at 1,007 ms.
        assert!((wall_s(&requests) - 1.007).abs() < 1e-12);
        assert_eq!(output_tokens(&requests), 33);
    }
}
