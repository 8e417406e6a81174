//! Damaged and unsuitable model folders: each error names the file and the tensor or key.

use std::fs;
use std::path::{Path, PathBuf};

use serve_model::load::{LoadOptions, Source, load};

use crate::fixtures::{folder, options};

/// A copy of a fixture that a test may damage; removed at the end.
struct Copy(PathBuf);

impl Copy {
    fn of(fixture: &str, test: &str) -> Self {
        let base = Path::new(env!("CARGO_TARGET_TMPDIR"));
        let copy = base.join(format!("damaged-{test}-{}", std::process::id()));
        let _ = fs::remove_dir_all(&copy);
        fs::create_dir_all(&copy).unwrap();
        for entry in fs::read_dir(folder(fixture)).unwrap() {
            let entry = entry.unwrap();
            fs::copy(entry.path(), copy.join(entry.file_name())).unwrap();
        }
        Self(copy)
    }

    fn path(&self, file: &str) -> PathBuf {
        self.0.join(file)
    }

    fn edit(&self, file: &str, from: &str, to: &str) {
        let bytes = fs::read(self.path(file)).unwrap();
        let at = bytes.windows(from.len()).position(|w| w == from.as_bytes());
        let at = at.unwrap_or_else(|| panic!("{from} is not in {file}"));
        let edited = [&bytes[..at], to.as_bytes(), &bytes[at + from.len()..]].concat();
        fs::write(self.path(file), edited).unwrap();
    }

    fn error(&self) -> String {
        error(&Source::Folder(self.0.clone()), &options())
    }
}

impl Drop for Copy {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn error(source: &Source, options: &LoadOptions) -> String {
    load(source, options, &mut |_| ()).unwrap_err().to_string()
}

fn assert_has(message: &str, parts: &[&str]) {
    for part in parts {
        assert!(message.contains(part), "{part:?} is not in: {message}");
    }
}

#[test]
fn a_missing_folder_or_file_is_named() {
    let nowhere = Source::Folder("no/such/folder".into());
    let message = error(&nowhere, &options());
    assert_has(&message, &["no/such/folder is no folder", "config.json"]);
    for file in ["config.json", "tokenizer.json", "model.safetensors"] {
        let copy = Copy::of("tiny-qwen2", &format!("missing-{file}"));
        fs::remove_file(copy.path(file)).unwrap();
        assert_has(&copy.error(), &[file]);
    }
}

#[test]
fn a_missing_shard_is_named() {
    let copy = Copy::of("tiny-qwen2-untied-sharded", "shard");
    fs::remove_file(copy.path("model-00002-of-00003.safetensors")).unwrap();
    assert_has(
        &copy.error(),
        &["cannot read", "model-00002-of-00003.safetensors"],
    );
}

#[test]
fn an_index_that_lies_or_points_elsewhere_is_refused() {
    let copy = Copy::of("tiny-qwen2-untied-sharded", "index");
    let (index, shard) = ("model.safetensors.index.json", "model-00001-of-00003");
    copy.edit(index, shard, "model-00002-of-00003");
    assert_has(
        &copy.error(),
        &[
            "is missing from model-00002-of-00003.safetensors",
            "tensor ",
        ],
    );
    let copy = Copy::of("tiny-qwen2-untied-sharded", "escape");
    copy.edit(index, shard, "../model-00001-of-00003");
    assert_has(&copy.error(), &["is no plain file name", index]);
}

#[test]
fn a_file_that_is_cut_off_names_the_tensor() {
    let copy = Copy::of("tiny-qwen2", "truncated");
    let file = fs::File::options();
    let mut file = file.clone();
    let file = file
        .write(true)
        .open(copy.path("model.safetensors"))
        .unwrap();
    file.set_len(500_000).unwrap();
    assert_has(
        &copy.error(),
        &[
            "model.safetensors is cut off: tensor model.",
            "the file has 500000",
        ],
    );
    file.set_len(100).unwrap();
    assert_has(&copy.error(), &["model.safetensors is no safetensors file"]);
    file.set_len(3).unwrap();
    assert_has(&copy.error(), &["model.safetensors", "it has only 3 bytes"]);
}

#[test]
fn a_header_that_is_no_header_is_refused() {
    let copy = Copy::of("tiny-qwen2", "header");
    fs::write(copy.path("model.safetensors"), vec![b'x'; 4_096]).unwrap();
    assert_has(&copy.error(), &["model.safetensors is no safetensors file"]);
    let copy = Copy::of("tiny-qwen2", "offsets");
    copy.edit(
        "model.safetensors",
        "\"shape\":[384,64]",
        "\"shape\":[384,63]",
    );
    assert_has(
        &copy.error(),
        &["tensor model.embed_tokens.weight of shape [384, 63]"],
    );
}

#[test]
fn shapes_types_and_names_are_checked_against_the_configuration() {
    let copy = Copy::of("tiny-qwen2", "shape");
    copy.edit(
        "config.json",
        "\"intermediate_size\": 128",
        "\"intermediate_size\": 192",
    );
    assert_has(
        &copy.error(),
        &["gate_proj.weight has shape [128, 64]", "asks for [192, 64]"],
    );
    let copy = Copy::of("tiny-qwen2", "dtype");
    copy.edit(
        "model.safetensors",
        "\"dtype\":\"F32\"",
        "\"dtype\":\"I32\"",
    );
    assert_has(
        &copy.error(),
        &["is stored as I32; accepted are F32, F16 and BF16"],
    );
    let copy = Copy::of("tiny-qwen2", "layers");
    copy.edit(
        "config.json",
        "\"num_hidden_layers\": 3",
        "\"num_hidden_layers\": 4",
    );
    assert_has(
        &copy.error(),
        &[
            "tensor model.layers.3.",
            "is missing from model.safetensors",
        ],
    );
    let copy = Copy::of("tiny-qwen2", "extra");
    copy.edit(
        "config.json",
        "\"num_hidden_layers\": 3",
        "\"num_hidden_layers\": 2",
    );
    assert_has(
        &copy.error(),
        &[
            "tensor model.layers.2.",
            "is not part of a Qwen2ForCausalLM",
        ],
    );
    let copy = Copy::of("tiny-qwen2", "tied");
    copy.edit(
        "config.json",
        "\"tie_word_embeddings\": true",
        "\"tie_word_embeddings\": false",
    );
    assert_has(&copy.error(), &["tensor lm_head.weight is missing"]);
}

#[test]
fn an_unsupported_model_is_refused_by_name() {
    let copy = Copy::of("tiny-qwen2", "window");
    copy.edit(
        "config.json",
        "\"use_sliding_window\": false",
        "\"use_sliding_window\": true",
    );
    copy.edit(
        "config.json",
        "\"sliding_window\": null",
        "\"sliding_window\": 64",
    );
    copy.edit(
        "config.json",
        "\"max_window_layers\": 3",
        "\"max_window_layers\": 1",
    );
    assert_has(
        &copy.error(),
        &["sliding_window 64 is not supported", "full attention"],
    );
}

#[test]
fn a_tokenizer_of_another_model_is_refused() {
    let copy = Copy::of("tiny-qwen2", "vocabulary");
    let tokenizer = Path::new(env!("CARGO_MANIFEST_DIR")).join("models/austen-2m/tokenizer.json");
    fs::copy(tokenizer, copy.path("tokenizer.json")).unwrap();
    assert_has(
        &copy.error(),
        &["the tokenizer has 2048 tokens and the model's vocabulary holds 384"],
    );
}

#[test]
fn an_impossible_cache_is_refused() {
    let options = LoadOptions {
        kv_tokens: Some(1 << 50),
        ..LoadOptions::default()
    };
    let message = error(&Source::Embedded, &options);
    assert_has(
        &message,
        &["a KV pool of 1125899906842624 positions", "lower kv_tokens"],
    );
}
