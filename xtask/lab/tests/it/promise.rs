//! The promise under overload in virtual time: the same device, load and policy as the command.

use serve_core::mock::{CostModel, Mock, MockConfig};
use serve_core::{Limits, Request, RequestId, Span, Time, TokenId};
use serve_sched::admit::{Admit, LatencyBudget};
use serve_sched::sim::{Arrivals, Poisson, Report, Row, Simulation};
use serve_sched::{Policies, Scheduler};

const TARGET: Span = Span::from_secs(3);
const LASTS: Span = Span::from_secs(60);
const BATCH: u32 = 16;
const OUTPUT_TOKENS: u32 = 64;
const PROMPT_TOKENS: u32 = 16;

/// A minute of twice what the device can do, with nobody refused but by `admit`.
fn run(seed: u64, admit: Vec<Box<dyn Admit>>) -> Report {
    let cost = CostModel::default();
    let prompts = Span::from_micros(60) * u64::from(BATCH * PROMPT_TOKENS);
    let service = cost.decode(BATCH) * u64::from(OUTPUT_TOKENS) + prompts;
    let rate = 2.0 * f64::from(BATCH) / service.as_secs_f64();
    let limits = Limits {
        sequences_max: BATCH,
        step_tokens_max: 512,
        context_max: 512,
        block_size: 16,
        blocks: 513,
    };
    let mock = Mock::new(MockConfig {
        limits,
        cost,
        ..MockConfig::default()
    });
    let policies = Policies {
        admit,
        ..Policies::default()
    };
    let arrivals = Poisson::new(seed, rate).take_while(|&at| at < Time::ZERO + LASTS);
    let requests = (0_u32..).zip(arrivals).map(|(id, at)| {
        let prompt: Vec<_> = (0..PROMPT_TOKENS)
            .map(|position| TokenId::new(id << 8 | position))
            .collect();
        Request::new(RequestId::new(u64::from(id)), at, prompt, OUTPUT_TOKENS).unwrap()
    });
    let scheduler = Scheduler::new(limits, policies).unwrap();
    Simulation::new(scheduler, mock).run(&mut Arrivals::new(requests))
}

fn times(report: &Report) -> Vec<Span> {
    let finished = report.rows.iter().filter(|row| row.is_finished());
    let mut times: Vec<_> = finished.map(Row::response_time).collect();
    times.sort_unstable();
    times
}

#[test]
fn the_p99_of_what_is_taken_is_the_target_and_goodput_does_not_suffer() {
    for seed in 1..=5 {
        let budget = times(&run(seed, vec![Box::new(LatencyBudget::new(TARGET))]));
        let everybody = times(&run(seed, Vec::new()));
        let p99 = budget[budget.len() * 99 / 100];
        let ratio = p99.as_secs_f64() / TARGET.as_secs_f64();
        assert!((ratio - 1.0).abs() <= 0.05, "seed {seed}: p99 {p99}");
        let in_time = |times: &[Span]| times.iter().filter(|time| **time <= TARGET).count();
        let (with, without) = (in_time(&budget), in_time(&everybody));
        assert!(
            with >= without,
            "seed {seed}: {with} in time, {without} without"
        );
    }
}
