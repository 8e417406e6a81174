//! A steady decode loop allocates nothing on the host.

use std::num::NonZeroUsize;
use std::sync::Arc;

use serve_core::{Backend, BlockId, Request, RequestId, Sampling, StepId, StepOutcome, StepPlan};
use serve_core::{Time, TokenId};
use serve_model::{Quantization, Source, load};

use crate::fixtures::{folder, options};

const REQUESTS: u32 = 5;
const PROMPT: u32 = 20;
const STEPS: u32 = 150;
/// Blocks of 8 positions for a whole request.
const BLOCKS: u32 = (PROMPT + STEPS).div_ceil(8);

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

fn push(plan: &mut StepPlan, id: u32, positions: std::ops::Range<u32>) {
    let mut blocks = [BlockId::NULL; BLOCKS as usize];
    for (block, number) in blocks.iter_mut().zip(1 + id * BLOCKS..) {
        *block = BlockId::new(number);
    }
    plan.push_segment(RequestId::new(id.into()), positions, true, &blocks);
}

/// Allocations of each decode step, on the thread that asks for it.
fn allocations(name: &str, quantization: Option<Quantization>, threads: usize) -> Vec<u64> {
    let mut options = options();
    options.host.quantization = quantization;
    options.host.threads = NonZeroUsize::new(threads);
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
        let counted = allocation_counter::measure(|| backend.execute(&plan, &mut outcome).unwrap());
        assert_eq!(outcome.sampled.len(), REQUESTS as usize);
        counted.count_total
    };
    (0..STEPS).map(step).collect()
}

#[test]
fn a_steady_decode_loop_allocates_nothing() {
    for name in ["tiny-qwen2", "tiny-qwen3-untied-bf16", "tiny-llama"] {
        for quantization in [None, Some(Quantization::Q8), Some(Quantization::Q4)] {
            // With one thread, all that any thread would do is counted.
            for threads in [1, 2] {
                let counts = allocations(name, quantization, threads);
                // The first step makes buffers that the prompts did not need.
                let steady = counts[1..].iter().all(|&count| count == 0);
                assert!(steady, "{name}, {quantization:?}, {threads}: {counts:?}");
            }
        }
    }
}
