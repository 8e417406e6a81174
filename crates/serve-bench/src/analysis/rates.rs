//! What was asked for and what came, a second.

use serde::Serialize;

use super::group::Group;
use super::request::Request;
use super::tokens::{Tokens, rate};

/// Rates over all runs, and beside them those of each run.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Rates {
    /// First scheduled send to last end, in seconds, added up over runs.
    pub wall_s: f64,
    /// Whole answers a second.
    pub answers_per_s: f64,
    /// Output tokens of whole answers a second; absent where any of them has no count.
    pub output_tokens_per_s: Option<f64>,
    /// Answers that kept every SLO a second; absent where some cannot be judged.
    pub goodput_per_s: Option<f64>,
    /// Output tokens of these a second.
    pub good_tokens_per_s: Option<f64>,
    /// Output tokens of whole answers a second in each run whose answers all have a count, to see how far runs differ.
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
        let of_run = runs.iter().zip(&walls);
        let of_run =
            of_run.filter_map(|(run, wall)| Some(rate(output_tokens(run).known()?, *wall)));
        Self {
            wall_s,
            answers_per_s: per_s(all.requests.ok),
            output_tokens_per_s: all.output_tokens.known().map(per_s),
            goodput_per_s: (all.unjudged == 0).then(|| per_s(all.good)),
            good_tokens_per_s: all
                .good_tokens
                .known()
                .filter(|_| all.unjudged == 0)
                .map(per_s),
            output_tokens_per_s_of_run: of_run.collect(),
        }
    }
}

/// From the first scheduled send to the last end, in seconds.
pub(crate) fn wall_s(requests: &[Request<'_>]) -> f64 {
    let start = requests.iter().map(Request::scheduled_ns).min();
    let ends = requests.iter().flat_map(Request::attempts);
    let end = ends.filter_map(|row| row.end_ns).max();
    end.unwrap_or(0).saturating_sub(start.unwrap_or(0)) as f64 / 1e9
}

/// Output tokens of whole answers.
pub(crate) fn output_tokens(requests: &[Request<'_>]) -> Tokens {
    Tokens::of(requests.iter().filter_map(Request::answer))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::analysis::testing::{answer, numbered};
    use crate::store::record::Record;

    #[test]
    fn the_wall_runs_from_the_first_due_to_the_last_end() {
        let mut rows = numbered((0..11).map(|i| answer(100 + i * 100, &[i * 100 + 105], Some(3))));
        rows.push(Record::not_sent(11, 9_000_000_000));
        let requests = Request::all(&rows, 0);
        // Due from 100 ms on; the last answer ended at 1,107 ms.
        assert!((wall_s(&requests) - 1.007).abs() < 1e-12);
        assert_eq!(output_tokens(&requests).known(), Some(33));
        assert_eq!((rate(33, 1.5), rate(33, 0.0)), (22.0, 0.0));
    }
}
