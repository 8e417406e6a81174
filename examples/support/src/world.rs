//! A device with measured speed, requests made of numbers, and a run in virtual time.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use serve_core::mock::{CostModel, InvalidCostModel, Mock, MockConfig};
use serve_core::{Backend as _, Limits, Request, RequestId, Span, Time, TokenId};
use serve_sched::journal::{Decision, Entry};
use serve_sched::sim::{Arrivals, ClosedLoop, Report, Simulation, Workload};
use serve_sched::{ConfigError, Policies, Scheduler};

/// An NVIDIA L4 that runs a 1.5B model through a Python decode loop, with room for `sequences_max`
/// sequences of 4,096 positions.
///
/// Its owner measured decode steps of 15.96, 16.83, 16.87, 17.31 and 17.72 ms for 1, 2, 4, 8 and 16
/// sequences, 1.11 times as much for sixteen as for one; and prefills of 19 to 46 ms for 1 to 16
/// prompts of about 30 tokens, which is such a step and 60 us for each prompt token.
///
/// # Errors
///
/// None in fact: the points are a function of the batch size.
pub fn l4(sequences_max: u32) -> Result<Mock, InvalidCostModel> {
    let points = [
        (1, 15_960),
        (2, 16_830),
        (4, 16_870),
        (8, 17_310),
        (16, 17_720),
    ];
    let decode = points.map(|(batch, micros)| (batch, Span::from_micros(micros)));
    let cost = CostModel::new(decode.to_vec(), Span::from_micros(60), Span::ZERO)?;
    Ok(Mock::new(MockConfig {
        limits: Limits {
            sequences_max,
            step_tokens_max: 2_048,
            context_max: 4_096,
            block_size: 16,
            blocks: 1 + 256 * sequences_max,
        },
        cost,
        ..MockConfig::default()
    }))
}

/// The same device with a KV cache of `usable` blocks.
///
/// # Errors
///
/// None in fact, as in [`l4`].
pub fn l4_with_blocks(sequences_max: u32, usable: u32) -> Result<Mock, InvalidCostModel> {
    let device = l4(sequences_max)?;
    Ok(Mock::new(MockConfig {
        limits: Limits {
            blocks: 1 + usable,
            ..device.config().limits
        },
        ..device.config().clone()
    }))
}

/// A request with a prompt unlike any other's; both numbers of tokens count as 1 if they are 0.
///
/// # Panics
///
/// When prompt and output together exceed 32-bit positions.
pub fn request(id: u64, arrival: Time, prompt_tokens: u32, output_tokens: u32) -> Request {
    let token = |position| TokenId::new((id as u32) << 12 | position);
    let prompt: Vec<TokenId> = (0..prompt_tokens.max(1)).map(token).collect();
    Request::new(RequestId::new(id), arrival, prompt, output_tokens.max(1))
        .expect("prompt and output fit in 32-bit positions")
}

/// Runs requests, in the order of their arrival, under `policies` to their ends.
///
/// # Errors
///
/// [`ConfigError`] when nothing could run under the policies.
pub fn simulate(
    device: &Mock,
    policies: Policies,
    requests: impl IntoIterator<Item = Request>,
) -> Result<Report, ConfigError> {
    run(device, policies, &mut Arrivals::new(requests))
}

/// Runs a closed loop: so many clients, each of which sends the next request when its last one has
/// been answered, until all of `ids` are sent.
///
/// # Errors
///
/// [`ConfigError`] when nothing could run under the policies.
pub fn clients(
    device: &Mock,
    policies: Policies,
    clients: u32,
    ids: Range<u64>,
    shape: impl Fn(u64, Time) -> Request,
) -> Result<Report, ConfigError> {
    let next = |n, now| {
        let id = ids.start + n;
        ids.contains(&id).then(|| shape(id, now))
    };
    run(
        device,
        policies,
        &mut ClosedLoop::new(clients, next, || Span::ZERO),
    )
}

fn run(
    device: &Mock,
    policies: Policies,
    workload: &mut impl Workload,
) -> Result<Report, ConfigError> {
    let scheduler = Scheduler::new(device.limits(), policies)?;
    Ok(Simulation::new(scheduler, device.clone()).run(workload))
}

/// A run, and how many positions had been run in vain when their requests were preempted: the
/// journal has the numbers of each decision.
///
/// # Errors
///
/// [`ConfigError`] when nothing could run on the device.
pub fn simulate_preempting(
    device: &Mock,
    policies: Policies,
    requests: impl IntoIterator<Item = Request>,
) -> Result<(Report, u64), ConfigError> {
    let scheduler = Scheduler::new(device.limits(), policies)?;
    let mut simulation = Simulation::new(scheduler, device.clone());
    let lost_tokens = Arc::new(AtomicU64::new(0));
    let sum = Arc::clone(&lost_tokens);
    let journal = move |entry: &Entry| {
        if let Decision::Preempted { computed, .. } = entry.decision {
            sum.fetch_add(u64::from(computed), Ordering::Relaxed);
        }
    };
    simulation
        .scheduler_mut()
        .set_journal(Some(Box::new(journal)));
    let report = simulation.run(&mut Arrivals::new(requests));
    Ok((report, lost_tokens.load(Ordering::Relaxed)))
}
