//! What a device keeps that rounds the factors of its matrix products: CUDA's tensor cores in f32, which round them to
//! TF32, and any GPU in bf16.
//!
//! Its tokens need not be the reference's: after one near-tie everything differs. So each token is held against the CPU's
//! logits after the very text that the device has written, where it has to be the best or behind by no more than
//! rounding can take it; and what is drawn, against the host's sampler on the logits that the device drew from.

#![expect(clippy::print_stdout, reason = "a test that is skipped says so")]

use std::num::NonZeroU32;

use serve_core::conformance::{Driver, Run};
use serve_core::{Request, RequestId, Sampling, TokenId};
use serve_model::decode::{DecoderBackend, DeviceKind, History, Sampler};
use serve_model::load::{LoadError, LoadOptions, Source, load};
use serve_model::measure::{Tolerance, spread};
use serve_model::numbers::Precision;

use crate::fixtures::{Golden, fixture, folder, names, options};
use crate::golden::{finish, id, of};

/// A device that computes in a precision, and how far that may take a row of logits, as a share of their spread.
#[derive(Clone, Copy)]
struct Rounding {
    device: DeviceKind,
    precision: Precision,
    share: f64,
}

const CUDA_F32: Rounding = Rounding {
    device: DeviceKind::Cuda,
    precision: Precision::F32,
    share: 0.03,
};
const CUDA_BF16: Rounding = Rounding {
    device: DeviceKind::Cuda,
    precision: Precision::Bf16,
    share: 0.1,
};

impl Rounding {
    /// A fixture, if this machine and this build have the device.
    fn backend(self, name: &str, graphs: bool) -> Option<DecoderBackend> {
        let options = LoadOptions {
            device: self.device,
            precision: Some(self.precision),
            graphs,
            // Rehearsing every step that there can be takes longer than the steps of a test.
            warm: false,
            ..options()
        };
        match load(&Source::Folder(folder(name)), &options, &mut |_| ()) {
            Ok(model) => Some(model.backend),
            Err(LoadError::Device(missing)) => {
                println!("skipped: {missing}");
                None
            }
            Err(error) => panic!("{name}: {error}"),
        }
    }

    /// Whether each token of `found` is the best after what comes before it, or nearly so. Two logits may be off, each
    /// in its own direction.
    fn are_near_the_best(&self, name: &str, prompt: &[TokenId], found: &[TokenId]) {
        let text = [prompt, &found[..found.len() - 1]].concat();
        let rows = fixture(name).backend.prompt_logits(&text).unwrap();
        for (step, (row, token)) in rows[prompt.len() - 1..].iter().zip(found).enumerate() {
            let best = row.iter().copied().fold(f32::NEG_INFINITY, f32::max);
            let behind = f64::from(best - row[token.get() as usize]) / spread(row);
            assert!(
                behind <= 2.0 * self.share,
                "{name}, output {step}: #{token} is behind the best by {behind:.3} of the logits' spread, which is no \
                 rounding"
            );
        }
    }
}

fn logits_are_near(rounding: Rounding) {
    let tolerance = Tolerance::Share(rounding.share);
    for name in names() {
        let Some(mut backend) = rounding.backend(&name, false) else {
            return;
        };
        for prompt in &Golden::of(&folder(&name)).prompts {
            let rows = backend.prompt_logits(&prompt.tokens()).unwrap();
            for (expected, found) in prompt.beside(&rows) {
                let expected = expected.iter().copied().enumerate();
                let share = tolerance.check(found, expected);
                share.unwrap_or_else(|off| panic!("{name}, {}: {off}", prompt.name));
            }
        }
    }
}

/// All golden prompts together, in chunks, so that steps mix prompts and single positions.
fn tokens_are_near(rounding: Rounding, graphs: bool) {
    for name in names() {
        let Some(backend) = rounding.backend(&name, graphs) else {
            return;
        };
        let golden = Golden::of(&folder(&name));
        let requests = golden.prompts.iter().enumerate();
        let requests = requests.map(|(index, prompt)| prompt.request(index as u64));
        run(rounding, &name, backend, requests.collect(), 7);
    }
}

/// Decode steps of 16 requests, of 15, and so on to 1, recorded.
fn batches_are_near(rounding: Rounding) {
    for name in ["tiny-qwen2", "tiny-qwen3", "tiny-llama"] {
        let Some(backend) = rounding.backend(name, true) else {
            return;
        };
        let golden = Golden::of(&folder(name));
        let prompts = ["one", "short", "medium", "chat"].map(|prompt| golden.prompt(prompt));
        let request = |index: u32| {
            let prompt = prompts[index as usize % prompts.len()];
            Request::new(
                RequestId::new(index.into()),
                serve_core::Time::ZERO,
                prompt.tokens(),
                index + 1,
            )
            .unwrap()
        };
        run(rounding, name, backend, (0..16).map(request).collect(), 512);
    }
}

fn run(
    rounding: Rounding,
    name: &str,
    backend: DecoderBackend,
    requests: Vec<Request>,
    chunk_max: u32,
) {
    let mut driver = Driver::new(backend, 1).unwrap();
    let all: Vec<_> = requests.iter().map(of).collect();
    let prompts: Vec<_> = requests.iter().map(|it| it.prompt().to_vec()).collect();
    for request in requests {
        driver.start(request);
    }
    finish(&mut driver, &all, chunk_max);
    for (index, prompt) in prompts.iter().enumerate() {
        rounding.are_near_the_best(name, prompt, driver.outputs(id(index)));
    }
}

/// A request that samples, and what its penalties count.
struct Drawn {
    id: RequestId,
    sampling: Sampling,
    history: Option<History>,
    known: u32,
    left: u32,
}

/// Requests that sample in different ways in one step; every other one is penalised.
fn drawn(driver: &mut Driver<DecoderBackend>, name: &str) -> Vec<Drawn> {
    const OUTPUTS: u32 = 12;
    let golden = Golden::of(&folder(name));
    let prompt = golden.prompt("medium");
    let make = |index: u16| {
        let temperature = f32::from(index) * 0.3;
        let sampling = Sampling::GREEDY.with_temperature(temperature).unwrap();
        let sampling = sampling.with_top_k(NonZeroU32::new(u32::from(index % 3) * 20));
        let top_p = 1.0 - f32::from(index % 4) * 0.1;
        let sampling = sampling.with_top_p(top_p).unwrap();
        let sampling = match index % 2 {
            0 => sampling,
            _ => {
                let sampling = sampling.with_repetition_penalty(1.3).unwrap();
                sampling.with_frequency_penalty(0.4).unwrap()
            }
        };
        let sampling = sampling.with_seed(index.into());
        let id = RequestId::new(index.into());
        let time = serve_core::Time::ZERO;
        let request = Request::new(id, time, prompt.tokens(), OUTPUTS).unwrap();
        driver.start(request.with_sampling(sampling));
        Drawn {
            id,
            sampling,
            history: History::of(&sampling, &prompt.ids, OUTPUTS as usize),
            known: prompt.ids.len() as u32,
            left: OUTPUTS,
        }
    };
    (0..8).map(make).collect()
}

fn draws_are_the_hosts(rounding: Rounding) {
    let name = "tiny-qwen2";
    let Some(backend) = rounding.backend(name, true) else {
        return;
    };
    let mut driver = Driver::new(backend, 1).unwrap();
    let mut all = drawn(&mut driver, name);
    let mut sampler = Sampler::new();
    while all.iter().any(|one| one.left > 0) {
        let runs: Vec<Run> = all
            .iter()
            .map(|one| Run {
                request: one.id,
                tokens: driver.pending(one.id),
            })
            .collect();
        let sampled = driver.step(&runs).unwrap().to_vec();
        let logits = driver.backend().sampled_logits().unwrap();
        assert_eq!((sampled.len(), logits.len()), (all.len(), all.len()));
        for ((one, sampled), logits) in all.iter_mut().zip(&sampled).zip(&logits) {
            assert_eq!(sampled.request, one.id);
            let seen = one.history.as_ref().map_or(&[][..], History::seen);
            let expected = sampler.sample(logits, &one.sampling, one.known, seen);
            let position = one.known;
            assert_eq!(
                sampled.token, expected,
                "{name}: {:?} at position {position}: the device draws another token from its own logits",
                one.sampling
            );
            if let Some(history) = &mut one.history {
                history.push(expected.get());
            }
            one.known += 1;
            one.left -= 1;
        }
    }
}

#[test]
fn cuda_is_near_the_reference_in_f32() {
    logits_are_near(CUDA_F32);
    tokens_are_near(CUDA_F32, false);
}

#[test]
fn cuda_is_near_the_reference_in_bf16() {
    logits_are_near(CUDA_BF16);
    tokens_are_near(CUDA_BF16, false);
}

#[test]
fn cuda_replays_what_it_recorded_in_f32() {
    tokens_are_near(CUDA_F32, true);
    batches_are_near(CUDA_F32);
}

#[test]
fn cuda_replays_what_it_recorded_in_bf16() {
    tokens_are_near(CUDA_BF16, true);
    batches_are_near(CUDA_BF16);
}

#[test]
fn cuda_draws_as_the_host_does_from_the_same_logits() {
    draws_are_the_hosts(CUDA_F32);
    draws_are_the_hosts(CUDA_BF16);
}
