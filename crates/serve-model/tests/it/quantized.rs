//! Weights that are made smaller: logits stay near those of the reference, everything takes less memory,
//! and the backend keeps its contract, with inputs as they are and with inputs of 8 bits. That the
//! arithmetic is that of the widened weights, on every path and however the work is cut, is in `paths`.

use std::path::Path;

use serve_core::conformance::{Suite, check};
use serve_model::cpu::Instructions;
use serve_model::load::{LoadOptions, Source, load};
use serve_model::measure::Tolerance;
use serve_model::numbers::{Precision, Quantization};

use crate::fixtures::{Golden, folder, names, options};

/// How far the logits of a model are off at most, as a share of their spread.
fn share(source: &Source, golden: &Path, options: &LoadOptions) -> f64 {
    let mut model = load(source, options, &mut |_| ()).unwrap();
    assert_eq!(model.info.quantization, options.cpu.quantization);
    let tolerance = Tolerance::of(&model.info);
    let mut worst = 0.0_f64;
    for prompt in &Golden::of(golden).prompts {
        let logits = model.backend.prompt_logits(&prompt.tokens()).unwrap();
        let expected = prompt.last_logits.iter().copied().enumerate();
        let share = tolerance.check(logits.last().unwrap(), expected);
        worst = worst.max(share.unwrap_or_else(|off| panic!("{}: {off}", prompt.name)));
    }
    worst
}

/// What inputs are in.
const INPUTS: [Precision; 2] = [Precision::F32, Precision::Int8];

#[test]
fn logits_of_a_trained_model_stay_near_the_reference() {
    let golden = Path::new(env!("CARGO_MANIFEST_DIR")).join("models/austen-2m");
    for quantization in Quantization::ALL {
        for instructions in Instructions::available() {
            let [plain, rounded] = INPUTS.map(|precision| {
                let mut options = LoadOptions::default();
                options.cpu.quantization = Some(quantization);
                options.cpu.instructions = instructions;
                options.precision = Some(precision);
                share(&Source::Embedded, &golden, &options)
            });
            assert!(plain > 1e-4, "{quantization}: nothing has changed");
            assert!(plain != rounded, "{quantization}: inputs are as they were");
        }
    }
}

#[test]
fn logits_of_random_weights_in_8_bits_stay_near_the_reference() {
    for name in names() {
        for instructions in Instructions::available() {
            for precision in INPUTS {
                let mut options = options();
                options.cpu.quantization = Some(Quantization::Q8);
                options.cpu.instructions = instructions;
                options.precision = Some(precision);
                let folder = folder(&name);
                let share = share(&Source::Folder(folder.clone()), &folder, &options);
                assert!(share > 1e-5, "{name}: nothing has changed");
            }
        }
    }
}

#[test]
fn quantised_weights_take_less_memory() {
    let source = Source::Folder(folder("tiny-qwen2"));
    let bytes = |quantization| {
        let mut options = options();
        options.cpu.quantization = quantization;
        let model = load(&source, &options, &mut |_| ()).unwrap();
        model.info.weights_bytes as f64
    };
    let [whole, q8, q4] = [None, Some(Quantization::Q8), Some(Quantization::Q4)].map(bytes);
    assert!(q8 < whole * 0.28 && q4 < q8, "{whole}, {q8}, {q4}");
}

#[test]
fn quantised_weights_conform() {
    for name in ["tiny-qwen2", "tiny-qwen3", "tiny-llama"] {
        for quantization in Quantization::ALL {
            for precision in INPUTS {
                let mut options = options();
                options.cpu.quantization = Some(quantization);
                options.precision = Some(precision);
                let source = Source::Folder(folder(name));
                let make = || load(&source, &options, &mut |_| ()).unwrap().backend;
                let suite = Suite {
                    vocabulary: 384,
                    seed: 17,
                };
                if let Err(failure) = check(make, suite) {
                    panic!("{name}, {quantization}, {precision:?}: {failure}");
                }
            }
        }
    }
}
