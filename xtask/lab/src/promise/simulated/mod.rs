//! What admission promises and what comes of it, in virtual time: each policy of a real server's settings beside the
//! same requests without it, below and above the capacity, where slots are the limit and where memory is.
//!
//! It is not a measurement: there is no edge and no clock, so the same seeds give the same table on every machine.
//! The capacity is what the simulated device answers in a second when everybody waits from the start.

mod case;
mod command;

use serde::Serialize;

pub(crate) use case::{Binding, Kept, PromisesError, capacity_per_s};
pub(crate) use command::run;
use serve_bench::analysis::table::{Table, number, percent};

/// Loads, as multiples of the capacity.
pub(crate) const LOADS: [f64; 4] = [0.9, 1.2, 2.0, 4.0];

/// A policy, and what it promises of the requests that it takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Policy {
    /// The end within the target.
    LatencyBudget,
    /// The first token within the target.
    FirstTokenBudget,
    /// The end by each request's own deadline.
    DeadlineAdmission,
    /// A first token without waiting for a place. It refuses whatever would wait, so no goodput is promised.
    ConcurrencyLimit,
}

impl Policy {
    /// All of them, in the order of the table.
    pub(crate) const ALL: [Self; 4] = [
        Self::LatencyBudget,
        Self::FirstTokenBudget,
        Self::DeadlineAdmission,
        Self::ConcurrencyLimit,
    ];

    /// The setting that turns it on, and its value.
    pub(crate) const fn setting(self) -> (&'static str, &'static str) {
        match self {
            Self::LatencyBudget => ("latency_budget", "6"),
            Self::FirstTokenBudget => ("first_token_budget", "3"),
            Self::DeadlineAdmission => ("deadline_admission", "true"),
            Self::ConcurrencyLimit => ("concurrency_limit", "true"),
        }
    }

    /// The promised time, in seconds. Without waiting, a first token takes a few steps.
    pub(crate) const fn target_s(self) -> f64 {
        match self {
            Self::LatencyBudget | Self::DeadlineAdmission => 6.0,
            Self::FirstTokenBudget => 3.0,
            Self::ConcurrencyLimit => 0.3,
        }
    }

    /// The deadline that its requests have, in seconds.
    const fn deadline_s(self) -> Option<f64> {
        match self {
            Self::DeadlineAdmission => Some(self.target_s()),
            _ => None,
        }
    }

    /// Whether it is kept: p99 within 5% of the target, within 10% beyond twice the capacity; below the
    /// capacity nobody refused (one in 2,000 at most), above it 95% of the capacity answered in time.
    pub(crate) fn is_kept(self, load: f64, kept: &Kept) -> bool {
        let slack = if load > 2.0 { 0.10 } else { 0.05 };
        let in_time = kept
            .p99_s
            .is_some_and(|p99| p99 <= self.target_s() * (1.0 + slack));
        let useful = match load < 1.0 {
            true => kept.refused < 0.0005,
            false => kept.goodput >= 0.95,
        };
        in_time && (useful || self == Self::ConcurrencyLimit)
    }
}

/// A promise at a load, with and without the policy: of each number the worst of the seeds.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct Line {
    /// What the limit is.
    pub(crate) binding: Binding,
    /// What is promised.
    pub(crate) promise: Policy,
    /// The load, as a multiple of the capacity.
    pub(crate) load: f64,
    /// With the policy.
    pub(crate) on: Kept,
    /// The same requests, and nobody is refused.
    pub(crate) control: Kept,
    /// Whether the promise is kept.
    pub(crate) kept: bool,
}

/// How much is simulated.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Plan {
    /// Requests at each load.
    pub(crate) requests: u32,
    /// One set of arrivals each.
    pub(crate) seeds: Vec<u64>,
}

/// What came of every promise.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Simulated {
    /// Answers a second that the device can give where each thing is the limit.
    pub(crate) capacities_per_s: Vec<(Binding, f64)>,
    /// Each promise at each load.
    pub(crate) lines: Vec<Line>,
}

/// Simulates every promise at every load, where slots and where memory is the limit. A control that is the same for
/// several promises is simulated once.
///
/// # Errors
///
/// [`PromisesError`] when a setting or a workload is refused.
pub(crate) fn promises(plan: &Plan) -> Result<Simulated, PromisesError> {
    let mut outcome = Simulated::default();
    for binding in Binding::ALL {
        let capacity_per_s = binding.capacity_per_s()?;
        outcome.capacities_per_s.push((binding, capacity_per_s));
        let mut lines = Vec::new();
        for load in LOADS {
            let mut worst = None;
            for &seed in &plan.seeds {
                let point = case::Point {
                    binding,
                    capacity_per_s,
                    load,
                    seed,
                    requests: plan.requests,
                };
                worst = Some(or_worse(with_and_without(&point)?, worst));
            }
            let kept = Policy::ALL.into_iter().zip(worst.into_iter().flatten());
            lines.extend(kept.map(|(promise, [on, control])| Line {
                kept: promise.is_kept(load, &on),
                binding,
                promise,
                load,
                on,
                control,
            }));
        }
        lines.sort_by_key(|line| Policy::ALL.iter().position(|it| *it == line.promise));
        outcome.lines.extend(lines);
    }
    Ok(outcome)
}

/// Of each promise, in their order, with its policy and without.
type OnAndControl = [[Kept; 2]; Policy::ALL.len()];

fn with_and_without(point: &case::Point) -> Result<OnAndControl, PromisesError> {
    let nobody_refused = point.simulate(None, None)?;
    let mut all = OnAndControl::default();
    for (kept, promise) in all.iter_mut().zip(Policy::ALL) {
        let deadline_s = promise.deadline_s();
        let on = point.simulate(Some(promise.setting()), deadline_s)?;
        let control = match deadline_s {
            None => point.kept(promise, &nobody_refused),
            Some(_) => point.kept(promise, &point.simulate(None, deadline_s)?),
        };
        *kept = [point.kept(promise, &on), control];
    }
    Ok(all)
}

fn or_worse(mut all: OnAndControl, others: Option<OnAndControl>) -> OnAndControl {
    for (kept, other) in all
        .iter_mut()
        .flatten()
        .zip(others.iter().flatten().flatten())
    {
        *kept = kept.or_worse(Some(*other));
    }
    all
}

/// The lines for a person.
pub(crate) fn table(lines: &[Line]) -> Table {
    let columns = [
        "limit",
        "promise",
        "load",
        "target s",
        "p99 s",
        "goodput",
        "refused",
        "control p99 s",
        "control goodput",
        "verdict",
    ];
    let mut table = Table::new("", &columns);
    for line in lines {
        let (name, _) = line.promise.setting();
        table.row([
            line.binding.name().to_owned(),
            name.to_owned(),
            format!("{:.1}", line.load),
            number(Some(line.promise.target_s())),
            p99_s(line.on),
            percent(Some(line.on.goodput)),
            percent(Some(line.on.refused)),
            p99_s(line.control),
            percent(Some(line.control.goodput)),
            if line.kept { "kept" } else { "BROKEN" }.to_owned(),
        ]);
    }
    table.note(
        "p99: of the end, or (first_token_budget, concurrency_limit) the first token, of requests that were taken; \
         late: more than one in a hundred of them had no answer by its deadline",
    );
    table.note(
        "goodput: answers in time over those that the device can give; refused: of all requests",
    );
    table.note(
        "control: the same requests with queue_cap=0 and no such policy, so that nobody is refused",
    );
    table
}

fn p99_s(kept: Kept) -> String {
    let late = || "late".to_owned();
    kept.p99_s.map_or_else(late, |p99_s| number(Some(p99_s)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kept(p99_s: f64, goodput: f64, refused: f64) -> Kept {
        Kept {
            p99_s: Some(p99_s),
            goodput,
            refused,
        }
    }

    #[test]
    fn a_promise_is_broken_by_time_by_goodput_and_by_needless_refusals() {
        let promise = Policy::LatencyBudget;
        assert!(promise.is_kept(2.0, &kept(6.2, 0.96, 0.5)));
        assert!(!promise.is_kept(2.0, &kept(6.4, 0.96, 0.5)));
        assert!(promise.is_kept(4.0, &kept(6.4, 0.96, 0.7)));
        assert!(!promise.is_kept(2.0, &kept(3.0, 0.94, 0.5)));
        assert!(!promise.is_kept(0.9, &kept(3.0, 0.99, 0.01)));
        assert!(!promise.is_kept(0.9, &Kept::default()));
        let at_once = Policy::ConcurrencyLimit;
        assert!(at_once.is_kept(2.0, &kept(0.1, 0.5, 0.5)));
        assert!(!at_once.is_kept(2.0, &kept(0.4, 0.99, 0.5)));
    }

    #[test]
    fn the_worst_of_two_seeds_is_worst_in_each_number() {
        let worst = kept(1.0, 0.9, 0.2).or_worse(Some(kept(2.0, 0.95, 0.1)));
        assert_eq!(worst, kept(2.0, 0.9, 0.2));
        // A seed in which nobody was answered has no p99, and nothing is worse.
        let none = Kept {
            p99_s: None,
            ..worst
        };
        assert_eq!(kept(1.0, 1.0, 0.0).or_worse(Some(none)).p99_s, None);
    }

    #[test]
    fn the_control_breaks_above_capacity_what_the_policy_keeps_and_the_table_is_fixed() {
        let plan = Plan {
            requests: 1_500,
            seeds: vec![1],
        };
        let outcome = promises(&plan).unwrap();
        let lines = &outcome.lines;
        assert_eq!(lines.len(), 2 * Policy::ALL.len() * LOADS.len());
        for line in lines.iter().filter(|line| line.load >= 2.0) {
            assert!(!line.promise.is_kept(line.load, &line.control), "{line:?}");
            assert_eq!(line.control.refused, 0.0, "{line:?}");
            assert!(line.on.refused > 0.3, "{line:?}");
            assert!(line.on.goodput > line.control.goodput, "{line:?}");
            assert!(
                line.control
                    .p99_s
                    .is_none_or(|p99_s| p99_s > line.promise.target_s()),
                "{line:?}"
            );
        }
        assert_eq!(table(lines).rows.len(), lines.len());
        assert_eq!(outcome, promises(&plan).unwrap());
    }
}
