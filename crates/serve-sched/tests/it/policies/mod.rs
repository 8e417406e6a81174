//! What the policies promise, through the real scheduler in virtual time.

mod admit;
mod bounds;
mod budget;
mod crowd;
mod fairness;
mod flood;
mod limits;
mod off;
mod order;
mod retries;
mod start_by;
mod tenants;
mod victim;

use serve_core::mock::{CostModel, Mock, MockConfig};
use serve_core::{Backend as _, Class, Limits, Request, RequestId, Span, TenantId, Time, TokenId};
use serve_sched::batch::OneAtATime;
use serve_sched::journal::Lines;
use serve_sched::order::Order;
use serve_sched::sim::{Arrivals, Report, Simulation};
use serve_sched::{Policies, Scheduler};

/// A request in numbers.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Spec {
    pub(crate) arrival: Time,
    pub(crate) prompt: u32,
    pub(crate) output: u32,
    pub(crate) class: u8,
    pub(crate) tenant: u32,
    pub(crate) deadline: Option<Time>,
    pub(crate) start_by: Option<Time>,
}

impl Spec {
    /// A request of one prompt token in the highest class.
    pub(crate) fn new(arrival_ms: u64, output: u32) -> Self {
        Self {
            arrival: Time::from_millis(arrival_ms),
            prompt: 1,
            output,
            class: 0,
            tenant: 0,
            deadline: None,
            start_by: None,
        }
    }
}

/// The requests, with ids by place.
pub(crate) fn requests(specs: &[Spec]) -> Vec<Request> {
    let request = |(spec, id): (&Spec, u64)| {
        let prompt: Vec<_> = (0..spec.prompt)
            .map(|position| TokenId::new((id as u32) << 12 | position))
            .collect();
        Request::new(RequestId::new(id), spec.arrival, prompt, spec.output)
            .unwrap()
            .with_class(Class::new(spec.class))
            .with_tenant(TenantId::new(spec.tenant))
            .with_deadline(spec.deadline)
            .with_start_by(spec.start_by)
    };
    specs.iter().zip(0..).map(request).collect()
}

/// A device with room for everything, whose steps take `step_ms` each.
pub(crate) fn device(sequences_max: u32, step_ms: u64) -> Mock {
    let points = vec![(1, Span::from_millis(step_ms))];
    Mock::new(MockConfig {
        limits: Limits {
            sequences_max,
            step_tokens_max: 8_192,
            context_max: 8_192,
            block_size: 16,
            blocks: 1 + 512 * sequences_max,
        },
        cost: CostModel::new(points, Span::ZERO, Span::ZERO).unwrap(),
        ..MockConfig::default()
    })
}

/// Runs the requests to their ends and returns the report and the journal.
pub(crate) fn run(mock: Mock, policies: Policies, specs: &[Spec]) -> (Report, String) {
    let scheduler = Scheduler::new(mock.limits(), policies).unwrap();
    let mut simulation = Simulation::new(scheduler, mock);
    let lines = Lines::new();
    let journal = Box::new(lines.clone());
    simulation.scheduler_mut().set_journal(Some(journal));
    let report = simulation.run(&mut Arrivals::new(requests(specs)));
    assert_eq!(report.rows.len(), specs.len(), "everybody is answered");
    (report, lines.text())
}

/// One server that takes 10 ms for each output token, without admission.
pub(crate) fn serial(order: impl Order + 'static, specs: &[Spec]) -> Report {
    let policies = Policies {
        admit: Vec::new(),
        order: Box::new(order),
        batch: Box::new(OneAtATime),
        ..Policies::default()
    };
    run(device(1, 10), policies, specs).0
}

/// The `p`-th percentile (nearest rank) of `spans`, in seconds.
pub(crate) fn percentile(spans: impl Iterator<Item = Span>, p: f64) -> f64 {
    let mut spans: Vec<_> = spans.collect();
    spans.sort_unstable();
    let rank = (p / 100.0 * spans.len() as f64).ceil() as usize;
    spans[rank.clamp(1, spans.len()) - 1].as_secs_f64()
}
