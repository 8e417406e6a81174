//! Limits that count what is in flight and what was used: exact, whatever the end of a request.

use std::collections::BTreeMap;

use serve_core::mock::{Mock, MockConfig};
use serve_core::{
    Backend as _, BackendError, CancelReason, Limit, Limits, Refusal, Request, RequestId, Span,
    StepOutcome, StepPlan, TenantId, Time, TokenId,
};
use serve_sched::admit::{
    Admit, Bound, Cost, Ended, InFlightLimits, Load, QueueCap, Quota, TokenBucket,
};
use serve_sched::sim::{Arrivals, Poisson, Row, Simulation};
use serve_sched::{Policies, Scheduler, Settings};

use super::{Spec, device, percentile, run};
use crate::quoted::quoted;

const fn bound(requests: u32, positions: u64) -> Bound {
    Bound {
        requests,
        positions,
    }
}

fn request(id: u64, at: Time) -> Request {
    Request::new(RequestId::new(id), at, [TokenId::new(1); 4], 5).unwrap()
}

/// A user's own policy, in as many lines as it takes: one request in flight for each tenant.
#[derive(Default)]
struct OneEach {
    in_flight: BTreeMap<TenantId, u32>,
}

impl Admit for OneEach {
    fn name(&self) -> &'static str {
        "one-each"
    }

    fn admit(&mut self, request: &Request, load: &Load<'_>) -> Result<(), Refusal> {
        let tenant = request.tenant();
        match self.in_flight.get(&tenant) {
            None => Ok(()),
            Some(&in_flight) => Err(Refusal::Later {
                limit: Limit::TenantInFlight {
                    tenant,
                    in_flight,
                    max: 1,
                },
                retry_after: load.retry_after(load.time_to_drain(1)),
            }),
        }
    }

    fn admitted(&mut self, request: &Request, _: &Load<'_>) {
        *self.in_flight.entry(request.tenant()).or_default() += 1;
    }

    fn ended(&mut self, ended: &Ended<'_>, _: &Load<'_>) {
        self.in_flight.remove(&ended.request.tenant());
    }
}

/// A scheduler, its device, and the time.
struct World {
    scheduler: Scheduler,
    mock: Mock,
    now: Time,
    plan: StepPlan,
}

impl World {
    fn new(admit: Box<dyn Admit>) -> Self {
        let mock = device(1, 10);
        let policies = Policies {
            admit: vec![admit],
            ..Policies::default()
        };
        Self {
            scheduler: Scheduler::new(mock.limits(), policies).unwrap(),
            mock,
            now: Time::ZERO,
            plan: StepPlan::new(),
        }
    }

    fn submit(&mut self, id: u64, deadline: Option<Time>) -> Result<(), Refusal> {
        let request = request(id, self.now).with_deadline(deadline);
        self.scheduler.submit(self.now, request)
    }

    fn plan(&mut self) {
        assert!(self.scheduler.plan_into(self.now, &mut self.plan));
    }

    fn step(&mut self) {
        self.plan();
        let mut outcome = StepOutcome::new();
        self.mock.execute(&self.plan, &mut outcome).unwrap();
        self.now += outcome.elapsed;
        self.scheduler.complete(self.now, &outcome);
    }
}

/// Brings the request with this id to its end.
type End = fn(&mut World, u64);

/// Every way in which an admitted request can end.
const ENDS: [(&str, End); 8] = [
    ("finished", |world, _| (0..5).for_each(|_| world.step())),
    ("cancelled while waiting", cancel),
    ("cancelled while running", |world, id| {
        world.step();
        cancel(world, id);
    }),
    ("cancelled during a step", |world, id| {
        world.plan();
        cancel(world, id);
        let mut outcome = StepOutcome::new();
        world.mock.execute(&world.plan, &mut outcome).unwrap();
        world.scheduler.complete(world.now, &outcome);
    }),
    ("expired while waiting", |world, _| {
        world.now += Span::from_secs(10);
        world.scheduler.handle_timeout(world.now);
    }),
    ("expired while running", |world, _| {
        world.step();
        world.now += Span::from_secs(10);
        world.scheduler.handle_timeout(world.now);
    }),
    ("failed", |world, _| {
        world.plan();
        let (now, step) = (world.now, world.plan.step());
        world.scheduler.fail(now, step, "fault");
    }),
    ("lost with its device", |world, _| {
        world.plan();
        let lost = BackendError::Lost {
            cause: "gone".into(),
        };
        let (now, step) = (world.now, world.plan.step());
        world.scheduler.book(now, step, Err(&lost));
    }),
];

fn cancel(world: &mut World, id: u64) {
    let (now, id) = (world.now, RequestId::new(id));
    assert!(world.scheduler.cancel(now, id, CancelReason::Client));
}

#[test]
fn a_limit_on_what_is_in_flight_can_be_written_by_a_user_and_hears_every_end() {
    let policies: [Box<dyn Admit>; 3] = [
        Box::new(OneEach::default()),
        Box::new(InFlightLimits::new(bound(1, 0))),
        Box::new(InFlightLimits::new(bound(0, 16))),
    ];
    for policy in policies {
        let mut world = World::new(policy);
        let mut id = 0;
        for (how, end) in ENDS.iter().cycle().take(3 * ENDS.len()) {
            let deadline = how
                .starts_with("expired")
                .then(|| world.now + Span::from_secs(5));
            id += 2;
            assert_eq!(world.submit(id, deadline), Ok(()), "before it is {how}");
            assert!(world.submit(id + 1, None).is_err(), "one is in flight");
            end(&mut world, id);
            assert!(world.scheduler.is_idle(), "{how}");
        }
    }
}

#[test]
fn a_burst_is_the_rate_times_its_span() {
    for (requests_per_s, rate_burst, burst) in [("2", "10", 20), ("2", "1", 2), ("0.5", "1", 1)] {
        let mut settings = Settings::default();
        for (name, text) in [
            ("queue_cap", "0"),
            ("requests_per_s", requests_per_s),
            ("rate_burst", rate_burst),
        ] {
            settings.set_text(name, text).unwrap();
        }
        let limits = device(64, 10).limits();
        let mut scheduler = Scheduler::new(limits, settings.policies().unwrap()).unwrap();
        let taken = (0..100).filter(|&id| {
            let request = request(id, Time::ZERO);
            scheduler.submit(Time::ZERO, request).is_ok()
        });
        assert_eq!(taken.count(), burst);
    }
}

/// A bucket that is charged the longest answer and never settled: the control.
struct InFull(TokenBucket);

impl Admit for InFull {
    fn name(&self) -> &'static str {
        "in-full"
    }

    fn admit(&mut self, request: &Request, load: &Load<'_>) -> Result<(), Refusal> {
        self.0.admit(request, load)
    }

    fn admitted(&mut self, request: &Request, load: &Load<'_>) {
        self.0.admitted(request, load);
    }
}

/// Five requests a second for two minutes, of 20 tokens and answers of 64 in the mean, which ask for
/// up to `output`: how many were taken, and what they used in a second.
fn served(admit: Box<dyn Admit>, output: u32) -> (usize, f64) {
    let mock = Mock::new(MockConfig {
        vocabulary: 64,
        ..device(8, 10).config().clone()
    });
    let policies = Policies {
        admit: vec![admit],
        ..Policies::default()
    };
    let scheduler = Scheduler::new(mock.limits(), policies).unwrap();
    let requests = Poisson::new(7, 5.0).take(600).zip(0..).map(|(at, id)| {
        let prompt = vec![TokenId::new(id as u32); 20];
        Request::new(RequestId::new(id), at, prompt, output)
            .unwrap()
            .with_stop_tokens([TokenId::new(0)])
    });
    let report = Simulation::new(scheduler, mock).run(&mut Arrivals::new(requests));
    let taken = report.rows.iter().filter(|row| row.is_finished());
    let used = taken
        .clone()
        .map(|row| row.usage.prompt_tokens + row.usage.output_tokens);
    let used = f64::from(used.sum::<u32>()) / report.end.as_secs_f64();
    (taken.count(), used)
}

#[test]
fn a_bucket_that_is_settled_by_use_gives_the_rate_that_it_is_for() {
    const RATE: u64 = 500;
    let some = |n| std::num::NonZeroU64::new(n).unwrap();
    let unlimited = served(Box::new(QueueCap::new(0)), 1_024);
    assert!(
        unlimited.0 == 600 && unlimited.1 < RATE as f64,
        "within the rate"
    );
    for (output, burst_s) in [
        (64, 10),
        (256, 10),
        (1_024, 10),
        (1_024, 30),
        (4_096, 30),
        (4_096, 90),
    ] {
        let quota = Quota::new(some(RATE), Span::from_secs(1), some(burst_s * RATE));
        let bucket = || TokenBucket::per_tenant(quota, Cost::Tokens);
        let (in_full, _) = served(Box::new(InFull(bucket())), output);
        let (by_use, _) = served(Box::new(bucket()), output);
        let row = format!("| {output} | {burst_s} s | {in_full} | {by_use} |");
        quoted("token-bucket", &row);
        assert!(by_use >= in_full, "{row}");
        // What a burst has to hold: three or four in flight, each charged its longest answer.
        let holds = burst_s * RATE / (u64::from(output) + 20);
        assert!(holds < 10 || by_use > 585, "{row}");
    }
}

/// A device whose KV cache holds 16,384 positions and whose steps have room for 32 sequences.
fn small_cache() -> Mock {
    let device = device(32, 20);
    Mock::new(MockConfig {
        limits: Limits {
            blocks: 1 + 1_024,
            ..device.limits()
        },
        ..device.config().clone()
    })
}

/// For two minutes, a tenant sends more long prompts than the KV cache holds, and as many short ones,
/// and another tenant a chat a second: how many long, short and chats are answered, and how long the
/// chats wait.
fn beside_long_prompts(limits: Option<Bound>) -> (usize, usize, usize, f64) {
    let long = Poisson::new(1, 4.0).enumerate().map(|(n, arrival)| Spec {
        arrival,
        prompt: if n % 2 == 0 { 4_000 } else { 30 },
        output: 200,
        tenant: 1,
        ..Spec::new(0, 1)
    });
    let chat = Poisson::new(2, 1.0).map(|arrival| Spec {
        arrival,
        prompt: 30,
        output: 64,
        tenant: 2,
        ..Spec::new(0, 1)
    });
    let end = Time::from_secs(120);
    let within = |spec: &Spec| spec.arrival < end;
    let mut specs: Vec<Spec> = long
        .take_while(within)
        .chain(chat.take_while(within))
        .collect();
    specs.sort_by_key(|spec| spec.arrival);
    let mut admit: Vec<Box<dyn Admit>> = vec![Box::new(QueueCap::new(64))];
    if let Some(bound) = limits {
        admit.push(Box::new(InFlightLimits::new(bound)));
    }
    let policies = Policies {
        admit,
        ..Policies::default()
    };
    let (report, _) = run(small_cache(), policies, &specs);
    let of = |tenant| {
        let rows = report.rows.iter();
        rows.filter(move |row| row.is_finished() && row.tenant == TenantId::new(tenant))
    };
    let waited = percentile(of(2).filter_map(|row| row.waited()), 99.0);
    let is_long = |row: &&Row| row.usage.prompt_tokens == 4_000;
    let long = of(1).filter(is_long).count();
    (long, of(1).count() - long, of(2).count(), waited)
}

#[test]
fn a_tenant_with_long_prompts_leaves_room_in_the_cache_for_others() {
    let runs = [
        ("none", None),
        ("3 requests", Some(bound(3, 0))),
        ("12,800 positions", Some(bound(0, 12_800))),
    ];
    let runs = runs.map(|(name, limits)| {
        let (long, short, chats, waited) = beside_long_prompts(limits);
        let row = format!("| {name} | {long} | {short} | {chats} | {waited:.2} s |");
        quoted("in-flight-limits", &row);
        (long, short, chats, waited)
    });
    let [none, requests, positions] = runs;
    assert!(none.3 > 10.0 && positions.3 < 0.1 && positions.2 > none.2);
    // Counting positions, and not requests, the same part of the cache answers more.
    assert!(positions.0 > requests.0 && positions.1 > requests.1);
}
