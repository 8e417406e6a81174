//! Policies of one's own beside ours: what they refuse with is carried everywhere as they said it.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use serve_core::mock::{Mock, MockConfig};
use serve_core::{
    Backend, Blame, Data, Limit, Limits, Reason, Refusal, Request, RequestId, Span, StepOutcome,
    StepPlan, Time, TokenId,
};
use serve_sched::admit::{Admit, Ended, Load, QueueCap};
use serve_sched::journal::Lines;
use serve_sched::limit::Fixed;
use serve_sched::order::{Fifo, Order, Place, Served, Tiers, Waiting};
use serve_sched::{Dispatcher, Policies, Scheduler};

static LONG_PROMPT: Reason = Reason::new("prompt_too_long", Blame::Client, "prompt tokens");
static BUSY_SHELF: Reason = Reason::new("shelf_full", Blame::Capacity, "books");

/// No prompt of more than ten tokens, and none of five for now.
struct House;

impl Admit for House {
    fn name(&self) -> &'static str {
        "house"
    }

    fn admit(&mut self, request: &Request, _load: &Load<'_>) -> Result<(), Refusal> {
        let value = request.prompt_tokens();
        match value {
            5 => Err(Refusal::Later {
                limit: shelf(value),
                retry_after: Some(Span::from_secs(2)),
            }),
            11.. => Err(Refusal::Never { limit: long(value) }),
            _ => Ok(()),
        }
    }
}

fn long(value: u32) -> Limit {
    Limit::Policy {
        reason: &LONG_PROMPT,
        value,
        max: 10,
    }
}

fn shelf(value: u32) -> Limit {
    Limit::Policy {
        reason: &BUSY_SHELF,
        value,
        max: 4,
    }
}

const JOURNAL: &str = "\
0s r1 refused: 12 prompt tokens, and at most 10 may be (house: prompt_too_long)
0s r2 refused for now: 5 books, and at most 4 may be (house: shelf_full, again in 2s)
";

fn request(id: u64, prompt: usize) -> Request {
    let tokens = vec![TokenId::new(1); prompt];
    Request::new(RequestId::new(id), Time::ZERO, tokens, 1).unwrap()
}

#[test]
fn a_schedulers_refusal_is_the_policys_own() {
    let policies = Policies {
        admit: vec![Box::new(QueueCap::new(1)), Box::new(House)],
        ..Policies::default()
    };
    let mock = Mock::new(MockConfig::default());
    let mut scheduler = Scheduler::new(mock.limits(), policies).unwrap();
    let lines = Lines::new();
    scheduler.set_journal(Some(Box::new(lines.clone())));
    let refused = scheduler.submit(Time::ZERO, request(1, 12)).unwrap_err();
    assert_eq!(refused.limit(), long(12));
    let refused = scheduler.submit(Time::ZERO, request(2, 5)).unwrap_err();
    assert_eq!(
        (refused.limit(), refused.retry_after_s()),
        (shelf(5), Some(2))
    );
    assert_eq!(lines.text(), JOURNAL);
    let counters = scheduler.stats().counters;
    assert_eq!((counters.arrived, counters.refused), (2, 2));
}

#[test]
fn a_dispatchers_refusal_is_the_policys_own() {
    let mut dispatcher = Dispatcher::new(
        vec![Box::new(House)],
        Box::new(Fifo),
        Box::new(Fixed::new(1)),
    );
    let lines = Lines::new();
    dispatcher.set_journal(Some(Box::new(lines.clone())));
    let refused = dispatcher.submit(Time::ZERO, request(1, 12)).unwrap_err();
    assert_eq!(
        (refused.code().name, refused.code().status),
        ("prompt_too_long", 400)
    );
    let refused = dispatcher.submit(Time::ZERO, request(2, 5)).unwrap_err();
    assert_eq!(
        (refused.code().name, refused.code().status),
        ("shelf_full", 429)
    );
    assert_eq!(lines.text(), JOURNAL);
}

/// Which region asks.
#[derive(Debug, PartialEq)]
struct Region(u32);

/// Regions one after another, and nobody who does not say where he is.
struct ByRegion {
    seen: Arc<Mutex<BTreeMap<&'static str, u32>>>,
}

static NOWHERE: Reason = Reason::new("region_missing", Blame::Client, "regions are unknown");

impl ByRegion {
    fn see(&self, hook: &'static str, request: &Request) -> u32 {
        // A newcomer is placed before admission is asked, so that it may have none.
        let Some(Region(region)) = request.data() else {
            assert_eq!((hook, request.id().get()), ("place", 9));
            return u32::MAX;
        };
        *self.seen.lock().unwrap().entry(hook).or_default() += 1;
        *region
    }
}

impl Order for ByRegion {
    fn name(&self) -> &'static str {
        "by-region"
    }

    fn place(&mut self, waiting: &Waiting<'_>, _now: Time) -> Place {
        Place::by_key(u64::from(self.see("place", waiting.request)))
    }

    fn arrived(&mut self, waiting: &Waiting<'_>, _now: Time) {
        self.see("arrived", waiting.request);
    }

    fn left(&mut self, waiting: &Waiting<'_>, _started: bool, _now: Time) {
        self.see("left", waiting.request);
    }

    fn served(&mut self, request: &Request, _served: Served) {
        self.see("served", request);
    }

    fn ended(&mut self, request: &Request) {
        self.see("ended", request);
    }
}

struct KnownRegions;

impl Admit for KnownRegions {
    fn name(&self) -> &'static str {
        "known-regions"
    }

    fn admit(&mut self, request: &Request, _load: &Load<'_>) -> Result<(), Refusal> {
        let limit = Limit::Policy {
            reason: &NOWHERE,
            value: 1,
            max: 0,
        };
        let known = request.data::<Region>().map(drop);
        known.ok_or(Refusal::Never { limit })
    }

    fn ended(&mut self, ended: &Ended<'_>, _load: &Load<'_>) {
        assert!(ended.request.data::<Region>().is_some());
    }
}

#[test]
fn every_policy_sees_what_its_service_has_attached_to_a_request() {
    let seen = Arc::new(Mutex::new(BTreeMap::new()));
    let shared = Arc::clone(&seen);
    let inner = Arc::new(move || {
        let seen = Arc::clone(&shared);
        Box::new(ByRegion { seen }) as Box<dyn Order>
    });
    let policies = Policies {
        admit: vec![Box::new(KnownRegions)],
        order: Box::new(Tiers::over(inner)),
        ..Policies::default()
    };
    let mut mock = Mock::new(MockConfig {
        limits: Limits {
            sequences_max: 1,
            ..MockConfig::default().limits
        },
        ..MockConfig::default()
    });
    let mut scheduler = Scheduler::new(mock.limits(), policies).unwrap();
    let refused = scheduler.submit(Time::ZERO, request(9, 4)).unwrap_err();
    assert_eq!(refused.code().name, "region_missing");
    for (id, region) in [(1, 3), (2, 1), (3, 2)] {
        let request = request(id, 4).with_data(Data::new(Region(region)));
        scheduler.submit(Time::ZERO, request).unwrap();
    }
    let (mut plan, mut outcome) = (StepPlan::new(), StepOutcome::new());
    let mut started = Vec::new();
    while scheduler.plan_into(Time::ZERO, &mut plan) {
        started.extend(plan.starts().iter().map(|request| request.id().get()));
        // A backend of one's own could read it as well.
        let data = |request: &Arc<Request>| request.data::<Region>().is_some();
        assert!(plan.starts().iter().all(data));
        mock.execute(&plan, &mut outcome).unwrap();
        scheduler.complete(Time::ZERO, &outcome);
    }
    assert_eq!(started, [2, 3, 1]);
    let seen = seen.lock().unwrap();
    for hook in ["place", "arrived", "left", "served", "ended"] {
        assert!(seen[hook] >= 3, "{hook}: {seen:?}");
    }
}

#[test]
fn a_request_to_which_nothing_is_attached_allocates_nothing_more() {
    let counted = |data: fn() -> Data| {
        let made = || Request::of_lengths(RequestId::new(1), Time::ZERO, 40, 5).unwrap();
        let counted = allocation_counter::measure(|| drop(made().with_data(data()).clone()));
        counted.count_total
    };
    assert_eq!(counted(|| Data::NONE), 0);
    assert_eq!(counted(|| Data::new(Region(1))), 1);
}
