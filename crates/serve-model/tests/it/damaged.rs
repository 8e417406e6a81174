//! Damaged and unsuitable model folders: each error names the file and the tensor or key.

use std::fs;
use std::path::{Path, PathBuf};

use serve_model::load::{LoadOptions, Source, load};

use crate::fixtures::{folder, options};

/// A copy of a fixture that a test may damage; removed at the end.
pub(crate) struct Copy(pub(crate) PathBuf);

impl Copy {
    pub(crate) fn of(fixture: &str, test: &str) -> Self {
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

    pub(crate) fn path(&self, file: &str) -> PathBuf {
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

/// A header of its own in place of the file's, and so many bytes after it.
fn with_header(copy: &Copy, length: u64, header: &str, bytes: u64) {
    let path = copy.path("model.safetensors");
    fs::write(&path, [&length.to_le_bytes(), header.as_bytes()].concat()).unwrap();
    let file = fs::File::options().write(true).open(&path).unwrap();
    // Sparse: nothing is written.
    file.set_len(8 + length + bytes).unwrap();
}

#[test]
fn a_header_is_judged_by_its_length_before_it_is_read() {
    let copy = Copy::of("tiny-qwen2", "long-header");
    with_header(&copy, 20_000_000_000, "{", 0);
    assert_has(
        &copy.error(),
        &["its header should have 20000000000 bytes; at most 100000000 are read"],
    );
}

#[test]
fn tensors_that_overlap_or_come_twice_are_refused() {
    let tensor = |name: &str, start: u64| {
        format!(
            r#""{name}":{{"dtype":"F32","shape":[2],"data_offsets":[{start},{}]}}"#,
            start + 8
        )
    };
    let refusal = |test: &str, tensors: &[String]| {
        let copy = Copy::of("tiny-qwen2", test);
        let header = format!("{{{}}}", tensors.join(","));
        with_header(&copy, header.len() as u64, &header, 64);
        copy.error()
    };
    let apart = refusal("apart", &[tensor("a", 0), tensor("b", 16), tensor("c", 8)]);
    assert_has(&apart, &["tensor model.embed_tokens.weight is missing"]);
    for start in [4, 8, 12, 20, 24, 28] {
        let tensors = [tensor("a", 8), tensor("b", 24), tensor("c", start)];
        assert_has(&refusal("overlap", &tensors), &["tensors ", " overlap"]);
    }
    let twice = refusal("twice", &[tensor("a", 0), tensor("a", 8)]);
    assert_has(&twice, &["tensor a is there twice"]);
}

#[test]
fn a_size_that_no_file_has_ends_at_the_first_tensor() {
    // The walk over two million layers would not end in any time.
    for (key, from, names) in [
        ("num_hidden_layers", 3, "tensor model.layers.3."),
        (
            "hidden_size",
            64,
            "tensor model.embed_tokens.weight has shape",
        ),
        (
            "vocab_size",
            384,
            "tensor model.embed_tokens.weight has shape",
        ),
        ("intermediate_size", 128, "gate_proj.weight has shape"),
    ] {
        let copy = Copy::of("tiny-qwen2", key);
        let to = format!("\"{key}\": 2097152");
        copy.edit("config.json", &format!("\"{key}\": {from}"), &to);
        assert_has(&copy.error(), &[names]);
        copy.edit("config.json", &to, &format!("\"{key}\": 2097153"));
        assert_has(&copy.error(), &[key, "from 1 to 2097152"]);
    }
}

#[test]
fn numbers_that_are_none_are_refused_with_their_tensor() {
    for (fixture, number) in [
        ("tiny-qwen2", &f32::NAN.to_le_bytes()[..]),
        ("tiny-qwen2", &f32::NEG_INFINITY.to_le_bytes()),
        ("tiny-qwen2-bf16", &[0xc0, 0x7f]),
        ("tiny-qwen2-bf16", &[0x80, 0xff]),
    ] {
        let copy = Copy::of(fixture, "not-finite");
        let path = copy.path("model.safetensors");
        let mut bytes = fs::read(&path).unwrap();
        let last = bytes.len() - number.len();
        bytes[last..].copy_from_slice(number);
        fs::write(&path, &bytes).unwrap();
        assert_has(
            &copy.error(),
            &["model.safetensors: tensor ", "infinite or not a number"],
        );
    }
}

#[test]
#[cfg(target_os = "linux")]
fn what_is_no_plain_file_is_refused_and_not_waited_for() {
    for file in [
        "config.json",
        "tokenizer.json",
        "tokenizer_config.json",
        "generation_config.json",
        "special_tokens_map.json",
        "chat_template.jinja",
        "model.safetensors",
        "model.safetensors.index.json",
    ] {
        let copy = Copy::of("tiny-qwen2", &format!("special-{file}"));
        let _ = fs::remove_file(copy.path(file));
        let made = std::process::Command::new("mkfifo")
            .arg(copy.path(file))
            .status();
        assert!(made.unwrap().success());
        assert_has(
            &copy.error(),
            &[file, "it is a pipe (FIFO); a file is needed"],
        );
        fs::remove_file(copy.path(file)).unwrap();
        std::os::unix::fs::symlink("/dev/zero", copy.path(file)).unwrap();
        assert_has(&copy.error(), &[file, "it is a character device"]);
        fs::remove_file(copy.path(file)).unwrap();
        fs::create_dir(copy.path(file)).unwrap();
        assert_has(&copy.error(), &[file, "it is a folder"]);
    }
}

#[test]
fn a_text_file_of_absurd_length_is_refused_before_it_is_read() {
    for (file, max) in [
        ("config.json", "16777216"),
        ("tokenizer.json", "134217728"),
        ("tokenizer_config.json", "16777216"),
        ("generation_config.json", "16777216"),
        ("chat_template.jinja", "16777216"),
        ("model.safetensors.index.json", "134217728"),
    ] {
        let copy = Copy::of("tiny-qwen2", &format!("long-{file}"));
        let made = fs::File::options();
        let made = made
            .clone()
            .write(true)
            .create(true)
            .truncate(false)
            .open(copy.path(file));
        made.unwrap().set_len(1 << 40).unwrap();
        let max = format!("it has 1099511627776 bytes; at most {max} are read");
        assert_has(&copy.error(), &[file, &max]);
    }
}

#[test]
fn a_byte_order_mark_is_no_part_of_a_file() {
    let copy = Copy::of("tiny-qwen2-untied-sharded", "mark");
    for file in [
        "config.json",
        "tokenizer.json",
        "tokenizer_config.json",
        "generation_config.json",
        "model.safetensors.index.json",
    ] {
        let text = fs::read_to_string(copy.path(file)).unwrap();
        fs::write(copy.path(file), format!("\u{feff}{text}")).unwrap();
    }
    let source = Source::Folder(copy.0.clone());
    load(&source, &options(), &mut |_| ()).unwrap();
}

#[test]
fn an_index_may_list_what_no_model_needs() {
    let copy = Copy::of("tiny-qwen2-untied-sharded", "harmless");
    let listed =
        r#""model.layers.0.self_attn.rotary_emb.inv_freq": "model-00001-of-00003.safetensors","#;
    copy.edit(
        "model.safetensors.index.json",
        "\"weight_map\": {",
        &format!("\"weight_map\": {{{listed}"),
    );
    let source = Source::Folder(copy.0.clone());
    load(&source, &options(), &mut |_| ()).unwrap();
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
fn a_clone_without_its_large_files_is_named() {
    let copy = Copy::of("tiny-qwen2", "pointer");
    let pointer = "version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 300000\n";
    fs::write(copy.path("model.safetensors"), pointer).unwrap();
    assert_has(
        &copy.error(),
        &["model.safetensors", "Git LFS", "git lfs pull"],
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
