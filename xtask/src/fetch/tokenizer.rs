//! `tokenizer.json` and `tokenizer_config.json` from a GGUF's vocabulary.
//!
//! A GGUF names its pre-tokenizer (`tokenizer.ggml.pre`) instead of describing it; the two that the
//! fetched models use are spelled out here, the same as in the models' own files.

use serde_json::{Map, Value, json};

use super::config::token_id;
use super::error::ConvertError;
use super::gguf::{self, Gguf};

/// How Qwen2 and Qwen3 split text before the byte-pair merges.
const QWEN_SPLIT: &str = concat!(
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*",
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
);

/// GGUF files mark these as control tokens; Qwen's own tokenizer has them as not special.
const QWEN_NOT_SPECIAL: [&str; 6] = [
    "<|fim_prefix|>",
    "<|fim_middle|>",
    "<|fim_suffix|>",
    "<|fim_pad|>",
    "<|repo_name|>",
    "<|file_sep|>",
];

/// A pre-tokenizer that is known here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Family {
    /// Qwen2, Qwen2.5 and Qwen3.
    Qwen,
    /// SmolLM and SmolLM2.
    Smol,
}

impl Family {
    /// The family that the file names.
    pub(crate) fn of(gguf: &Gguf) -> Result<Self, ConvertError> {
        let (model, pre) = (
            gguf.text("tokenizer.ggml.model")?,
            gguf.text("tokenizer.ggml.pre")?,
        );
        match (model, pre) {
            ("gpt2", "qwen2") => Ok(Self::Qwen),
            ("gpt2", "smollm") => Ok(Self::Smol),
            _ => Err(ConvertError::Tokenizer {
                model: model.to_owned(),
                pre: pre.to_owned(),
            }),
        }
    }

    fn normalizer(self) -> Value {
        match self {
            Self::Qwen => json!({"type": "NFC"}),
            Self::Smol => Value::Null,
        }
    }

    fn pre_tokenizers(self) -> Value {
        match self {
            Self::Qwen => json!([
                {
                    "type": "Split", "pattern": {"Regex": QWEN_SPLIT},
                    "behavior": "Isolated", "invert": false,
                },
                byte_level(false, false),
            ]),
            Self::Smol => json!([
                {"type": "Digits", "individual_digits": true},
                byte_level(true, true),
            ]),
        }
    }

    fn post_processor(self) -> Value {
        match self {
            Self::Qwen => byte_level(false, false),
            Self::Smol => Value::Null,
        }
    }

    fn class(self) -> &'static str {
        match self {
            Self::Qwen => "Qwen2Tokenizer",
            Self::Smol => "GPT2Tokenizer",
        }
    }
}

/// An entry of the added-tokens list, in the order of its id.
pub(crate) struct Added<'a> {
    id: usize,
    content: &'a str,
    special: bool,
}

impl Added<'_> {
    fn json(&self) -> Value {
        json!({
            "content": self.content, "single_word": false, "lstrip": false, "rstrip": false,
            "normalized": false, "special": self.special,
        })
    }
}

/// `tokenizer.json`.
pub(crate) fn tokenizer(gguf: &Gguf, family: Family) -> Result<Value, ConvertError> {
    let (vocabulary, added) = vocabulary(gguf, family)?;
    let added_json = added.iter().map(|token| {
        let mut entry = Map::from_iter([("id".to_owned(), json!(token.id))]);
        if let Value::Object(rest) = token.json() {
            entry.extend(rest);
        }
        Value::Object(entry)
    });
    let merges = gguf.texts("tokenizer.ggml.merges")?;
    let merges = merges.iter().map(|merge| match merge.split_once(' ') {
        Some((left, right)) => json!([left, right]),
        None => json!([merge]),
    });
    Ok(json!({
        "version": "1.0",
        "truncation": null,
        "padding": null,
        "added_tokens": added_json.collect::<Vec<_>>(),
        "normalizer": family.normalizer(),
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": family.pre_tokenizers()},
        "post_processor": family.post_processor(),
        "decoder": byte_level(false, false),
        "model": {
            "type": "BPE", "dropout": null, "unk_token": null, "continuing_subword_prefix": null,
            "end_of_word_suffix": null, "fuse_unk": false, "byte_fallback": false,
            "ignore_merges": false, "vocab": vocabulary, "merges": merges.collect::<Vec<_>>(),
        },
    }))
}

/// `tokenizer_config.json`.
pub(crate) fn tokenizer_config(
    gguf: &Gguf,
    arch: &str,
    family: Family,
) -> Result<Value, ConvertError> {
    let (_, added) = vocabulary(gguf, family)?;
    let tokens = gguf.texts("tokenizer.ggml.tokens")?;
    let token = |which| {
        let id = usize::try_from(token_id(gguf, which)?).ok()?;
        tokens.get(id).copied()
    };
    let decoder = added
        .iter()
        .map(|token| (token.id.to_string(), token.json()));
    let special = added.iter().filter(|token| token.special);
    let bos = if family == Family::Qwen {
        None
    } else {
        token("bos")
    };
    Ok(json!({
        "add_bos_token": gguf.get("tokenizer.ggml.add_bos_token") == Some(&gguf::Value::Bool(true)),
        "add_prefix_space": false,
        "added_tokens_decoder": decoder.collect::<Map<_, _>>(),
        "additional_special_tokens": special.map(|token| token.content).collect::<Vec<_>>(),
        "bos_token": bos,
        "eos_token": token("eos"),
        "pad_token": token("padding"),
        "unk_token": token("unknown"),
        "chat_template": gguf.text("tokenizer.chat_template").ok(),
        "clean_up_tokenization_spaces": false,
        "model_max_length": gguf.int(&format!("{arch}.context_length"))?,
        "tokenizer_class": family.class(),
    }))
}

/// Sorts the tokens by GGUF's kinds: 1 normal, 3 control, 4 user-defined; the rest is padding up to
/// the embedding's height.
fn vocabulary(
    gguf: &Gguf,
    family: Family,
) -> Result<(Map<String, Value>, Vec<Added<'_>>), ConvertError> {
    let tokens = gguf.texts("tokenizer.ggml.tokens")?;
    let kinds = gguf.ints("tokenizer.ggml.token_type")?;
    let (mut vocabulary, mut added) = (Map::new(), Vec::new());
    for (id, (content, kind)) in tokens.into_iter().zip(kinds).enumerate() {
        let is_added = matches!(kind, 3 | 4);
        if is_added {
            let demoted = family == Family::Qwen && QWEN_NOT_SPECIAL.contains(&content);
            let special = kind == 3 && !demoted;
            added.push(Added {
                id,
                content,
                special,
            });
        }
        // Qwen lists its added tokens outside the vocabulary, SmolLM in it as well.
        if kind == 1 || (is_added && family != Family::Qwen) {
            vocabulary.insert(content.to_owned(), json!(id));
        }
    }
    Ok((vocabulary, added))
}

fn byte_level(trim_offsets: bool, use_regex: bool) -> Value {
    json!({
        "type": "ByteLevel", "add_prefix_space": false,
        "trim_offsets": trim_offsets, "use_regex": use_regex,
    })
}

#[cfg(test)]
mod tests {
    use super::super::fixture::{GgufWriter, TempDir};
    use super::*;

    fn open(name: &str, pre: &str) -> Gguf {
        let dir = TempDir::new(name);
        let path = dir.path().join("a.gguf");
        let mut writer = GgufWriter::default();
        writer
            .text("tokenizer.ggml.model", "gpt2")
            .text("tokenizer.ggml.pre", pre);
        writer.texts(
            "tokenizer.ggml.tokens",
            &["a", "b", "ab", "<|end|>", "<|fim_pad|>", "<tool>", "[PAD]"],
        );
        writer.ints("tokenizer.ggml.token_type", &[1, 1, 1, 3, 3, 4, 5]);
        writer.texts("tokenizer.ggml.merges", &["a b"]);
        writer
            .int("tokenizer.ggml.eos_token_id", 3)
            .int("llama.context_length", 64);
        std::fs::write(&path, writer.bytes()).unwrap();
        Gguf::open(&path).unwrap()
    }

    #[test]
    fn qwen_keeps_added_tokens_out_of_the_vocabulary() {
        let gguf = open("tokenizer-qwen", "qwen2");
        let json = tokenizer(&gguf, Family::of(&gguf).unwrap()).unwrap();
        assert_eq!(json["model"]["vocab"], json!({"a": 0, "b": 1, "ab": 2}));
        assert_eq!(json["model"]["merges"], json!([["a", "b"]]));
        let added = json["added_tokens"].as_array().unwrap();
        let special = added
            .iter()
            .map(|token| (token["id"].clone(), token["special"].clone()));
        let expected = [(3, true), (4, false), (5, false)];
        let expected = expected.map(|(id, special)| (json!(id), json!(special)));
        assert_eq!(special.collect::<Vec<_>>(), expected);
    }

    #[test]
    fn smollm_has_them_in_both_places() {
        let gguf = open("tokenizer-smol", "smollm");
        let family = Family::of(&gguf).unwrap();
        let json = tokenizer(&gguf, family).unwrap();
        assert_eq!(json["model"]["vocab"].as_object().unwrap().len(), 6);
        assert_eq!(json["added_tokens"][1]["special"], true);
        let config = tokenizer_config(&gguf, "llama", family).unwrap();
        assert_eq!(config["eos_token"], "<|end|>");
        assert_eq!(config["bos_token"], Value::Null);
        assert_eq!(config["added_tokens_decoder"]["3"]["content"], "<|end|>");
    }

    #[test]
    fn an_unknown_pre_tokenizer_is_refused_by_name() {
        let gguf = open("tokenizer-other", "deepseek-llm");
        let message = Family::of(&gguf).unwrap_err().to_string();
        assert!(message.contains("deepseek-llm"), "{message}");
        assert!(message.contains("qwen2, smollm"), "{message}");
    }
}
