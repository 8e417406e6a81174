//! Queueing theory, in simulation: where the exact answer is known, the simulation gives it.

use std::sync::Arc;

use serve_core::mock::{CostModel, Mock, MockConfig};
use serve_core::rng::Rng;
use serve_core::{Backend, Limits, Request, RequestId, Span, StepOutcome, StepPlan, Time, TokenId};
use serve_sched::admit::QueueCap;
use serve_sched::batch::OneAtATime;
use serve_sched::kv::KvSettings;
use serve_sched::sim::{Arrivals, ClosedLoop, Poisson, Report, Simulation};
use serve_sched::{Policies, Scheduler};

/// A device that runs a prompt in 1 us a token and needs no time for anything else, so that the
/// length of a prompt is a service time.
fn device() -> Mock {
    let cost = CostModel::new(vec![(1, Span::ZERO)], Span::from_micros(1), Span::ZERO);
    Mock::new(MockConfig {
        limits: Limits {
            sequences_max: 64,
            step_tokens_max: 1 << 20,
            context_max: 1 << 20,
            block_size: 1 << 10,
            blocks: 1 << 12,
        },
        cost: cost.unwrap(),
        ..MockConfig::default()
    })
}

fn scheduler(limits: Limits, policies: Policies) -> Scheduler {
    let policies = Policies {
        admit: vec![Box::new(QueueCap::new(u32::MAX))],
        kv: KvSettings {
            reuse_prefixes: false,
            ..KvSettings::default()
        },
        ..policies
    };
    Scheduler::new(limits, policies).unwrap()
}

fn serial() -> Policies {
    Policies {
        batch: Box::new(OneAtATime),
        ..Policies::default()
    }
}

/// Prompts of every length, cut from the same tokens.
fn prompt(tokens: u32) -> Arc<[TokenId]> {
    vec![TokenId::new(1); tokens as usize].into()
}

/// At 1 us a token.
const SERVICE_MEAN_TOKENS: f64 = 200.0;

fn exponential_tokens(rng: &mut Rng) -> u32 {
    // At least two, as a prompt of one token costs as much as a decode: nothing here.
    (rng.exponential(SERVICE_MEAN_TOKENS).round() as u32).max(2)
}

/// What was drawn and what came of it, in seconds.
struct Served {
    arrival_rate: f64,
    service_mean: f64,
    response_mean: f64,
}

impl Served {
    /// The load that was drawn. Near saturation the exact answer depends so much on it that a
    /// comparison at the nominal load would mostly measure the luck of the draw.
    fn load(&self) -> f64 {
        self.arrival_rate * self.service_mean
    }
}

/// Serial service at a load of about `rho`.
fn serve(rho: f64, requests: usize, seed: u64, service: impl Fn(&mut Rng) -> u32) -> Served {
    let device = device();
    let mut rng = Rng::new(seed);
    let arrivals = Poisson::new(seed ^ 0xA11, rho / (SERVICE_MEAN_TOKENS * 1e-6)).take(requests);
    let requests = (0..).map(RequestId::new).zip(arrivals);
    let requests =
        requests.map(|(id, at)| Request::new(id, at, prompt(service(&mut rng)), 1).unwrap());
    let scheduler = scheduler(device.limits(), serial());
    let (mut rows, mut response, mut service, mut last) = (0, 0.0, 0.0, 0.0_f64);
    let mut simulation = Simulation::new(scheduler, device);
    simulation.run_with(&mut Arrivals::new(requests), |row| {
        rows += 1;
        response += row.response_time().as_secs_f64();
        service += row.end.since(row.started.unwrap()).as_secs_f64();
        last = last.max(row.arrival.as_secs_f64());
    });
    let rows = f64::from(rows);
    Served {
        arrival_rate: rows / last,
        service_mean: service / rows,
        response_mean: response / rows,
    }
}

fn within(measured: f64, exact: f64, tolerance: f64) {
    let error = measured / exact - 1.0;
    assert!(
        error.abs() < tolerance,
        "{measured} is {:.2}% off {exact}",
        error * 100.0
    );
}

/// Loads, with as many requests as it takes to bring the standard error of the mean to about 1% or
/// less: it grows as `1 / (1 - rho)`.
const LOADS: [(f64, usize); 4] = [
    (0.3, 100_000),
    (0.5, 200_000),
    (0.7, 500_000),
    (0.9, 3_000_000),
];

#[test]
fn exponential_service_agrees_with_mm1() {
    for (rho, requests) in LOADS {
        let served = serve(rho, requests, 1, exponential_tokens);
        let exact = served.service_mean / (1.0 - served.load());
        within(served.response_mean, exact, 0.02);
    }
}

#[test]
fn fixed_service_agrees_with_md1() {
    for (rho, requests) in LOADS {
        let served = serve(rho, requests / 2, 2, |_| SERVICE_MEAN_TOKENS as u32);
        // Pollaczek-Khinchine: the wait is half of what it is with exponential service.
        let load = served.load();
        let exact = served.service_mean * (1.0 + load / (2.0 * (1.0 - load)));
        within(served.response_mean, exact, 0.02);
    }
}

#[test]
fn serial_service_is_the_lindley_recursion_to_the_nanosecond() {
    let device = device();
    let mut rng = Rng::new(5);
    let arrivals: Vec<_> = Poisson::new(6, 4_750.0).take(20_000).collect();
    let lengths: Vec<_> = arrivals
        .iter()
        .map(|_| exponential_tokens(&mut rng))
        .collect();
    let requests = (0..).zip(&arrivals).zip(&lengths);
    let requests = requests.map(|((id, &at), &tokens)| {
        Request::new(RequestId::new(id), at, prompt(tokens), 1).unwrap()
    });
    let scheduler = scheduler(device.limits(), serial());
    let report = Simulation::new(scheduler, device).run(&mut Arrivals::new(requests));
    let mut free = Time::ZERO;
    for (row, (&at, &tokens)) in report.rows.iter().zip(arrivals.iter().zip(&lengths)) {
        assert_eq!(row.started, Some(free.max(at)));
        free = free.max(at) + Span::from_micros(u64::from(tokens));
        assert_eq!(row.end, free);
    }
}

/// A device of 8 slots with a cost for decodes and prompts.
fn batching_device() -> Mock {
    let decode = vec![(1, Span::from_millis(10)), (8, Span::from_millis(12))];
    let cost = CostModel::new(decode, Span::from_micros(100), Span::ZERO);
    Mock::new(MockConfig {
        limits: Limits {
            sequences_max: 8,
            step_tokens_max: 256,
            context_max: 512,
            block_size: 16,
            blocks: 200,
        },
        cost: cost.unwrap(),
        ..MockConfig::default()
    })
}

#[test]
fn littles_law_holds_for_the_queue_for_the_batch_and_for_both() {
    let mut device = batching_device();
    let mut scheduler = scheduler(device.limits(), Policies::default());
    let mut rng = Rng::new(3);
    let arrivals = Poisson::new(4, 12.0).take(2_000);
    let mut requests = (0..).map(RequestId::new).zip(arrivals).map(|(id, at)| {
        let output = 1 + rng.below(80) as u32;
        Request::new(id, at, prompt(1 + rng.below(200) as u32), output).unwrap()
    });
    let mut next = requests.next();
    let mut started = std::collections::BTreeMap::new();
    let (mut arrival_of, mut now) = (std::collections::BTreeMap::new(), Time::ZERO);
    // Requests times nanoseconds: from the gauges on one side, from the events on the other.
    let (mut waiting, mut running) = (0_u128, 0_u128);
    let (mut waited, mut served) = (0_u128, 0_u128);
    let (mut plan, mut outcome) = (StepPlan::new(), StepOutcome::new());
    let mut end = None;
    loop {
        while let Some(event) = scheduler.poll_event() {
            use serve_core::EventKind;
            match event.kind {
                EventKind::Started => {
                    let arrival: Time = arrival_of[&event.request];
                    waited += u128::from(event.at.since(arrival).as_nanos());
                    started.insert(event.request, event.at);
                }
                EventKind::Token { .. } => {}
                _ => served += u128::from(event.at.since(started[&event.request]).as_nanos()),
            }
        }
        if end.is_none() && scheduler.plan_into(now, &mut plan) {
            device.execute(&plan, &mut outcome).unwrap();
            end = Some(now + outcome.elapsed);
            continue;
        }
        let arrival = next.as_ref().map(Request::arrival);
        let Some(at) = [arrival, end].into_iter().flatten().min() else {
            break;
        };
        let stats = scheduler.stats();
        let span = u128::from(at.since(now).as_nanos());
        waiting += u128::from(stats.waiting) * span;
        running += u128::from(stats.running) * span;
        now = at;
        if end == Some(at) {
            end = None;
            scheduler.complete(at, &outcome);
        } else if let Some(request) = next.take() {
            arrival_of.insert(request.id(), at);
            scheduler.submit(at, request).unwrap();
            next = requests.next();
        }
    }
    assert_eq!(started.len(), 2_000);
    assert!(waited > 0 && served > 0);
    assert_eq!(waiting, waited, "L = lambda W in the queue");
    assert_eq!(running, served, "L = lambda W in the batch");
}

fn closed_loop(clients: u32, think: Span, requests: u64) -> Report {
    let device = batching_device();
    let scheduler = scheduler(device.limits(), Policies::default());
    let mut rng = Rng::new(9);
    let mut think_rng = Rng::new(10);
    let mut workload = ClosedLoop::new(
        clients,
        move |n, at| {
            let output = 1 + rng.below(60) as u32;
            let request = Request::new(RequestId::new(n), at, prompt(64), output);
            (n < requests).then(|| request.unwrap())
        },
        move || Span::from_secs_f64(think_rng.exponential(think.as_secs_f64())),
    );
    Simulation::new(scheduler, device).run(&mut workload)
}

#[test]
fn the_closed_loop_law_holds_below_and_above_saturation() {
    let think = Span::from_secs(1);
    for clients in [2, 8, 16, 40] {
        let report = closed_loop(clients, think, 40_000);
        let count = report.rows.len() as f64;
        let throughput = count / report.end.as_secs_f64();
        let response: f64 = report
            .rows
            .iter()
            .map(|row| row.response_time().as_secs_f64())
            .sum();
        let law = f64::from(clients) / (response / count + think.as_secs_f64());
        within(throughput, law, 0.02);
    }
}
