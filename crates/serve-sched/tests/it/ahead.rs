//! A request that is asked about before its length is known: refused only where it would be refused at any
//! length, and otherwise as if nobody had asked.

use proptest::prelude::*;
use serve_core::mock::{Mock, MockConfig};
use serve_core::{
    Backend, Class, Event, Limit, Limits, Refusal, Request, RequestId, Span, StepOutcome, StepPlan,
    TenantId, Time, TokenId,
};
use serve_sched::{Scheduler, Settings};

use crate::support::LIMITS;

/// Settings of which some refuse at any length, and some do not.
const SETTINGS: &[&[(&str, &str)]] = &[
    &[("tenant_in_flight", "2")],
    &[("class_in_flight", "free=2"), ("queue_cap", "2")],
    &[("tenant_requests_per_s", "40"), ("rate_burst", "0.05")],
    &[("tenant_tokens_per_s", "300"), ("rate_burst", "0.05")],
    &[("requests_per_s", "60"), ("order", "fair-tenants")],
    &[("tokens_per_s", "500"), ("order", "aging/fair-tenants")],
    &[("class_kv_tokens", "free=24"), ("tenant_kv_tokens", "32")],
    &[("tenant_in_flight", "1"), ("latency_budget", "0.1")],
    &[
        ("queue_cap", "3"),
        ("order", "fair-groups"),
        ("tenant_in_flight", "3"),
    ],
];

#[derive(Clone, Debug)]
enum Input {
    Ask {
        tenant: u32,
        class: u8,
        prompt: usize,
        output: u32,
    },
    Step,
    Wait(u64),
}

fn input() -> impl Strategy<Value = Input> {
    prop_oneof![
        4 => (1..4_u32, 0..2_u8, 1..20_usize, 1..9_u32).prop_map(|(tenant, class, prompt, output)| {
            Input::Ask { tenant, class, prompt, output }
        }),
        2 => Just(Input::Step),
        1 => (1..60_u64).prop_map(Input::Wait),
    ]
}

struct Side {
    scheduler: Scheduler,
    mock: Mock,
    now: Time,
    events: Vec<Event>,
}

impl Side {
    fn new(settings: &[(&str, &str)]) -> Self {
        let mut chosen = Settings::default();
        for (name, value) in settings {
            chosen.set_text(name, value).unwrap();
        }
        let limits: Limits = LIMITS;
        let config = MockConfig {
            limits,
            ..MockConfig::default()
        };
        Self {
            scheduler: Scheduler::new(limits, chosen.policies().unwrap()).unwrap(),
            mock: Mock::new(config),
            now: Time::ZERO,
            events: Vec::new(),
        }
    }

    fn step(&mut self) {
        let (mut plan, mut outcome) = (StepPlan::new(), StepOutcome::new());
        if self.scheduler.plan_into(self.now, &mut plan) {
            self.mock.execute(&plan, &mut outcome).unwrap();
            self.now += outcome.elapsed;
            self.scheduler.complete(self.now, &outcome);
        }
        while let Some(event) = self.scheduler.poll_event() {
            self.events.push(event);
        }
    }
}

fn request(id: u64, tenant: u32, class: u8, prompt: usize, output: u32, now: Time) -> Request {
    let tokens = vec![TokenId::new(id as u32); prompt];
    let request = Request::new(RequestId::new(id), now, tokens, output).unwrap();
    request
        .with_tenant(TenantId::new(tenant))
        .with_class(Class::new(class))
}

proptest! {
    #[test]
    fn who_asks_before_the_length_is_known_hears_what_he_would_hear_at_any(
        settings in 0..SETTINGS.len(),
        inputs in prop::collection::vec(input(), 1..80),
    ) {
        let (mut plain, mut ahead) = (Side::new(SETTINGS[settings]), Side::new(SETTINGS[settings]));
        for (id, input) in (0_u64..).zip(inputs) {
            match input {
                Input::Ask { tenant, class, prompt, output } => {
                    let whole = request(id, tenant, class, prompt, output, plain.now);
                    let least = request(id, tenant, class, 1, 1, plain.now);
                    let taken = plain.scheduler.submit(plain.now, whole.clone());
                    match ahead.scheduler.pre_admit(ahead.now, &least, prompt as u32 * 3) {
                        Err(_) => prop_assert!(taken.is_err(), "only the early one was refused"),
                        Ok(()) => {
                            let again = ahead.scheduler.submit(ahead.now, whole);
                            prop_assert_eq!(taken.is_err(), again.is_err());
                            // Of one that was taken nothing is left to release.
                            let tokens = if again.is_err() { 0 } else { 9 };
                            ahead.scheduler.release(ahead.now, &least, tokens);
                        }
                    }
                }
                Input::Step => {
                    plain.step();
                    ahead.step();
                }
                Input::Wait(millis) => {
                    for side in [&mut plain, &mut ahead] {
                        side.now += Span::from_millis(millis);
                        side.scheduler.handle_timeout(side.now);
                    }
                }
            }
            prop_assert_eq!(&plain.events, &ahead.events);
            let (a, b) = (plain.scheduler.stats().counters, ahead.scheduler.stats().counters);
            prop_assert_eq!((a.arrived, a.refused), (b.arrived, b.refused));
        }
    }
}

/// Each of the limits that need no length refuses without one, in the words in which it refuses a whole
/// request; those that may give way to a better request say nothing.
#[test]
fn rates_and_limits_in_flight_refuse_before_there_is_a_length() {
    /// Settings, and whether a limit is the one that refuses; none refuses where there is nothing.
    type Case = (
        &'static [(&'static str, &'static str)],
        Option<fn(&Limit) -> bool>,
    );
    let table: &[Case] = &[
        (
            &[("tenant_in_flight", "1")],
            Some(|it| matches!(it, Limit::TenantInFlight { .. })),
        ),
        (
            &[("class_in_flight", "free=1")],
            Some(|it| matches!(it, Limit::ClassInFlight { .. })),
        ),
        (
            &[("tenant_kv_tokens", "20")],
            Some(|it| matches!(it, Limit::TenantKv { .. })),
        ),
        (
            &[("class_kv_tokens", "free=20")],
            Some(|it| matches!(it, Limit::ClassKv { .. })),
        ),
        (
            &[("tenant_requests_per_s", "1"), ("rate_burst", "0")],
            Some(|it| matches!(it, Limit::TenantRate { .. })),
        ),
        (
            &[("tokens_per_s", "1"), ("rate_burst", "0")],
            Some(|it| matches!(it, Limit::GlobalRate)),
        ),
        (&[("queue_cap", "1"), ("max_batch", "1")], None),
    ];
    for (settings, told) in table {
        let mut side = Side::new(settings);
        side.scheduler
            .submit(Time::ZERO, request(1, 1, 1, 16, 2, Time::ZERO))
            .unwrap();
        let refused = side
            .scheduler
            .pre_admit(Time::ZERO, &request(2, 1, 1, 1, 1, Time::ZERO), 1);
        match (told, refused) {
            (Some(told), Err(Refusal::Later { limit, .. })) => assert!(told(&limit), "{limit:?}"),
            (None, Ok(())) => {}
            (_, other) => panic!("{settings:?}: {other:?}"),
        }
    }
}
