//! A recorded trace on the device of the cases.

use serve_bench::workload::trace::{BLOCK_TOKENS, Traced};
use serve_core::{Backend, Time, TokenId};
use serve_sched::sim::{Arrivals, Row, Simulation};

use super::cases::{device, request, scheduler};

/// Simulates the requests of a trace, with prefixes reused where the trace has them. One row for each.
pub(super) fn simulate(trace: &[Traced]) -> Vec<Row> {
    let has_prefixes = trace.iter().any(|traced| !traced.blocks.is_empty());
    let block_size = if has_prefixes { BLOCK_TOKENS } else { 16 };
    let mock = device(1 << 18, block_size, (1 << 20) / block_size);
    let scheduler = scheduler(mock.limits(), has_prefixes);
    let first = trace.iter().map(|traced| traced.due).min();
    let requests = (0..).zip(trace).map(|(id, traced)| {
        let mut prompt: Vec<TokenId> = Vec::with_capacity(traced.prompt_tokens as usize);
        for block in &traced.blocks {
            prompt.extend([TokenId::new(*block as u32); BLOCK_TOKENS as usize]);
        }
        prompt.resize(traced.prompt_tokens as usize, TokenId::new(0));
        let arrival = Time::ZERO + traced.due.saturating_sub(first.unwrap_or_default());
        request(id, arrival, prompt.into(), traced.output_tokens)
    });
    Simulation::new(scheduler, mock)
        .run(&mut Arrivals::new(requests))
        .rows
}
