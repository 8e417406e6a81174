//! Factors that are rounded to bf16: logits stay near those of the reference, and everything that holds
//! without rounding holds with it: alone or together, in chunks, after a preemption. That every processor
//! gives the same logits is in `paths`, and what is rounded to 8 bits in `quantized`.

use serve_core::conformance::{Suite, check};
use serve_model::decode::DecoderBackend;
use serve_model::load::{LoadOptions, Source, load};
use serve_model::measure::Tolerance;
use serve_model::numbers::Precision;

use crate::fixtures::{Golden, folder, names, options};

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
