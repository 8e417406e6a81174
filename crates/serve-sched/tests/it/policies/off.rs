//! A policy that is turned off is the control, journal and all.

use serve_core::rng::Rng;
use serve_core::{Class, Span};
use serve_sched::Policies;
use serve_sched::admit::{Admit, DeadlinePrediction, FirstTokenBudget, LatencyBudget, QueueCap};
use serve_sched::order::{AgingTiers, Fifo, Order, StrictTiers};

use super::{Spec, device, run};

/// Mixed classes at twice what the device can do.
fn overload() -> Vec<Spec> {
    let mut rng = Rng::new(3);
    let mut at = 0;
    let spec = |_| {
        at += rng.below(50);
        Spec {
            class: rng.below(3) as u8,
            prompt: 1 + rng.below(100) as u32,
            ..Spec::new(at, 1 + rng.below(40) as u32)
        }
    };
    (0..500).map(spec).collect()
}

fn journal(admit: Vec<Box<dyn Admit>>, order: Box<dyn Order>) -> String {
    let policies = Policies {
        admit,
        order,
        ..Policies::default()
    };
    run(device(4, 10), policies, &overload()).1
}

#[test]
fn aging_of_zero_is_strict_tiers() {
    let strict = journal(Vec::new(), Box::new(StrictTiers));
    let off = journal(Vec::new(), Box::new(AgingTiers::new(Span::ZERO)));
    assert_eq!(off, strict);
    let on = journal(Vec::new(), Box::new(AgingTiers::new(Span::from_secs(1))));
    assert_ne!(on, strict, "or the load would show nothing");
}

#[test]
fn admission_turned_off_is_no_admission() {
    let none = journal(Vec::new(), Box::new(Fifo));
    let off: [Box<dyn Admit>; 4] = [
        Box::new(QueueCap::new(0).with_class(Class::new(1), 1)),
        Box::new(LatencyBudget::new(Span::ZERO)),
        Box::new(FirstTokenBudget::new(Span::ZERO)),
        Box::new(DeadlinePrediction::default()), // nobody has a deadline
    ];
    for policy in off {
        let name = policy.name();
        assert_eq!(journal(vec![policy], Box::new(Fifo)), none, "{name}");
    }
    let on: [Box<dyn Admit>; 3] = [
        Box::new(QueueCap::new(30).with_class(Class::new(1), 1)),
        Box::new(LatencyBudget::new(Span::from_secs(1))),
        Box::new(FirstTokenBudget::new(Span::from_millis(5))),
    ];
    for policy in on {
        let name = policy.name();
        assert_ne!(journal(vec![policy], Box::new(Fifo)), none, "{name}");
    }
}
