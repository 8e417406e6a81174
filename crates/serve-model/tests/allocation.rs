//! A steady decode loop allocates nothing on the host, on no thread.
//!
//! A binary of its own and no test among others: what is counted is the whole process, in which nothing
//! else may run.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]
#![expect(
    clippy::print_stdout,
    reason = "a test without a harness says how it went"
)]

#[path = "it/fixtures.rs"]
#[expect(dead_code, reason = "golden data is for the other tests")]
mod fixtures;

use std::alloc::System;
use std::num::NonZeroUsize;
use std::sync::Arc;

use serve_core::{Backend, BlockId, Request, RequestId, Sampling, StepId, StepOutcome, StepPlan};
use serve_core::{Time, TokenId};
use serve_model::cpu::{CpuOptions, Instructions};
use serve_model::load::{LoadOptions, Source, load};
use serve_model::numbers::{Precision, Quantization};
use stats_alloc::{INSTRUMENTED_SYSTEM, Region, StatsAlloc};

use fixtures::{folder, options};

/// Counts what any thread of the process asks for.
#[global_allocator]
static ALLOCATOR: &StatsAlloc<System> = &INSTRUMENTED_SYSTEM;

const REQUESTS: u32 = 5;
const PROMPT: u32 = 20;
const STEPS: u32 = 150;
const BLOCK_SIZE: u32 = 8;
/// Blocks for a whole request.
const BLOCKS: u32 = (PROMPT + STEPS).div_ceil(BLOCK_SIZE);

/// One greedy request, and others that sample with filters, some with penalties, one that asks for
/// log-probabilities.
fn request(id: u32) -> Request {
    let prompt = (0..PROMPT).map(|i| TokenId::new((i * 7 + id * 31) % 384));
    let request = Request::new(
        RequestId::new(id.into()),
        Time::ZERO,
        prompt.collect::<Vec<_>>(),
        STEPS + 1,
    );
    let warm = Sampling::GREEDY.with_temperature(1.0).unwrap();
    let warm = warm.with_top_p(0.9).unwrap().with_seed(id.into());
    let sampling = match id {
        0 => Sampling::GREEDY,
        1 => warm.with_repetition_penalty(1.1).unwrap(),
        2 => warm.with_frequency_penalty(0.5).unwrap(),
        _ => warm,
    };
    let request = request.unwrap().with_sampling(sampling);
    request.with_logprobs((id == 3).then_some(5)).unwrap()
}

/// A segment, and with it the blocks that its last positions are the first to need.
fn push(plan: &mut StepPlan, id: u32, positions: std::ops::Range<u32>) {
    let held = positions.start.div_ceil(BLOCK_SIZE);
    let needed = positions.end.div_ceil(BLOCK_SIZE);
    let mut blocks = [BlockId::NULL; BLOCKS as usize];
    let fresh = &mut blocks[held as usize..needed as usize];
    for (block, number) in fresh.iter_mut().zip(1 + id * BLOCKS + held..) {
        *block = BlockId::new(number);
    }
    plan.push_segment(RequestId::new(id.into()), positions, true, held, fresh);
}

fn main() {
    every_thread_is_counted();
    let mut runs = 0;
    for name in ["tiny-qwen2", "tiny-qwen3-untied-bf16", "tiny-llama"] {
        for quantization in [None, Some(Quantization::Q8), Some(Quantization::Q4)] {
            for instructions in Instructions::available() {
                for threads in [1, 2, 5] {
                    for &precision in Precision::with(quantization) {
                        let cpu = CpuOptions {
                            quantization,
                            instructions,
                            threads: NonZeroUsize::new(threads),
                        };
                        a_steady_decode_loop_allocates_nothing(name, precision, cpu);
                        runs += 1;
                    }
                }
            }
        }
    }
    println!("ok: {runs} decode loops of {STEPS} steps allocated nothing on any thread");
}

/// Otherwise nothing below could fail.
fn every_thread_is_counted() {
    let counted = allocations(|| {
        let other = std::thread::spawn(|| Vec::<u64>::with_capacity(100));
        other.join().unwrap();
    });
    let nothing = allocations(|| ());
    assert!(counted > 0 && nothing == 0, "{counted}, {nothing}");
}

/// What all threads ask for while `work` is done.
fn allocations(work: impl FnOnce()) -> usize {
    let region = Region::new(ALLOCATOR);
    work();
    let change = region.change();
    change.allocations + change.reallocations
}

fn a_steady_decode_loop_allocates_nothing(name: &str, precision: Precision, cpu: CpuOptions) {
    let options = LoadOptions {
        cpu,
        precision: Some(precision),
        ..options()
    };
    let model = load(&Source::Folder(folder(name)), &options, &mut |_| ());
    let mut backend = model.unwrap().backend;
    let (mut plan, mut outcome) = (StepPlan::new(), StepOutcome::new());
    for id in 0..REQUESTS {
        plan.push_start(Arc::new(request(id)));
        push(&mut plan, id, 0..PROMPT);
    }
    backend.execute(&plan, &mut outcome).unwrap();
    let step = |step: u32| {
        plan.reset(StepId::new(u64::from(step) + 1));
        for id in 0..REQUESTS {
            push(&mut plan, id, PROMPT + step..PROMPT + step + 1);
        }
        let counted = allocations(|| backend.execute(&plan, &mut outcome).unwrap());
        assert_eq!(outcome.sampled.len(), REQUESTS as usize);
        counted
    };
    let counts: Vec<usize> = (0..STEPS).map(step).collect();
    // The first step makes buffers that the prompts did not need.
    let steady = counts[1..].iter().all(|&count| count == 0);
    assert!(steady, "{name}, {precision:?}, {cpu:?}: {counts:?}");
}
