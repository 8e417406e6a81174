//! How much text one token can stand for, so that a text that cannot fit is known by its length alone.

use serde_json::Value;

/// Normalization can make a text shorter by so much: four bytes of a mathematical letter become one.
const NORMALIZED: usize = 4;

/// Bytes of a text that one token stands for at most. `None` where no such bound is known: where unknown text
/// becomes one token, or text is stripped or thrown away. Only what is known to keep all text is trusted.
pub(super) fn token_bytes_max(tokenizer: &tokenizers::Tokenizer) -> Option<usize> {
    let stage = |stage: Option<Value>| stage.unwrap_or(Value::Null);
    let normalizer = stage(tokenizer.get_normalizer().and_then(json));
    let pre_tokenizer = stage(tokenizer.get_pre_tokenizer().and_then(json));
    // Bytes of which each is a letter cannot be unknown.
    let is_of_bytes = has(&pre_tokenizer, "ByteLevel") || has(&normalizer, "ByteLevel");
    let knows_all = match tokenizer.get_model() {
        tokenizers::ModelWrapper::BPE(model) => is_of_bytes || model.byte_fallback,
        _ => false,
    };
    let added = tokenizer.get_added_tokens_decoder();
    let swallows = added.values().any(|token| token.lstrip || token.rstrip);
    if !knows_all || swallows || !keeps(&normalizer) || !keeps(&pre_tokenizer) {
        return None;
    }
    let vocabulary = tokenizer.get_vocab(true);
    let longest = vocabulary.keys().map(String::len).max()?;
    let shortened = if normalizer.is_null() { 1 } else { NORMALIZED };
    Some(longest * shortened)
}

fn json<T: serde::Serialize>(stage: &T) -> Option<Value> {
    serde_json::to_value(stage).ok()
}

/// The stages inside of a stage, or itself.
fn parts(stage: &Value) -> Vec<&Value> {
    let list = ["normalizers", "pretokenizers"]
        .iter()
        .find_map(|&name| stage.get(name)?.as_array());
    match list {
        Some(list) => list.iter().flat_map(parts).collect(),
        None => vec![stage],
    }
}

fn has(stage: &Value, name: &str) -> bool {
    parts(stage).iter().any(|part| part["type"] == name)
}

/// Whether no text is lost in any part of a stage.
fn keeps(stage: &Value) -> bool {
    parts(stage)
        .into_iter()
        .all(|part| match part["type"].as_str() {
            None => part.is_null(),
            Some(
                "NFC" | "NFD" | "NFKC" | "NFKD" | "Lowercase" | "Prepend" | "ByteLevel" | "Digits"
                | "Metaspace",
            ) => true,
            Some("Split") => part["behavior"] != "Removed",
            Some("Replace") => {
                let length = |text: &Value| text.as_str().map(str::len);
                let (from, to) = (length(&part["pattern"]["String"]), length(&part["content"]));
                from.zip(to).is_some_and(|(from, to)| to >= from)
            }
            Some(_) => false,
        })
}
