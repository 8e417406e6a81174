//! What a request may ask for beside tokens: penalties, against a plain version on whole logits, and
//! log-probabilities, against logits of transformers.

use std::collections::BTreeMap;
use std::sync::Arc;

use serve_core::conformance::{Driver, Run};
use serve_core::{Backend, BlockId, Request, RequestId, Sampling, StepId, StepOutcome, StepPlan};
use serve_core::{TokenId, TokenLogprob};

use crate::fixtures::{Golden, fixture, folder};

const ID: RequestId = RequestId::new(1);

fn penalised() -> Sampling {
    let sampling = Sampling::GREEDY.with_repetition_penalty(1.4).unwrap();
    let sampling = sampling.with_frequency_penalty(0.9).unwrap();
    sampling.with_presence_penalty(-0.3).unwrap()
}

fn request(name: &str, sampling: Sampling) -> Request {
    let golden = Golden::of(&folder(name));
    golden.prompt("medium").request(1).with_sampling(sampling)
}

/// The tokens of a request that runs alone.
fn generated(name: &str, request: Request) -> Vec<TokenId> {
    let mut driver = Driver::new(fixture(name).backend, 3).unwrap();
    let outputs = request.output_tokens_max() as usize;
    driver.start(request);
    while driver.outputs(ID).len() < outputs {
        let tokens = driver.pending(ID);
        driver
            .step(&[Run {
                request: ID,
                tokens,
            }])
            .unwrap();
    }
    driver.outputs(ID).to_vec()
}

/// Each token from the logits of everything before it, run anew, penalised as the OpenAI API and the
/// CTRL paper say.
fn by_definition(name: &str, request: &Request) -> Vec<TokenId> {
    let mut backend = fixture(name).backend;
    let sampling = request.sampling();
    let mut outputs: Vec<TokenId> = Vec::new();
    while outputs.len() < request.output_tokens_max() as usize {
        let all = [request.prompt(), outputs.as_slice()].concat();
        let mut logits = backend.prompt_logits(&all).unwrap().pop().unwrap();
        let mut counts: BTreeMap<TokenId, u32> = BTreeMap::new();
        all.iter()
            .for_each(|&token| _ = counts.entry(token).or_default());
        outputs
            .iter()
            .for_each(|&token| *counts.entry(token).or_default() += 1);
        for (token, count) in counts {
            let logit = &mut logits[token.get() as usize];
            let scale = sampling.repetition_penalty();
            *logit = if *logit > 0.0 {
                *logit / scale
            } else {
                *logit * scale
            };
            *logit -= sampling.frequency_penalty() * count as f32;
            *logit -= sampling.presence_penalty() * count.min(1) as f32;
        }
        let largest = logits.iter().copied().fold(f32::MIN, f32::max);
        let best = logits.iter().position(|&logit| logit == largest).unwrap();
        outputs.push(TokenId::new(best as u32));
    }
    outputs
}

#[test]
fn penalised_tokens_are_those_of_the_definition() {
    for name in ["tiny-qwen2", "tiny-qwen3", "tiny-llama"] {
        let request = request(name, penalised());
        let expected = by_definition(name, &request);
        assert_eq!(generated(name, request.clone()), expected, "{name}");
        let plain = request.with_sampling(Sampling::GREEDY);
        assert_ne!(
            generated(name, plain),
            expected,
            "{name}: no penalty had any effect"
        );
    }
}

/// A step that is run a second time samples the same token, and counts it once.
#[test]
fn a_replayed_step_counts_no_token_twice() {
    let name = "tiny-qwen2";
    let request = request(name, penalised());
    let expected = generated(name, request.clone());
    let mut backend = fixture(name).backend;
    let (mut plan, mut outcome) = (StepPlan::new(), StepOutcome::new());
    let blocks: Vec<BlockId> = (1..20).map(BlockId::new).collect();
    let prompt = request.prompt_tokens();
    plan.push_start(Arc::new(request));
    let mut step = 0;
    for (index, &expected) in (0..).zip(&expected) {
        let known = prompt + index;
        // Once, and again from two tokens before it.
        for back in [0, index.min(2)] {
            plan.push_segment(ID, 0..known - back, true, 0, &blocks);
            backend.execute(&plan, &mut outcome).unwrap();
            step += 1;
            plan.reset(StepId::new(step));
        }
        for known in known - index.min(2)..=known {
            plan.push_segment(ID, 0..known, true, 0, &blocks);
            backend.execute(&plan, &mut outcome).unwrap();
            step += 1;
            plan.reset(StepId::new(step));
        }
        assert_eq!(outcome.sampled[0].token, expected, "output {index}");
    }
}

fn told(entries: &[TokenLogprob], logits: &[f32]) {
    let sum: f64 = logits.iter().map(|&logit| f64::from(logit).exp()).sum();
    for entry in entries {
        let logit = f64::from(logits[entry.token.get() as usize]);
        let found = f64::from(entry.logprob);
        let expected = logit - sum.ln();
        assert!(
            (found - expected).abs() < 2e-3,
            "{entry:?}, expected {expected}"
        );
    }
}

/// Whatever is drawn and penalised, the log-probabilities are those of the model.
#[test]
fn log_probabilities_are_those_of_the_raw_logits() {
    let warm = penalised().with_temperature(5.0).unwrap().with_seed(3);
    for name in ["tiny-qwen2", "tiny-llama"] {
        for sampling in [Sampling::GREEDY, penalised(), warm] {
            let golden = Golden::of(&folder(name));
            let logits = &golden.prompt("medium").last_logits;
            let request = request(name, sampling).with_logprobs(Some(20)).unwrap();
            let tokens = request.prompt_tokens();
            let mut backend = fixture(name).backend;
            let (mut plan, mut outcome) = (StepPlan::new(), StepOutcome::new());
            plan.push_start(Arc::new(request));
            let blocks: Vec<BlockId> = (1..20).map(BlockId::new).collect();
            plan.push_segment(ID, 0..tokens, true, 0, &blocks);
            backend.execute(&plan, &mut outcome).unwrap();
            let entries = outcome.logprobs.of(0).unwrap();
            assert_eq!(entries.len(), 21);
            assert_eq!(entries[0].token, outcome.sampled[0].token);
            told(entries, logits);
            let mut largest = logits.clone();
            largest.sort_by(|a, b| b.total_cmp(a));
            let twentieth = logits[entries[20].token.get() as usize];
            assert!((twentieth - largest[19]).abs() < 1e-3);
        }
    }
}
