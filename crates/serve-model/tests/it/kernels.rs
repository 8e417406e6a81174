//! Tokens do not depend on the processor's instructions or on how many requests share a step.

use serve_core::conformance::Driver;
use serve_model::kernels::Instructions;
use serve_model::{DecoderBackend, LoadOptions, Source, load};

use crate::fixtures::{Golden, folder, names, options, tokens};
use crate::golden::{finish, id, of};

#[test]
fn all_instructions_give_the_tokens_of_the_reference() {
    for name in names() {
        let golden = Golden::of(&folder(&name));
        for instructions in Instructions::available() {
            let mut options = options();
            options.host.instructions = instructions;
            let source = Source::Folder(folder(&name));
            let model = load(&source, &options, &mut |_| ()).unwrap();
            let mut driver = Driver::new(model.backend, 1).unwrap();
            let mut all = Vec::new();
            for (index, prompt) in golden.prompts.iter().enumerate() {
                let request = prompt.request(index as u64);
                all.push(of(&request));
                driver.start(request);
            }
            finish(&mut driver, &all, u32::MAX);
            for (index, prompt) in golden.prompts.iter().enumerate() {
                let found = driver.outputs(id(index));
                let expected = tokens(&prompt.greedy);
                assert_eq!(found, expected, "{name}, {instructions}, {}", prompt.name);
            }
        }
    }
}

#[test]
fn from_one_to_64_requests_together_get_the_same_tokens() {
    const OUTPUTS: usize = 3;
    let options = LoadOptions {
        sequences_max: 64,
        kv_tokens: Some(64 * 64),
        ..options()
    };
    for name in ["tiny-qwen2-bf16", "tiny-llama"] {
        let golden = Golden::of(&folder(name));
        let prompt = golden.prompt("medium");
        let model = load(&Source::Folder(folder(name)), &options, &mut |_| ()).unwrap();
        let mut driver: Driver<DecoderBackend> = Driver::new(model.backend, 1).unwrap();
        let mut next = 0;
        for count in 1..=64 {
            let requests: Vec<_> = (0..count).map(|i| prompt.request(next + i)).collect();
            next += count;
            let all: Vec<_> = requests
                .iter()
                .map(|request| (request.id(), OUTPUTS as u32))
                .collect();
            for request in requests {
                driver.start(request);
            }
            finish(&mut driver, &all, 7);
            for (request, _) in all {
                let found = driver.outputs(request);
                let expected = tokens(&prompt.greedy[..OUTPUTS]);
                assert_eq!(found, expected, "{name}, {count} requests");
                driver.release(request);
            }
        }
    }
}
