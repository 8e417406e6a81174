//! Every device runs every fixture as the reference does, and keeps the contract of a backend: Burn's
//! own operations always, GPUs where there is one.

#![expect(clippy::print_stdout, reason = "a test that is skipped says so")]

use std::sync::Arc;

use serve_core::conformance::{Driver, Suite, check};
use serve_core::{
    Backend, BlockId, Request, Sampling, StepId, StepOutcome, StepPlan, TokenLogprob,
};
use serve_model::decode::{DecoderBackend, DeviceKind, DeviceMissing};
use serve_model::load::{LoadError, LoadOptions, Progress, Source, load};
use serve_model::numbers::{Precision, Quantization};

use crate::fixtures::{Golden, folder, names, options, tokens};
use crate::golden::{finish, id, of};

/// How far a logit may be from the reference, which is in f32.
const F32_TOLERANCE: f32 = 2e-3;
/// How far a log-probability may be where matrix products round their factors to fewer bits: TF32 on a GPU's tensor
/// cores. What else such a device keeps is in `rounding`.
const TF32_TOLERANCE: f32 = 0.1;

fn options_for(device: DeviceKind) -> LoadOptions {
    LoadOptions {
        device,
        precision: Some(Precision::F32),
        // Rehearsing every step that there can be takes longer than the steps of a test.
        warm: false,
        ..options()
    }
}

/// A fixture on a device, if this machine and this build have it.
fn backend(name: &str, options: &LoadOptions) -> Option<DecoderBackend> {
    match load(&Source::Folder(folder(name)), options, &mut |_| ()) {
        Ok(model) => Some(model.backend),
        Err(LoadError::Device(missing)) => {
            println!("skipped: {missing}");
            None
        }
        Err(error) => panic!("{name}: {error}"),
    }
}

fn logits_agree(device: DeviceKind, tolerance: f32) {
    for name in names() {
        let Some(mut backend) = backend(&name, &options_for(device)) else {
            return;
        };
        for prompt in &Golden::of(&folder(&name)).prompts {
            let rows = backend.prompt_logits(&prompt.tokens()).unwrap();
            for (expected, found) in prompt.beside(&rows) {
                for (token, (expected, found)) in expected.iter().zip(found).enumerate() {
                    let close = (expected - found).abs() < tolerance;
                    let case = &prompt.name;
                    assert!(
                        close,
                        "{name}, {case}, #{token}: {found}, reference {expected}"
                    );
                }
            }
        }
    }
}

/// All golden prompts together, in chunks, so that steps mix prompts and single positions.
fn greedy_tokens_agree(device: DeviceKind, graphs: bool) {
    for name in names() {
        let options = LoadOptions {
            graphs,
            ..options_for(device)
        };
        let Some(backend) = backend(&name, &options) else {
            return;
        };
        let golden = Golden::of(&folder(&name));
        let mut driver = Driver::new(backend, 1).unwrap();
        let requests = golden.prompts.iter().enumerate();
        let requests: Vec<Request> = requests.map(|(i, p)| p.request(i as u64)).collect();
        let all: Vec<_> = requests.iter().map(of).collect();
        for request in requests {
            driver.start(request);
        }
        finish(&mut driver, &all, 7);
        for (index, prompt) in golden.prompts.iter().enumerate() {
            let found = driver.outputs(id(index));
            assert_eq!(found, tokens(&prompt.greedy), "{name}, {}", prompt.name);
        }
    }
}

/// The same draws as on the CPU, of requests that sample in different ways in one step.
fn draws_agree(device: DeviceKind) {
    let name = "tiny-qwen2";
    let outputs = |device| {
        let driver = Driver::new(backend(name, &options_for(device))?, 1).unwrap();
        Some(drawn(driver, name))
    };
    let (Some(found), Some(expected)) = (outputs(device), outputs(DeviceKind::Cpu)) else {
        return;
    };
    assert_eq!(found, expected);
}

fn drawn(mut driver: Driver<DecoderBackend>, name: &str) -> Vec<Vec<u32>> {
    let golden = Golden::of(&folder(name));
    let prompt = golden.prompt("medium");
    let mut all = Vec::new();
    for index in 0..8_u16 {
        let sampling = Sampling::GREEDY
            .with_temperature(f32::from(index) * 0.3)
            .unwrap();
        let sampling = sampling.with_top_k(std::num::NonZeroU32::new(u32::from(index % 3) * 20));
        let sampling = sampling
            .with_top_p(1.0 - f32::from(index % 4) * 0.1)
            .unwrap();
        // Every other one is penalised, in the recorded steps as well.
        let sampling = match index % 2 {
            0 => sampling,
            _ => penalised(sampling),
        };
        let request = prompt.request(u64::from(index));
        let request = request.with_sampling(sampling.with_seed(u64::from(index)));
        all.push((request.id(), 12));
        driver.start(request);
    }
    finish(&mut driver, &all, 16);
    let outputs = |&(id, _): &(_, u32)| driver.outputs(id).iter().map(|t| t.get()).collect();
    all.iter().map(outputs).collect()
}

fn penalised(sampling: Sampling) -> Sampling {
    let sampling = sampling.with_repetition_penalty(1.3).unwrap();
    let sampling = sampling.with_frequency_penalty(0.4).unwrap();
    sampling.with_presence_penalty(-0.2).unwrap()
}

/// The same log-probabilities as on the CPU in the first `steps` of requests that ask for none, for a few
/// and for many.
fn logprobs_agree(device: DeviceKind, steps: u32, tolerance: f32) {
    for name in ["tiny-qwen2", "tiny-llama"] {
        let told = |device| Some(told(backend(name, &options_for(device))?, name, steps));
        let (Some(found), Some(expected)) = (told(device), told(DeviceKind::Cpu)) else {
            return;
        };
        assert_eq!(found.len(), expected.len());
        for (found, expected) in found.iter().zip(&expected) {
            // Rank by rank: logits that are nearly the same may change places.
            let difference = (found.logprob - expected.logprob).abs();
            assert!(difference < tolerance, "{name}: {found:?}, {expected:?}");
        }
    }
}

fn told(mut backend: DecoderBackend, name: &str, steps: u32) -> Vec<TokenLogprob> {
    const ASKED: [Option<u8>; 4] = [Some(0), None, Some(20), Some(3)];
    let golden = Golden::of(&folder(name));
    let prompt = golden.prompt("medium");
    let (mut plan, mut outcome) = (StepPlan::new(), StepOutcome::new());
    let mut all = Vec::new();
    for step in 0..steps {
        for (index, asked) in (0..).zip(ASKED) {
            let request = prompt
                .request(index)
                .with_sampling(penalised(Sampling::GREEDY));
            let request = request.with_logprobs(asked).unwrap();
            let (id, tokens) = (request.id(), request.prompt_tokens());
            let first = if step == 0 { 0 } else { tokens + step - 1 };
            if step == 0 {
                plan.push_start(Arc::new(request));
            }
            let blocks: Vec<_> = (1..6)
                .map(|block| BlockId::new(index as u32 * 5 + block))
                .collect();
            plan.push_segment(id, first..tokens + step, true, 0, &blocks);
        }
        backend.execute(&plan, &mut outcome).unwrap();
        for (index, asked) in ASKED.iter().enumerate() {
            let entries = outcome.logprobs.of(index).unwrap_or_default();
            assert_eq!(
                entries.len(),
                asked.map_or(0, |asked| usize::from(asked) + 1)
            );
            all.extend_from_slice(entries);
        }
        plan.reset(StepId::new(u64::from(step) + 1));
    }
    all
}

fn conforms(device: DeviceKind) {
    let options = options_for(device);
    for name in ["tiny-qwen2", "tiny-qwen3"] {
        if backend(name, &options).is_none() {
            return;
        }
        let suite = Suite {
            vocabulary: 384,
            seed: 11,
        };
        if let Err(failure) = check(|| backend(name, &options).unwrap(), suite) {
            panic!("{name}: {failure}");
        }
    }
}

#[test]
fn flex_agrees_with_the_reference() {
    logits_agree(DeviceKind::Flex, F32_TOLERANCE);
    greedy_tokens_agree(DeviceKind::Flex, false);
}

#[test]
fn flex_tells_log_probabilities_as_the_cpu_does() {
    logprobs_agree(DeviceKind::Flex, 3, F32_TOLERANCE);
}

#[test]
fn flex_conforms() {
    conforms(DeviceKind::Flex);
}

#[test]
fn flex_draws_as_the_cpu_does() {
    draws_agree(DeviceKind::Flex);
}

#[test]
fn webgpu_agrees_with_the_reference() {
    logits_agree(DeviceKind::WebGpu, F32_TOLERANCE);
    greedy_tokens_agree(DeviceKind::WebGpu, false);
}

#[test]
fn webgpu_replays_what_it_recorded() {
    greedy_tokens_agree(DeviceKind::WebGpu, true);
}

#[test]
fn webgpu_draws_as_the_cpu_does() {
    draws_agree(DeviceKind::WebGpu);
}

#[test]
fn webgpu_tells_log_probabilities_as_the_cpu_does() {
    logprobs_agree(DeviceKind::WebGpu, 3, F32_TOLERANCE);
}

#[test]
fn webgpu_conforms() {
    conforms(DeviceKind::WebGpu);
}

#[test]
fn cuda_tells_log_probabilities_as_the_cpu_does() {
    logprobs_agree(DeviceKind::Cuda, 1, TF32_TOLERANCE);
}

#[test]
fn cuda_conforms() {
    conforms(DeviceKind::Cuda);
}

/// Loads with every size of a step run before the first request, as a server does.
fn warms(device: DeviceKind) {
    let options = LoadOptions {
        sequences_max: 3,
        step_tokens_max: 8,
        warm: true,
        ..options_for(device)
    };
    let mut progress = Vec::new();
    let source = Source::Folder(folder("tiny-qwen2"));
    let model = load(&source, &options, &mut |step| {
        if let Progress::Warm { steps, steps_total } = step {
            progress.push((steps, steps_total));
        }
    });
    let model = match model {
        Err(LoadError::Device(missing)) => return println!("skipped: {missing}"),
        other => other.unwrap(),
    };
    // Batches of 1 to 3 in one window, and prompts of 1 to 4, 6 and 8 positions.
    let expected: Vec<_> = (1..=9).map(|steps| (steps, 9)).collect();
    assert_eq!(progress, expected);
    let name = model.info.device;
    assert!(name.contains("; 3 decode steps recorded"), "{name}");
}

#[test]
fn webgpu_records_every_decode_step_before_the_first_request() {
    warms(DeviceKind::WebGpu);
}

#[test]
fn cuda_records_every_decode_step_before_the_first_request() {
    warms(DeviceKind::Cuda);
}

/// For `cargo xtask gpu-emulate`, which takes one thing after the other away.
#[test]
#[ignore = "says what this machine lacks, and proves nothing where it lacks nothing"]
fn cuda_says_what_it_lacks() {
    let options = LoadOptions {
        sequences_max: 1,
        step_tokens_max: 1,
        warm: true,
        ..options_for(DeviceKind::Cuda)
    };
    match load(&Source::Folder(folder("tiny-llama")), &options, &mut |_| ()) {
        Ok(_) => println!("nothing is missing"),
        Err(error) => println!("{error}"),
    }
}

#[test]
fn quantised_weights_are_for_the_cpu() {
    let mut options = options_for(DeviceKind::Flex);
    options.cpu.quantization = Some(Quantization::Q8);
    let source = Source::Folder(folder("tiny-llama"));
    let error = load(&source, &options, &mut |_| ()).unwrap_err();
    assert!(matches!(error, LoadError::Quantized { .. }), "{error}");
}

#[test]
fn burns_own_operations_say_that_they_round_nothing() {
    let mut options = options_for(DeviceKind::Flex);
    options.precision = Some(Precision::Bf16);
    let source = Source::Folder(folder("tiny-llama"));
    let error = load(&source, &options, &mut |_| ()).unwrap_err();
    assert!(matches!(error, LoadError::FlexPrecision), "{error}");
}

#[test]
fn inputs_of_8_bits_want_weights_of_8_bits_or_fewer() {
    for device in DeviceKind::ALL {
        let mut options = options_for(device);
        options.precision = Some(Precision::Int8);
        let source = Source::Folder(folder("tiny-llama"));
        let error = load(&source, &options, &mut |_| ()).unwrap_err();
        assert!(
            matches!(error, LoadError::PrecisionOfWeights { .. }),
            "{error}"
        );
    }
}

#[test]
fn a_device_that_is_not_there_is_an_error_and_auto_does_without() {
    let source = Source::Folder(folder("tiny-llama"));
    let of = |device| load(&source, &options_for(device), &mut |_| ());
    if let Err(error) = of(DeviceKind::Cuda) {
        assert!(matches!(
            error,
            LoadError::Device(DeviceMissing::NotBuilt { .. } | DeviceMissing::NotHere { .. })
        ));
        assert!(error.to_string().contains("--device cpu"), "{error}");
    }
    assert!(of(DeviceKind::Auto).is_ok());
}
