//! How much text one token can stand for, so that a text that cannot fit is known by its length alone.

use serde_json::Value;
use tokenizers::ModelWrapper;
use tokenizers::pre_tokenizers::byte_level::ByteLevel;

/// Normalization can make a text shorter by so much: four bytes of a mathematical letter become one.
const NORMALIZED: usize = 4;

/// Bytes of a text that one token stands for at most. `None` where no such bound is known: where unknown text
/// becomes one token, or text is stripped or thrown away. Only what is known to keep all text is trusted.
pub(super) fn token_bytes_max(tokenizer: &tokenizers::Tokenizer) -> Option<usize> {
    let stage = |stage: Option<Value>| stage.unwrap_or(Value::Null);
    let normalizer = stage(tokenizer.get_normalizer().and_then(json));
    let pre_tokenizer = stage(tokenizer.get_pre_tokenizer().and_then(json));
    let vocabulary = tokenizer.get_vocab(true);
    // Where each byte has a token, nothing is unknown.
    let mut letters = ByteLevel::alphabet().into_iter();
    let has_letters = letters.all(|letter| vocabulary.contains_key(&letter.to_string()));
    let is_of_bytes = has(&pre_tokenizer, "ByteLevel") || has(&normalizer, "ByteLevel");
    let has_bytes =
        || (0..=u8::MAX).all(|byte| vocabulary.contains_key(&format!("<0x{byte:02X}>")));
    let knows_all = match tokenizer.get_model() {
        ModelWrapper::BPE(model) => {
            is_of_bytes && has_letters || model.byte_fallback && has_bytes()
        }
        _ => false,
    };
    let added = tokenizer.get_added_tokens_decoder();
    let swallows = added.values().any(|token| token.lstrip || token.rstrip);
    if !knows_all || swallows || !keeps(&normalizer) || !keeps(&pre_tokenizer) {
        return None;
    }
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

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// A tokenizer of single bytes with a few changes.
    fn bound(change: impl Fn(&mut Value)) -> Option<usize> {
        let letters = ByteLevel::alphabet().into_iter().enumerate();
        let mut vocabulary: serde_json::Map<String, Value> = letters
            .map(|(id, letter)| (letter.to_string(), json!(id)))
            .collect();
        vocabulary.insert("abcde".to_owned(), json!(256));
        let mut all = json!({
            "version": "1.0", "truncation": null, "padding": null, "added_tokens": [],
            "normalizer": null, "post_processor": null, "decoder": {"type": "ByteLevel",
                "add_prefix_space": false, "trim_offsets": false, "use_regex": false},
            "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": false,
                "trim_offsets": false, "use_regex": false},
            "model": {"type": "BPE", "vocab": vocabulary, "merges": []},
        });
        change(&mut all);
        token_bytes_max(&all.to_string().parse().unwrap())
    }

    #[test]
    fn only_what_keeps_all_text_has_a_bound() {
        assert_eq!(bound(|_| ()), Some(5));
        assert_eq!(
            bound(|all| all["normalizer"] = json!({"type": "NFC"})),
            Some(20)
        );
        let strip = json!({"type": "Strip", "strip_left": true, "strip_right": true});
        assert_eq!(bound(|all| all["normalizer"] = strip.clone()), None);
        let shortens = json!({"type": "Replace", "pattern": {"String": "aaaa"}, "content": "a"});
        assert_eq!(bound(|all| all["normalizer"] = shortens.clone()), None);
        assert_eq!(
            bound(|all| all["pre_tokenizer"] = json!({"type": "WhitespaceSplit"})),
            None
        );
        let swallows = json!([{"id": 300, "content": "<m>", "lstrip": true, "rstrip": false,
            "single_word": false, "normalized": false, "special": true}]);
        assert_eq!(bound(|all| all["added_tokens"] = swallows.clone()), None);
        // A byte without a token is lost.
        let lacks = |all: &mut Value| {
            all["model"]["vocab"].as_object_mut().unwrap().remove("a");
        };
        assert_eq!(bound(lacks), None);
    }
}
