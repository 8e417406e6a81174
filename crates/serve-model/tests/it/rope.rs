//! Rotary embeddings of every kind that a configuration can ask for, wherever it does, agree with an
//! independent implementation: `tests/data/rope/make_rope_goldens.py`.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use serde::Deserialize;
use serde_json::{Map, Value};
use serve_model::load::{Source, load};

use crate::fixtures::{folder, options, tokens};

#[derive(Deserialize)]
struct Goldens {
    ids: Vec<u32>,
    cases: Vec<Case>,
}

#[derive(Deserialize)]
struct Case {
    config: Map<String, Value>,
    /// By how many of the ids are the prompt.
    last_logits: BTreeMap<usize, Vec<f32>>,
}

#[test]
fn every_rotary_embedding_agrees_with_the_reference() {
    let data = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/rope/goldens.json");
    let goldens: Goldens = serde_json::from_str(&fs::read_to_string(data).unwrap()).unwrap();
    assert_eq!(goldens.cases.len(), 11);
    let original = folder("tiny-llama");
    let copy = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("rope-{}", std::process::id()));
    fs::create_dir_all(&copy).unwrap();
    for file in ["model.safetensors", "tokenizer.json"] {
        fs::copy(original.join(file), copy.join(file)).unwrap();
    }
    let config = fs::read_to_string(original.join("config.json")).unwrap();
    let config: Map<String, Value> = serde_json::from_str(&config).unwrap();
    for case in &goldens.cases {
        let mut config = config.clone();
        config.extend(case.config.clone());
        let text = Value::from(config).to_string();
        fs::write(copy.join("config.json"), text).unwrap();
        let options = serve_model::load::LoadOptions {
            context_max: Some(250),
            ..options()
        };
        let mut model = load(&Source::Folder(copy.clone()), &options, &mut |_| ()).unwrap();
        for (length, expected) in &case.last_logits {
            let prompt = tokens(&goldens.ids[..*length]);
            let logits = model.backend.prompt_logits(&prompt).unwrap();
            let found = logits.last().unwrap();
            assert_eq!(found.len(), expected.len());
            for (found, expected) in found.iter().zip(expected) {
                let difference = (found - expected).abs();
                assert!(
                    difference < 1e-3,
                    "{:?}, {length} tokens: {found}, reference {expected}",
                    case.config
                );
            }
        }
    }
    fs::remove_dir_all(&copy).unwrap();
}
