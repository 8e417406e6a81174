//! Virtual token counters: the gap in service between two tenants that both wait is bounded, however
//! long both wait.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::num::NonZeroU32;
use std::rc::Rc;

use proptest::prelude::*;
use serve_core::mock::{Mock, MockConfig};
use serve_core::{Backend as _, Event, EventKind, Limits, TenantId, Time};
use serve_sched::order::{FairTenants, Fifo, Order};
use serve_sched::sim::{Arrivals, Simulation};
use serve_sched::{Policies, Scheduler};

use super::{Spec, device, requests};
use crate::quoted::{count, quoted};

const INPUT_WEIGHT: u32 = 1;
const OUTPUT_WEIGHT: u32 = 2;
const PROMPT_MAX: u32 = 40;
const OUTPUT_MAX: u32 = 30;

/// The largest change, over any interval in which both tenants wait, of the difference between what
/// the two are given for each share.
fn gap(mock: Mock, order: impl Order + 'static, specs: &[Spec], shares: [u32; 2]) -> f64 {
    let policies = Policies {
        admit: Vec::new(),
        order: Box::new(order),
        ..Policies::default()
    };
    let scheduler = Scheduler::new(mock.limits(), policies).unwrap();
    let events = Rc::new(RefCell::new(Vec::new()));
    let seen = Rc::clone(&events);
    Simulation::new(scheduler, mock)
        .with_observer(move |event: &Event| seen.borrow_mut().push(event.clone()))
        .run(&mut Arrivals::new(requests(specs)));

    // What happens at one time, for each tenant: (arrivals, starts, service).
    let mut changes: BTreeMap<Time, [(u32, u32, u32); 2]> = BTreeMap::new();
    for spec in specs {
        changes.entry(spec.arrival).or_default()[spec.tenant as usize].0 += 1;
    }
    for event in events.borrow().iter() {
        let spec = specs[event.request.get() as usize];
        let change = &mut changes.entry(event.at).or_default()[spec.tenant as usize];
        match event.kind {
            EventKind::Started => {
                change.1 += 1;
                change.2 += INPUT_WEIGHT * spec.prompt;
            }
            EventKind::Token { .. } => change.2 += OUTPUT_WEIGHT,
            _ => {}
        }
    }

    let (mut waiting, mut service) = ([0_i64; 2], [0.0; 2]);
    let mut range: Option<(f64, f64)> = None;
    let mut widest = 0.0_f64;
    for change in changes.values() {
        let mut both_wait = true;
        for tenant in 0..2 {
            let (arrived, started, served) = change[tenant];
            // A tenant that has nothing waiting just before or just after does not wait throughout.
            both_wait &= waiting[tenant] - i64::from(started) > 0;
            waiting[tenant] += i64::from(arrived) - i64::from(started);
            service[tenant] += f64::from(served) / f64::from(shares[tenant]);
        }
        let difference = service[0] - service[1];
        range = match range {
            Some((low, high)) if both_wait => Some((low.min(difference), high.max(difference))),
            // The interval begins here, after what has just happened.
            _ if waiting.iter().all(|&waiting| waiting > 0) => Some((difference, difference)),
            _ => None,
        };
        let (low, high) = range.unwrap_or_default();
        widest = widest.max(high - low);
    }
    widest
}

fn bound(slots: u32, shares: [u32; 2]) -> f64 {
    let held = slots * (PROMPT_MAX + OUTPUT_MAX);
    let most = (INPUT_WEIGHT * PROMPT_MAX).max(OUTPUT_WEIGHT * held);
    2.0 * f64::from(most) / f64::from(shares[0].min(shares[1]))
}

fn fair(shares: [u32; 2]) -> FairTenants {
    let share = |share| NonZeroU32::new(share).unwrap();
    FairTenants::new(INPUT_WEIGHT, OUTPUT_WEIGHT)
        .with_share(TenantId::new(0), share(shares[0]))
        .with_share(TenantId::new(1), share(shares[1]))
}

/// Bursts of two tenants, with lengths of their own and pauses between them, so that each is at
/// times alone and comes back.
fn bursts() -> impl Strategy<Value = Vec<Spec>> {
    let lengths = (1..=PROMPT_MAX, 1..=OUTPUT_MAX);
    let burst = (0_u64..3_000, 0_u32..2, 1_usize..40, lengths);
    prop::collection::vec(burst, 2..12).prop_map(|bursts| {
        let mut at = 0;
        let mut specs = Vec::new();
        for (gap, tenant, requests, (prompt, output)) in bursts {
            at += gap;
            let spec = Spec {
                prompt,
                tenant,
                ..Spec::new(at, output)
            };
            specs.extend(std::iter::repeat_n(spec, requests));
        }
        specs
    })
}

/// Few blocks, so that requests are preempted.
fn tight_device(slots: u32, blocks: u32) -> Mock {
    let roomy = device(slots, 10);
    Mock::new(MockConfig {
        limits: Limits {
            block_size: 4,
            blocks,
            context_max: PROMPT_MAX + OUTPUT_MAX,
            ..roomy.limits()
        },
        ..roomy.config().clone()
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(150))]

    #[test]
    fn two_tenants_that_wait_are_served_alike(
        specs in bursts(),
        slots in 1_u32..5,
        blocks in prop::option::of(20_u32..60),
        shares in (1_u32..4, 1_u32..4),
    ) {
        let shares = [shares.0, shares.1];
        let mock = match blocks {
            Some(blocks) => tight_device(slots, blocks),
            None => device(slots, 10),
        };
        let (gap, bound) = (gap(mock, fair(shares), &specs, shares), bound(slots, shares));
        prop_assert!(gap <= bound, "{gap} of {bound}");
    }
}

/// A tenant with long requests and a hundred of them against one with short ones, and the control:
/// first come, first served breaks the bound many times over.
#[test]
fn the_gap_does_not_grow_with_time() {
    let tenant = |tenant, prompt, output| Spec {
        prompt,
        tenant,
        ..Spec::new(0, output)
    };
    let mut specs = Vec::new();
    for _ in 0..400 {
        specs.push(tenant(0, PROMPT_MAX, OUTPUT_MAX));
        specs.push(tenant(1, 4, 4));
    }
    let bound = bound(4, [1, 1]);
    let fair = gap(device(4, 10), fair([1, 1]), &specs, [1, 1]);
    let fifo = gap(device(4, 10), Fifo, &specs, [1, 1]);
    assert!(fair <= bound, "{fair} of {bound}");
    assert!(fifo > 10.0 * bound, "{fifo} of {bound}");
    let (bound, fifo) = (count(bound), count(fifo));
    let said = format!(
        "the gap was {fair} weighted tokens of {bound} allowed; first come, first served let it \
         grow to {fifo}"
    );
    quoted("fair-tenants", &said);
}

/// A tenant that was away comes back as an equal. With credit for its absence it would have the
/// engine to itself until the other's lead is made up.
#[test]
fn absence_earns_no_credit() {
    let tenant = |at_ms, tenant| Spec {
        prompt: 10,
        tenant,
        ..Spec::new(at_ms, 10)
    };
    let mut specs = vec![tenant(0, 1)];
    specs.extend((0..300).map(|_| tenant(0, 0)));
    specs.extend((0..100).map(|_| tenant(10_000, 1)));
    let (gap, bound) = (
        gap(device(1, 10), fair([1, 1]), &specs, [1, 1]),
        bound(1, [1, 1]),
    );
    assert!(gap <= bound, "{gap} of {bound}");
}
