//! Random weights: a backend like any other, labelled as what they are.

use serve_core::TokenId;
use serve_core::conformance::{Suite, check};
use serve_model::config::Shape;
use serve_model::load::{LoadOptions, Model, RANDOM_CONTEXT_DEFAULT, Source, load};
use serve_model::text::Detokenizer;

use crate::fixtures::options;

/// With biases, head norms or untied weights, more tokens than the embedded tokenizer knows, and a
/// long context.
const TINY: [Shape; 2] = [
    Shape {
        name: "tiny-qwen2",
        origin: "a test",
        config: r#"{
            "architectures": ["Qwen2ForCausalLM"], "hidden_size": 64, "intermediate_size": 128,
            "num_hidden_layers": 3, "num_attention_heads": 4, "num_key_value_heads": 2,
            "vocab_size": 2100, "max_position_embeddings": 8192, "tie_word_embeddings": false
        }"#,
    },
    Shape {
        name: "tiny-qwen3",
        origin: "a test",
        config: r#"{
            "architectures": ["Qwen3ForCausalLM"], "hidden_size": 64, "intermediate_size": 128,
            "num_hidden_layers": 3, "num_attention_heads": 4, "num_key_value_heads": 2,
            "head_dim": 32, "vocab_size": 2100, "max_position_embeddings": 8192,
            "tie_word_embeddings": true
        }"#,
    },
];

fn model(shape: Shape, options: &LoadOptions) -> Model {
    load(&Source::Random(shape), options, &mut |_| ()).unwrap()
}

#[test]
fn random_weights_conform() {
    for shape in TINY {
        let suite = Suite {
            vocabulary: 2_100,
            seed: 13,
        };
        if let Err(failure) = check(|| model(shape, &options()).backend, suite) {
            panic!("{}: {failure}", shape.name);
        }
    }
}

#[test]
fn random_weights_say_what_they_are() {
    let short = LoadOptions {
        sequences_max: 1,
        ..LoadOptions::default()
    };
    let Model {
        info, generation, ..
    } = model(TINY[0], &short);
    assert_eq!(info.name, "random:tiny-qwen2");
    assert_eq!(info.stored_dtype, "bf16");
    assert_eq!(info.context_max, RANDOM_CONTEXT_DEFAULT);
    assert!(generation.stop.is_empty());
    let asked = LoadOptions {
        context_max: Some(8_000),
        ..short
    };
    assert_eq!(model(TINY[0], &asked).info.context_max, 8_000);
}

#[test]
fn tokens_beyond_the_tokenizer_have_placeholders() {
    let tokenizer = model(TINY[1], &options()).tokenizer;
    let mut tokens = tokenizer.encode("A fine day").unwrap();
    assert_eq!(tokenizer.decode(&tokens, true).unwrap(), "A fine day");
    tokens.extend([2_099, 2_100, 2_050].map(TokenId::new));
    let text = "A fine day<2099><2050>";
    assert_eq!(tokenizer.decode(&tokens, true).unwrap(), text);
    let mut detokenizer = Detokenizer::new(&tokenizer, true);
    let mut pushed: String = tokens.iter().filter_map(|&t| detokenizer.push(t)).collect();
    pushed.extend(detokenizer.finish());
    assert_eq!(pushed, text);
}
