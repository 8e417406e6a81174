//! What holds for every setting of the table, and for settings together.

use std::collections::BTreeSet;
use std::num::NonZeroU32;

use serve_core::Span;

use super::*;
use crate::Policies;
use crate::kv::KvSettings;
use crate::order::ORDERS;
use crate::settings::{
    CONTEXT, KV_TOKENS, Kind, QUEUE_TIMEOUT, SettingError, Settings, TenantSettings, Usual,
};
use crate::victim::Preemption;

/// Settings as texts: `order=fifo`.
fn settings(all: &[&str]) -> Result<Settings, SettingError> {
    let mut settings = Settings::default();
    for text in all {
        let (name, value) = text.split_once('=').unwrap();
        settings.set_text(name, value)?;
    }
    settings.check()?;
    Ok(settings)
}

fn refused(all: &[&str]) -> String {
    settings(all).unwrap_err().to_string()
}

fn admits(settings: &Settings) -> Vec<&'static str> {
    let policies = settings.policies().unwrap();
    policies.admit.iter().map(|policy| policy.name()).collect()
}

/// What has to be given so that a setting can be.
fn chosen(needs: &Needs) -> String {
    match needs {
        Needs::Switch(switch) => format!("{}=true", switch.name),
        Needs::Policy { family, names } => format!("{}={}", family.name, names[0]),
    }
}

/// A value of the kind that is not the default.
fn another(row: &Row) -> String {
    let text = match row.kind {
        Kind::Seconds | Kind::Rate | Kind::Whole { .. } => "70",
        Kind::Seed | Kind::Factor | Kind::Micros => "2",
        Kind::Switch if row.usual == Usual::Switch(true) => "false",
        Kind::Switch => "true",
        Kind::Name(known) | Kind::Path { inner: known, .. } => known().last().unwrap(),
        Kind::Classes => "gold,tin",
        Kind::ByClass => "free=3",
        Kind::StepTimes => "1=10",
    };
    text.to_owned()
}

#[test]
fn names_are_unique_and_can_be_a_flag_a_variable_and_a_key() {
    let names: Vec<&str> = table().iter().map(|entry| entry.row.name).collect();
    assert_eq!(names.iter().collect::<BTreeSet<_>>().len(), names.len());
    for name in names {
        let is_plain = |b: u8| b.is_ascii_lowercase() || b == b'_';
        assert!(name.bytes().all(is_plain), "{name}");
    }
}

#[test]
fn help_says_what_a_setting_is_and_neither_its_default_nor_what_it_needs() {
    for Entry { row, .. } in table() {
        let help = row.help;
        assert!(help.starts_with(|c: char| c.is_uppercase()), "{help}");
        for part in ["[default", "; for --", "  "] {
            assert!(!help.contains(part), "{help}");
        }
        assert!(!help.ends_with(['.', ' ', ';']), "{help}");
    }
}

#[test]
fn every_default_is_a_value_that_is_accepted_and_changes_nothing() {
    for entry in table() {
        let row = entry.row;
        let Some(usual) = row.usual.value() else {
            continue;
        };
        assert_eq!(
            row.parse(&usual.to_string()),
            Ok(usual.clone()),
            "{}",
            row.name
        );
        let mut given = Settings::default();
        given.set_text(row.name, &usual.to_string()).unwrap();
        for other in table() {
            let of = |settings: &Settings| settings.effective(&other);
            let is_own = other.row.name == row.name;
            assert!(
                is_own || of(&given) == of(&Settings::default()),
                "{}",
                row.name
            );
        }
    }
}

#[test]
fn every_setting_can_be_given_and_is_refused_without_what_it_needs() {
    for entry in table() {
        let row = entry.row;
        let own = format!("{}={}", row.name, another(row));
        let needs = entry.needs.as_ref().map(chosen);
        let mut all: Vec<&str> = needs.iter().map(String::as_str).collect();
        all.push(&own);
        let given = settings(&all).unwrap();
        assert!(given.is_given(row.name));
        let effective = given.effective(&entry).unwrap().to_string();
        assert_eq!(effective, another(row), "{}", row.name);
        assert_ne!(row.usual.to_string(), another(row), "{}", row.name);
        if let Some(needs) = &entry.needs {
            let says = format!("{}: it needs {}", row.flag(), needs.flags());
            assert_eq!(refused(&[&own]), says);
            assert_eq!(Settings::default().effective(&entry), None, "{}", row.name);
        }
    }
}

#[test]
fn a_value_that_is_not_accepted_is_refused_by_name() {
    for entry in table() {
        let row = entry.row;
        // Any text is names of classes; whether they can be is looked at beside the others.
        let wrong = if row.name == "classes" { "a,a" } else { "?" };
        let message = refused(&[&format!("{}={wrong}", row.name)]);
        assert!(message.contains(&row.flag()), "{message}");
    }
    let range = "invalid value '86401' for '--age-after <SECONDS>': a number of seconds from 0 to 86400, or \
                 with a unit, such as 250ms, 30s, 5m or 1h";
    assert_eq!(refused(&["order=aging-tiers", "age_after=86401"]), range);
    let zero = refused(&["max_batch=0"]);
    assert!(zero.ends_with("a whole number from 1 up"), "{zero}");
    let unknown = refused(&["order=lifo"]);
    assert!(
        unknown.contains("one of fifo, strict-tiers, aging-tiers"),
        "{unknown}"
    );
}

#[test]
fn what_contradicts_another_setting_says_so() {
    let table: &[(&[&str], &str)] = &[
        (
            &["max_bacth=3"],
            "max_bacth is not a setting; known are max_batch, ",
        ),
        (
            &["wait_max=5"],
            "--wait-max: it needs --order response-ratio",
        ),
        (
            &["deadline_margin=1"],
            "--deadline-margin: it needs --deadline-admission",
        ),
        (
            &["deadline_margin=1", "deadline_admission=off"],
            "--deadline-margin: it needs --deadline-admission",
        ),
        (
            &["batch=static", "batch_window_max=0.005"],
            "--batch-window-max: it must not be below --batch-window",
        ),
        (
            &["request_timeout=5", "queue_timeout=5"],
            "--queue-timeout: it must be below --request-timeout",
        ),
        (
            &["classes=a,a"],
            "--classes: it must be 1 to 16 different names",
        ),
        (
            &["classes=a,,b"],
            "--classes: it must be 1 to 16 different names",
        ),
        (
            &["class_queue_cap=gold=3"],
            "--class-queue-cap: there is no class \"gold\"; known are paid, free",
        ),
    ];
    for (all, says) in table {
        let message = refused(all);
        assert!(message.starts_with(says), "{message}");
    }
    assert!(settings(&["classes=gold,tin", "class_queue_cap=gold=3"]).is_ok());
}

#[test]
fn a_value_that_is_given_as_such_is_checked_like_a_text() {
    let day = Span::from_secs(86_401);
    let long = Settings::default().with(&QUEUE_TIMEOUT, day);
    let message = long.check().unwrap_err().to_string();
    assert!(
        message.contains("'86401' for '--queue-timeout"),
        "{message}"
    );
    let unknown = Settings::default().with(&ORDER, "lifo".to_owned());
    assert!(unknown.policies().is_err());
    let known = Settings::default().with(&ORDER, "aging-tiers".to_owned());
    assert_eq!(known.policies().unwrap().order.name(), "aging-tiers");
    assert_eq!(known.with(&ORDER, "fifo".to_owned()).get(&ORDER), "fifo");
}

#[test]
fn what_is_not_given_and_has_no_default_is_nothing() {
    let settings = Settings::default();
    assert_eq!(settings.get(&CONTEXT), None);
    assert_eq!(settings.get(&KV_TOKENS), None);
    let some = settings.with(&CONTEXT, NonZeroU32::new(7));
    assert_eq!(some.get(&CONTEXT), NonZeroU32::new(7));
    assert_eq!(some.with(&CONTEXT, None), Settings::default());
}

#[test]
fn every_limit_is_off_at_zero_and_asked_in_a_fixed_order() {
    assert!(admits(&settings(&["queue_cap=0"]).unwrap()).is_empty());
    assert_eq!(admits(&Settings::default()), ["queue-cap"]);
    let mut all = settings(&[
        "latency_budget=1",
        "first_token_budget=1",
        "tenant_in_flight=3",
        "class_kv_tokens=free=9",
        "deadline_admission=true",
        "tokens_per_s=5",
        "concurrency_limit=true",
    ])
    .unwrap();
    all.tenants.push(TenantSettings {
        requests_per_s: Some(1.0),
        ..TenantSettings::default()
    });
    let names = [
        "queue-cap",
        "concurrency-limit",
        "in-flight-limits",
        "token-bucket",
        "token-bucket",
        "deadline-prediction",
        "first-token-budget",
        "latency-budget",
    ];
    assert_eq!(admits(&all), names);
}

#[test]
fn policies_are_found_by_name() {
    for order in ORDERS {
        let given = settings(&[&format!("order={}", order.name)]).unwrap();
        assert_eq!(given.policies().unwrap().order.name(), order.name);
    }
    for batch in BATCHES {
        let given = settings(&[&format!("batch={}", batch.name)]).unwrap();
        assert_eq!(given.policies().unwrap().batch.name(), batch.name);
    }
    for budget in BUDGETS {
        let given = settings(&[&format!("budget={}", budget.name)]).unwrap();
        assert_eq!(given.policies().unwrap().budget.name(), budget.name);
    }
    for victim in VICTIMS {
        let given = settings(&[&format!("victim={}", victim.name)]).unwrap();
        assert_eq!(given.policies().unwrap().victim.name(), victim.name);
    }
}

#[test]
fn without_settings_the_policies_are_the_default_ones() {
    let (own, usual) = (Settings::default().policies().unwrap(), Policies::default());
    let names = |of: &Policies| {
        let names = [of.order.name(), of.batch.name(), of.budget.name()];
        [&names[..], &[of.victim.name()]].concat().join(" ")
    };
    assert_eq!(names(&own), names(&usual));
    let admits = |of: &Policies| of.admit.iter().map(|it| it.name()).collect::<Vec<_>>();
    assert_eq!(admits(&own), admits(&usual));
    assert_eq!((own.preemption, own.kv), (usual.preemption, usual.kv));
}

#[test]
fn preemption_and_cache_are_as_the_settings_say() {
    let given = settings(&[
        "preempt_by_class=true",
        "preemptions_max=7",
        "watermark_blocks=9",
        "prefix_cache=false",
        "prefix_shared=true",
    ]);
    let policies = given.unwrap().policies().unwrap();
    let preemption = Preemption {
        times_max: 7,
        by_class: true,
    };
    assert_eq!(policies.preemption, preemption);
    let kv = KvSettings {
        reuse_prefixes: false,
        isolate_tenants: false,
        watermark_blocks: Some(9),
        hash_key: 0,
    };
    assert_eq!(policies.kv, kv);
}
