//! Logits agree with transformers on every fixture, and so does what the embedded model says.
//!
//! That greedy tokens do, on every path and however the work is cut, is in `paths`.

use std::path::Path;

use serve_core::conformance::{Driver, Run};
use serve_core::{Request, RequestId, TokenId};
use serve_model::decode::DecoderBackend;
use serve_model::load::{LoadOptions, Source, load};

use crate::fixtures::{Golden, Prompt, fixture, folder, names, tokens};

pub(crate) fn id(raw: usize) -> RequestId {
    RequestId::new(raw as u64)
}

/// Runs the given requests together, prompts in segments of `chunk_max`, to the end.
pub(crate) fn finish(
    driver: &mut Driver<DecoderBackend>,
    requests: &[(RequestId, u32)],
    chunk_max: u32,
) {
    loop {
        let left =
            |&&(id, outputs): &&(RequestId, u32)| driver.outputs(id).len() < outputs as usize;
        let run = |&(request, _): &(RequestId, u32)| Run {
            request,
            tokens: driver.pending(request).min(chunk_max),
        };
        let runs: Vec<Run> = requests.iter().filter(left).map(run).collect();
        if runs.is_empty() {
            return;
        }
        driver.step(&runs).unwrap();
    }
}

pub(crate) fn of(request: &Request) -> (RequestId, u32) {
    (request.id(), request.output_tokens_max())
}

fn assert_logits(name: &str, prompt: &Prompt, found: &[f32], expected: &[f32]) {
    let tolerance = if name.contains("bf16") || name == "austen-2m" {
        2e-2
    } else {
        1e-3
    };
    assert_eq!(found.len(), expected.len());
    for (token, (found, expected)) in found.iter().zip(expected).enumerate() {
        let difference = (found - expected).abs();
        assert!(
            difference < tolerance,
            "{name}, {}, logit {token}: {found}, reference {expected}",
            prompt.name
        );
    }
}

#[test]
fn logits_agree_with_the_reference() {
    for name in names() {
        let mut model = fixture(&name);
        let mut rows_checked = 0;
        for prompt in &Golden::of(&folder(&name)).prompts {
            let logits = model.backend.prompt_logits(&prompt.tokens()).unwrap();
            assert_logits(&name, prompt, logits.last().unwrap(), &prompt.last_logits);
            for (found, expected) in logits.iter().zip(prompt.all_logits.iter().flatten()) {
                assert_logits(&name, prompt, found, expected);
                rows_checked += 1;
            }
        }
        assert_eq!(rows_checked, 5, "{name}: no logits of every position");
    }
}

#[test]
fn the_embedded_model_continues_as_the_reference_does() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("models/austen-2m");
    let golden = Golden::of(&folder);
    let mut model = load(&Source::Embedded, &LoadOptions::default(), &mut |_| ()).unwrap();
    assert_eq!(model.info.name, "austen-2m");
    assert_eq!(model.info.parameters, 1_969_088);
    assert_eq!(golden.prompts.len(), 8);
    for prompt in &golden.prompts {
        let text = model.tokenizer.encode(&prompt.name).unwrap();
        assert_eq!(text, prompt.tokens());
        let logits = model.backend.prompt_logits(&text).unwrap();
        assert_logits(
            "austen-2m",
            prompt,
            logits.last().unwrap(),
            &prompt.last_logits,
        );
    }
    let mut driver = Driver::new(model.backend, 3).unwrap();
    let requests = golden.prompts.iter().enumerate();
    let requests: Vec<Request> = requests.map(|(i, p)| p.request(i as u64)).collect();
    let all: Vec<_> = requests.iter().map(of).collect();
    for request in requests {
        driver.start(request);
    }
    finish(&mut driver, &all, u32::MAX);
    for (index, prompt) in golden.prompts.iter().enumerate() {
        let found: &[TokenId] = driver.outputs(id(index));
        assert_eq!(found, tokens(&prompt.greedy), "{}", prompt.name);
        let text = model.tokenizer.decode(found, true).unwrap();
        assert_eq!(Some(text), prompt.continuation);
    }
}
