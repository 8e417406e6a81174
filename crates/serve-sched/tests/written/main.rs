//! What the features `serde` and `tracing` write. A program of its own, as nothing else needs either.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::sync::{Arc, Mutex};

use serde_json::json;
use serve_core::{
    Blame, CancelReason, Class, Limit, Reason, Refusal, RequestId, Span, TenantId, Time,
};
use serve_sched::journal::{Decision, Entry, Sink};
use serve_sched::settings::Change;
use serve_sched::{Counters, DispatcherStats, Settings, TenantSettings, TracingSink};
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Metadata, Subscriber};

#[test]
fn a_journal_entry_is_written_with_its_numbers() {
    static SHELF: Reason = Reason::new("shelf_full", Blame::Tenant, "books");
    let limit = Limit::Policy {
        reason: &SHELF,
        value: 5,
        max: 4,
    };
    let entry = Entry {
        at: Time::from_millis(2),
        request: Some(RequestId::new(7)),
        decision: Decision::Refused {
            by: "house",
            refusal: Refusal::Later {
                limit,
                retry_after: Some(Span::from_nanos(9)),
            },
        },
    };
    let limit = json!({"Policy": {"reason": "shelf_full", "value": 5, "max": 4}});
    let refusal = json!({"Later": {"limit": limit, "retry_after": 9}});
    let expected = json!({
        "at": 2_000_000,
        "request": 7,
        "decision": {"Refused": {"by": "house", "refusal": refusal}},
    });
    assert_eq!(serde_json::to_value(&entry).unwrap(), expected);
}

#[test]
fn settings_are_written_as_they_are_said_and_without_the_secret() {
    let mut settings = Settings::default();
    settings.hash_key = 0xDEAD_BEEF;
    for (name, value) in [
        ("order", "aging-tiers"),
        ("age_after", "1.5"),
        ("queue_cap", "9"),
    ] {
        settings.set_text(name, value).unwrap();
    }
    let given = json!({"order": "aging-tiers", "age_after": 1.5, "queue_cap": 9});
    let expected = json!({"given": given, "tenants": [], "groups": []});
    assert_eq!(serde_json::to_value(&settings).unwrap(), expected);
    let change = Change::between(&Settings::default(), &settings).unwrap();
    let written = serde_json::to_value(&change).unwrap();
    assert_eq!(written["values"], given);
    assert!(!written.to_string().contains(&0xDEAD_BEEF_u32.to_string()));
}

#[test]
fn figures_and_terms_come_back_as_they_were_written() {
    let stats = DispatcherStats {
        waiting: 3,
        running: 2,
        aborting: 1,
        limit: 8,
        counters: Counters {
            arrived: u64::MAX,
            ..Counters::default()
        },
    };
    let text = serde_json::to_string(&stats).unwrap();
    assert_eq!(
        serde_json::from_str::<DispatcherStats>(&text).unwrap(),
        stats
    );
    let terms = TenantSettings {
        id: TenantId::new(4),
        tokens_per_s: Some(0.5),
        ..TenantSettings::default()
    };
    let text = serde_json::to_string(&terms).unwrap();
    assert_eq!(
        serde_json::from_str::<TenantSettings>(&text).unwrap(),
        terms
    );
    for reason in CancelReason::each() {
        let text = serde_json::to_string(&reason).unwrap();
        assert_eq!(serde_json::from_str::<CancelReason>(&text).unwrap(), reason);
    }
}

/// Keeps level and fields of each event.
#[derive(Clone, Default)]
struct Seen(Arc<Mutex<Vec<String>>>);

struct Fields(String);

impl Visit for Fields {
    fn record_debug(&mut self, field: &Field, value: &dyn std::fmt::Debug) {
        self.0 += &format!(" {field}={value:?}");
    }
}

impl Subscriber for Seen {
    fn enabled(&self, _metadata: &Metadata<'_>) -> bool {
        true
    }

    fn new_span(&self, _span: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _span: &Id, _values: &Record<'_>) {}

    fn record_follows_from(&self, _span: &Id, _follows: &Id) {}

    fn event(&self, event: &Event<'_>) {
        let metadata = event.metadata();
        let mut fields = Fields(format!("{} {}", metadata.level(), metadata.target()));
        event.record(&mut fields);
        self.0.lock().unwrap().push(fields.0);
    }

    fn enter(&self, _span: &Id) {}

    fn exit(&self, _span: &Id) {}
}

#[test]
fn a_journal_goes_to_tracing_entry_by_entry() {
    let seen = Seen::default();
    tracing::subscriber::with_default(seen.clone(), || {
        let admitted = Decision::Admitted {
            class: Class::new(1),
            tenant: TenantId::new(2),
            waiting: 3,
        };
        let draining = Decision::Draining {
            waiting: 1,
            running: 2,
        };
        for (request, decision) in [(Some(RequestId::new(7)), admitted), (None, draining)] {
            let at = Time::from_nanos(5);
            TracingSink.record(&Entry {
                at,
                request,
                decision,
            });
        }
    });
    let expected = [
        "DEBUG serve_sched message=admitted: c1 t2, 3 waiting at_ns=5 request=7",
        "INFO serve_sched message=draining: 1 waiting, 2 running at_ns=5",
    ];
    assert_eq!(*seen.0.lock().unwrap(), expected);
}
