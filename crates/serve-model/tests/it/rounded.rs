//! Factors that are rounded to bf16: logits stay near those of the reference, tokens are the same on
//! every processor, and everything that holds without rounding holds with it: alone or together, in
//! chunks, after a preemption.

use serve_core::TokenId;
use serve_core::conformance::{Driver, Suite, check};
use serve_model::kernels::Instructions;
use serve_model::tolerance::Tolerance;
use serve_model::{DecoderBackend, LoadOptions, Precision, Quantization, Source, load};

use crate::fixtures::{Golden, folder, names, options};
use crate::golden::{finish, id, of};

/// How far logits may be off.
const TOLERANCE: Tolerance = Tolerance::Share(0.1);

fn rounded() -> LoadOptions {
    LoadOptions {
        precision: Some(Precision::Bf16),
        ..options()
    }
}

fn backend(name: &str, options: &LoadOptions) -> DecoderBackend {
    let model = load(&Source::Folder(folder(name)), options, &mut |_| ()).unwrap();
    assert_eq!(model.info.dtype, "bf16");
    model.backend
}

#[test]
fn logits_stay_near_the_reference() {
    for name in names() {
        let mut backend = backend(&name, &rounded());
        for prompt in &Golden::of(&folder(&name)).prompts {
            let logits = backend.prompt_logits(&prompt.tokens()).unwrap();
            let expected = prompt.last_logits.iter().copied().enumerate();
            let share = TOLERANCE.check(logits.last().unwrap(), expected);
            let share = share.unwrap_or_else(|off| panic!("{name}, {}: {off}", prompt.name));
            assert!(share > 1e-5, "{name}: nothing was rounded");
        }
    }
}

#[test]
fn rounded_factors_conform() {
    for name in ["tiny-qwen2", "tiny-qwen3-untied-bf16", "tiny-llama"] {
        let suite = Suite {
            vocabulary: 384,
            seed: 23,
        };
        if let Err(failure) = check(|| backend(name, &rounded()), suite) {
            panic!("{name}: {failure}");
        }
    }
}

#[test]
fn every_processor_gives_the_same_tokens() {
    for name in ["tiny-qwen3", "tiny-qwen2-bf16"] {
        for quantization in [None, Some(Quantization::Q4)] {
            let all: Vec<_> = Instructions::available()
                .into_iter()
                .map(|instructions| {
                    let mut options = rounded();
                    options.host.instructions = instructions;
                    options.host.quantization = quantization;
                    outputs(name, &options)
                })
                .collect();
            let same = all.windows(2).all(|pair| pair[0] == pair[1]);
            assert!(same, "{name}, {quantization:?}");
        }
    }
}

fn outputs(name: &str, options: &LoadOptions) -> Vec<Vec<TokenId>> {
    let mut driver = Driver::new(backend(name, options), 1).unwrap();
    let golden = Golden::of(&folder(name));
    let requests = golden.prompts.iter().enumerate();
    let requests: Vec<_> = requests.map(|(i, p)| p.request(i as u64)).collect();
    let all: Vec<_> = requests.iter().map(of).collect();
    for request in requests {
        driver.start(request);
    }
    finish(&mut driver, &all, 16);
    let outputs = (0..all.len()).map(|i| driver.outputs(id(i)).to_vec());
    outputs.collect()
}
