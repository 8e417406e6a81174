//! A policy that settings choose and its controls, run under the same load; and the table of what each request's owner
//! sees of it.

use std::error::Error;
use std::num::NonZeroU32;

use examples_support::{Table, l4_with_blocks, ms, percentile, secs, simulate_preempting};
use serve_core::mock::{Mock, MockConfig};
use serve_core::{Limits, Time};
use serve_sched::Settings;
use serve_sched::order::ORDER;
use serve_sched::settings::MAX_BATCH;
use serve_sched::sim::{Report, Row, Terminal};

use crate::cases::{Case, Choice};
use crate::scene::Scene;

/// What came of one choice.
pub(crate) struct Run {
    name: &'static str,
    report: Report,
    /// Positions that were run in vain, as their requests were preempted.
    lost_tokens: u64,
}

/// The policy first, then its controls.
pub(crate) fn run(case: &Case, scene: &Scene) -> Result<Vec<Run>, Box<dyn Error>> {
    let choices = std::iter::once(&case.policy).chain(case.controls);
    choices.map(|choice| run_one(case, choice, scene)).collect()
}

fn run_one(case: &Case, choice: &Choice, scene: &Scene) -> Result<Run, Box<dyn Error>> {
    let mut settings = Settings::default();
    let slots = scene.slots.to_string();
    let of_scene = [("max_batch", &*slots)];
    for (name, value) in of_scene.iter().chain(case.both).chain(choice.1) {
        settings.set_text(name, value)?;
    }
    let grouped = settings.get(&ORDER) == "fair-groups";
    settings.tenants = scene.tenants.clone();
    for tenant in settings.tenants.iter_mut().filter(|_| !grouped) {
        // A tenant with a share of its own is a group by itself.
        (tenant.weight, tenant.group) = (Some(NonZeroU32::MIN), None);
    }
    let device = l4_with_blocks(scene.slots, scene.blocks)?;
    let device = Mock::new(MockConfig {
        limits: Limits {
            sequences_max: settings.get(&MAX_BATCH).get(),
            ..device.config().limits
        },
        ..device.config().clone()
    });
    let load = scene.load.iter().cloned();
    let (report, lost_tokens) = simulate_preempting(&device, settings.policies()?, load)?;
    Ok(Run {
        name: choice.0,
        report,
        lost_tokens,
    })
}

/// A line for each choice and each of those whose requests are told apart.
pub(crate) fn table(scene: &Scene, runs: &[Run]) -> Table {
    let mut table = Table::new([
        "policy, then its controls",
        "answered",
        "refused",
        "cancelled",
        "first token p50",
        "first token p99",
        "between tokens p99",
        "latency p50",
        "latency p99",
        "preempted",
    ]);
    for run in runs {
        for (group, is_of) in scene.groups {
            let rows: Vec<&Row> = run.report.rows.iter().filter(|row| is_of(row)).collect();
            table.row(line(&format!("{}: {group}", run.name), &rows));
        }
    }
    table
}

fn line(name: &str, rows: &[&Row]) -> [String; 10] {
    let answered = || rows.iter().filter(|row| row.is_finished());
    let first = || answered().filter_map(|row| row.first_token_time());
    let between = answered().filter_map(|row| row.time_per_output_token());
    let latency = || answered().map(|row| row.response_time());
    let ended = |is: fn(&Terminal) -> bool| rows.iter().filter(|row| is(&row.terminal)).count();
    let preempted: u32 = rows.iter().map(|row| row.usage.preemptions).sum();
    [
        name.to_owned(),
        format!("{} of {}", answered().count(), rows.len()),
        ended(|end| matches!(end, Terminal::Refused(_))).to_string(),
        ended(|end| matches!(end, Terminal::Cancelled(_))).to_string(),
        secs(percentile(50, first())),
        secs(percentile(99, first())),
        ms(percentile(99, between)),
        secs(percentile(50, latency())),
        secs(percentile(99, latency())),
        preempted.to_string(),
    ]
}

/// What the device did: how long it took, and what it ran twice or not at all.
pub(crate) fn device_table(runs: &[Run]) -> Table {
    let mut table = Table::new([
        "device",
        "all done after",
        "busy",
        "prompt tokens run",
        "found in the cache",
        "run in vain",
    ]);
    for run in runs {
        let counters = run.report.stats.counters;
        table.row([
            run.name.to_owned(),
            secs(run.report.end.since(Time::ZERO)),
            secs(run.report.busy),
            counters.prefill_tokens.to_string(),
            counters.cached_tokens.to_string(),
            run.lost_tokens.to_string(),
        ]);
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cases::CASES;

    #[test]
    fn every_policy_does_something_else_than_its_controls_whatever_the_seed() {
        for case in CASES {
            for seed in [0, 1_000] {
                let scene = (case.scene)(seed);
                let runs = run(case, &scene).unwrap();
                let [policy, controls @ ..] = &runs[..] else {
                    panic!("{}: nothing", case.name);
                };
                assert!(!controls.is_empty(), "{}", case.name);
                for control in controls {
                    assert_eq!(policy.report.rows.len(), scene.load.len(), "{}", case.name);
                    assert_ne!(
                        policy.report.rows, control.report.rows,
                        "{} {}",
                        case.name, control.name
                    );
                }
            }
        }
    }

    #[test]
    fn everybody_is_of_one_group() {
        for case in CASES {
            let scene = (case.scene)(0);
            let runs = run(case, &scene).unwrap();
            for row in runs.iter().flat_map(|run| &run.report.rows) {
                let groups = scene.groups.iter().filter(|(_, is_of)| is_of(row)).count();
                assert_eq!(groups, 1, "{}: {row:?}", case.name);
            }
        }
    }
}
