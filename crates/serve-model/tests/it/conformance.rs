//! The decoder keeps the contract of a backend, in each family and over several block sizes.

use serve_core::conformance::{Suite, check};
use serve_model::load::{LoadOptions, Source, load};

use crate::fixtures::{folder, options};

fn conforms(name: &str, change: impl Fn(&mut LoadOptions)) {
    let mut options = options();
    change(&mut options);
    let source = Source::Folder(folder(name));
    let make = || load(&source, &options, &mut |_| ()).unwrap().backend;
    let suite = Suite {
        vocabulary: 384,
        seed: 11,
    };
    if let Err(failure) = check(make, suite) {
        panic!("{name}: {failure}");
    }
}

#[test]
fn each_family_conforms() {
    conforms("tiny-qwen2", |_| ());
    conforms("tiny-qwen3", |_| ());
    conforms("tiny-llama", |_| ());
}

#[test]
fn other_block_sizes_and_limits_conform() {
    conforms("tiny-qwen2", |options| options.block_size = 1);
    conforms("tiny-qwen2", |options| options.block_size = 32);
    conforms("tiny-qwen3", |options| {
        options.sequences_max = 2;
        options.step_tokens_max = 7;
    });
}
