//! Weights that are made smaller: logits stay near those of the reference, and everything that holds
//! of whole weights holds of them: alone or together, in chunks, after a preemption, on any
//! instructions.

use serve_core::conformance::{Driver, Suite, check};
use serve_model::kernels::Instructions;
use serve_model::{Quantization, Source, load};

use crate::fixtures::{Golden, folder, names, options};
use crate::golden::{finish, id, of};

/// How far logits may be off, as a share of how far they are spread. The fixtures' random weights make
/// sharp attention, which multiplies every error; four bits less are sixteen times the error. That a
/// product is exactly that of the widened weights is a test of the kernels.
fn tolerance(quantization: Quantization) -> f64 {
    match quantization {
        Quantization::Q8 => 0.12,
        Quantization::Q4 => 1.0,
    }
}

#[test]
fn logits_stay_near_the_reference() {
    for name in names() {
        for quantization in Quantization::ALL {
            let mut options = options();
            options.host.quantization = Some(quantization);
            let mut model = load(&Source::Folder(folder(&name)), &options, &mut |_| ()).unwrap();
            assert_eq!(model.info.quantization, Some(quantization));
            for prompt in &Golden::of(&folder(&name)).prompts {
                let logits = model.backend.prompt_logits(&prompt.tokens()).unwrap();
                let found = logits.last().unwrap();
                let expected = &prompt.last_logits;
                let mean = expected.iter().sum::<f32>() / expected.len() as f32;
                let square = |x: f32| f64::from(x) * f64::from(x);
                let spread: f64 = expected.iter().map(|x| square(x - mean)).sum();
                let pairs = found.iter().zip(expected);
                let error: f64 = pairs.map(|(a, b)| square(a - b)).sum();
                let share = (error / spread).sqrt();
                assert!(
                    share < tolerance(quantization),
                    "{name}, {quantization}, {}: off by {share} of the spread",
                    prompt.name
                );
                assert!(share > 1e-5, "{name}, {quantization}: nothing has changed");
            }
        }
    }
}

#[test]
fn quantised_weights_take_less_memory() {
    let source = Source::Folder(folder("tiny-qwen2"));
    let bytes = |quantization| {
        let mut options = options();
        options.host.quantization = quantization;
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
            let mut options = options();
            options.host.quantization = Some(quantization);
            let source = Source::Folder(folder(name));
            let make = || load(&source, &options, &mut |_| ()).unwrap().backend;
            let suite = Suite {
                vocabulary: 384,
                seed: 17,
            };
            if let Err(failure) = check(make, suite) {
                panic!("{name}, {quantization}: {failure}");
            }
        }
    }
}

#[test]
fn wide_registers_of_any_width_give_the_same_tokens() {
    let outputs = |quantization, instructions| {
        let mut options = options();
        options.host.quantization = Some(quantization);
        options.host.instructions = instructions;
        let source = Source::Folder(folder("tiny-qwen3"));
        let model = load(&source, &options, &mut |_| ()).unwrap();
        let mut driver = Driver::new(model.backend, 1).unwrap();
        let golden = Golden::of(&folder("tiny-qwen3"));
        let requests = golden.prompts.iter().enumerate();
        let requests: Vec<_> = requests.map(|(i, p)| p.request(i as u64)).collect();
        let all: Vec<_> = requests.iter().map(of).collect();
        requests
            .into_iter()
            .for_each(|request| driver.start(request));
        finish(&mut driver, &all, 16);
        let outputs = (0..all.len()).map(|i| driver.outputs(id(i)).to_vec());
        outputs.collect::<Vec<_>>()
    };
    for quantization in Quantization::ALL {
        let wide = &Instructions::available()[1..];
        let all: Vec<_> = wide.iter().map(|&i| outputs(quantization, i)).collect();
        assert!(
            all.windows(2).all(|pair| pair[0] == pair[1]),
            "{quantization}"
        );
    }
}
