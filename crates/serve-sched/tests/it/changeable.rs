//! What of each policy can change while requests wait and run: the table in docs/policies/README.md, held to what a
//! scheduler and a dispatcher take.

use std::fs;
use std::path::PathBuf;

use serve_core::{Limits, Time};
use serve_sched::admit::ADMISSIONS;
use serve_sched::batch::{BATCH, BATCHES};
use serve_sched::budget::{BUDGET, BUDGETS};
use serve_sched::limit::LIMITS;
use serve_sched::order::{ORDER, ORDERS};
use serve_sched::settings::{Change, Kind, MAX_BATCH, Named, Row, Value};
use serve_sched::table::{Needs, table};
use serve_sched::victim::{VICTIM, VICTIMS};
use serve_sched::{Dispatcher, Scheduler, Settings};

use crate::support::LIMITS as DEVICE;

/// A policy with the settings that are its own.
struct Policy {
    name: String,
    /// What is chosen for it to be there.
    chosen: Option<(&'static Row, &'static str)>,
    settings: Vec<&'static Row>,
}

/// The policies of a family, with the setting that chooses among them as the first.
fn family<T: ?Sized>(
    row: &'static Row,
    policies: &'static [Named<T>],
) -> impl Iterator<Item = Policy> {
    let choice = Policy {
        name: format!("which {}", row.name),
        chosen: None,
        settings: vec![row],
    };
    let each = policies.iter().map(|policy| Policy {
        name: policy.name.to_owned(),
        chosen: Some((row, policy.name)),
        settings: policy.settings.to_vec(),
    });
    std::iter::once(choice).chain(each)
}

fn row(name: &str) -> &'static Row {
    serve_sched::table::find(name).unwrap_or_else(|| panic!("there is no setting {name}"))
}

/// Every policy, in the order of the index.
fn policies() -> Vec<Policy> {
    let beside = |name: &str, settings: &[&str]| Policy {
        name: name.to_owned(),
        chosen: None,
        settings: settings.iter().map(|name| row(name)).collect(),
    };
    let mut policies = Vec::new();
    policies.extend(ADMISSIONS.iter().map(|policy| Policy {
        name: policy.name.to_owned(),
        chosen: None,
        settings: policy.settings.to_vec(),
    }));
    policies.extend(family(&ORDER.row, ORDERS));
    policies.push(Policy {
        name: "composed-orders".to_owned(),
        chosen: Some((&ORDER.row, "aging/fair-groups/response-ratio")),
        settings: ["age_after", "input_weight", "output_weight", "wait_max"]
            .map(row)
            .to_vec(),
    });
    let batches = family(&BATCH.row, BATCHES).map(|mut policy| {
        if policy.chosen.is_some() {
            policy.settings.insert(0, &MAX_BATCH.row);
        }
        policy
    });
    policies.extend(batches);
    policies.extend(family(&BUDGET.row, BUDGETS));
    policies.extend(family(&VICTIM.row, VICTIMS));
    policies.push(beside("prefix-cache", &["prefix_cache", "prefix_shared"]));
    policies.push(beside(
        "preemption-by-class",
        &["preempt_by_class", "preemptions_max"],
    ));
    policies
}

/// Settings under which a policy is there, with nothing said of the row.
fn around(policy: &Policy, row: &'static Row) -> Settings {
    let mut settings = Settings::default();
    settings.set_text("classes", "paid,free").unwrap();
    if let Some((family, name)) = policy.chosen {
        settings.set_text(family.name, name).unwrap();
    }
    let entries = table();
    let needs = entries.iter().find(|entry| entry.row.name == row.name);
    if let Some(Needs::Switch(switch)) = needs.and_then(|entry| entry.needs.as_ref()) {
        settings.set_text(switch.name, "true").unwrap();
    }
    settings
}

/// A value that the setting does not have.
fn another(row: &Row, has: &Settings) -> String {
    let usual = row.usual.value();
    let other_name = |known: Vec<&'static str>| {
        let is_usual = |name: &&str| usual.as_ref().is_some_and(|it| it.to_string() == **name);
        known
            .into_iter()
            .find(|name| !is_usual(name))
            .unwrap()
            .to_owned()
    };
    match row.kind {
        // Less than the device has room for.
        _ if row.name == MAX_BATCH.row.name => "1".to_owned(),
        Kind::Switch => (usual != Some(Value::Switch(true))).to_string(),
        Kind::Name(known) => other_name(known()),
        Kind::Path { inner, .. } => other_name(inner()),
        Kind::Classes => "a,b,c".to_owned(),
        Kind::ByClass => "free=7".to_owned(),
        Kind::StepTimes => "1=7".to_owned(),
        _ => {
            assert!(!has.is_given(row.name));
            "7".to_owned()
        }
    }
}

/// Whether a running scheduler takes another value of a policy's setting.
fn changes(policy: &Policy, row: &'static Row) -> bool {
    let before = around(policy, row);
    let mut after = before.clone();
    after.set_text(row.name, &another(row, &before)).unwrap();
    let change = Change::between(&before, &after).unwrap();
    assert!(change.concerns(row), "{}", row.name);
    let limits = Limits {
        sequences_max: 4,
        ..DEVICE
    };
    let before = before.policies().unwrap();
    Scheduler::new(limits, before)
        .unwrap()
        .change(Time::ZERO, &change)
        .is_ok()
}

fn listed(rows: &[&'static Row]) -> String {
    let names = rows.iter().map(|row| format!("`{}`", row.name));
    names.collect::<Vec<_>>().join(", ")
}

fn line(name: &str, rows: &[&'static Row], changes: impl Fn(&'static Row) -> bool) -> String {
    let rows = rows.iter().copied();
    let (now, at_a_start): (Vec<_>, Vec<_>) = rows.partition(|row| changes(row));
    format!("| {name} | {} | {} |", listed(&now), listed(&at_a_start))
}

/// The rows of the table. A policy without a setting has none.
fn lines() -> Vec<String> {
    let policies = policies();
    let of_settings = policies.iter().filter(|policy| !policy.settings.is_empty());
    let of_settings =
        of_settings.map(|policy| line(&policy.name, &policy.settings, |row| changes(policy, row)));
    // The others find their limit themselves.
    let limits = LIMITS.iter().filter(|limit| {
        let mut after = Settings::default();
        after.set_text(MAX_BATCH.row.name, "1").unwrap();
        let change = Change::between(&Settings::default(), &after).unwrap();
        let order = ORDERS[0].by_default();
        let mut dispatcher = Dispatcher::new(Vec::new(), order, limit.by_default());
        dispatcher.change(Time::ZERO, &change).is_ok()
    });
    let limits = limits.map(|limit| line(limit.name, &[&MAX_BATCH.row], |_| true));
    of_settings.chain(limits).collect()
}

#[test]
fn the_index_of_policies_says_what_changes_while_requests_wait_and_run() {
    let lines = lines();
    let page = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../docs/policies/README.md");
    // Not there in a copy of this crate alone.
    let Ok(text) = fs::read_to_string(page) else {
        return;
    };
    let section = text
        .split("\n## Changes while requests wait and run\n")
        .nth(1);
    let section = section.unwrap().split("\n## ").next().unwrap();
    let rows = section.lines().filter(|line| line.starts_with("| "));
    // Without the heading.
    let documented: Vec<&str> = rows.skip(1).collect();
    let whole = lines.join("\n");
    assert_eq!(
        documented, lines,
        "the table of docs/policies/README.md should be\n{whole}\n"
    );
}
