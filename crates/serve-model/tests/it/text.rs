//! The tokenizer on real vocabularies, one token at a time.

use std::path::{Path, PathBuf};

use proptest::prelude::*;
use serve_core::TokenId;
use serve_model::text::{Detokenizer, Tokenizer, TokenizerError};

/// A file of this crate's text test data.
pub(crate) fn data(name: &str) -> PathBuf {
    crate_dir().join("tests/data/text").join(name)
}

fn crate_dir() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn tokenizer(name: &str) -> Tokenizer {
    Tokenizer::from_file(&data(name).join("tokenizer.json")).unwrap()
}

fn streamed(tokenizer: &Tokenizer, ids: &[TokenId], skip_special: bool) -> Vec<String> {
    let mut detokenizer = Detokenizer::new(tokenizer, skip_special);
    let mut pieces: Vec<String> = ids.iter().filter_map(|&id| detokenizer.push(id)).collect();
    pieces.extend(detokenizer.finish());
    pieces
}

/// The pieces of tokens given as the vocabulary spells them.
fn pieces(tokenizer: &Tokenizer, tokens: &[&str]) -> Vec<String> {
    let id = |token: &&str| tokenizer.token_id(token).unwrap();
    let ids: Vec<TokenId> = tokens.iter().map(id).collect();
    streamed(tokenizer, &ids, true)
}

/// What a token's bytes are does not depend on its neighbours, so those of a text's tokens, put
/// together, are the text's, also where a character is cut.
#[test]
fn the_bytes_of_tokens_together_are_those_of_the_text() {
    let text = "Grüße,  世界 🎉🏽 \u{301}x\n\tdef f(a): <|im_end|>";
    for name in ["qwen2.5", "qwen3", "smollm2"] {
        let tokenizer = tokenizer(name);
        let tokens = tokenizer.encode(text).unwrap();
        let pieces: Vec<Vec<u8>> = tokens.iter().map(|&t| tokenizer.bytes(t)).collect();
        assert_eq!(pieces.concat(), text.as_bytes(), "{name}");
        let cut = |piece: &Vec<u8>| std::str::from_utf8(piece).is_err();
        assert!(pieces.iter().any(cut), "{name}: no character is cut");
    }
    let tokenizer = tokenizer("byte-fallback");
    let byte = tokenizer.token_id("<0xE2>").unwrap();
    assert_eq!(tokenizer.bytes(byte), [0xe2]);
}

/// Merges that a file drops at random, as for training, are made all the same.
#[test]
fn a_text_is_the_same_tokens_each_time() {
    let file = crate_dir().join("tests/fixtures/tiny-qwen2/tokenizer.json");
    let file = std::fs::read_to_string(file).unwrap();
    let text =
        "It is a truth universally acknowledged, that a single man in possession of a good fortune";
    let whole = Tokenizer::from_bytes(file.as_bytes()).unwrap();
    let whole = whole.encode(text).unwrap();
    for dropout in ["0.5", "1.0"] {
        let dropping = file.replacen("\"dropout\": null", &format!("\"dropout\": {dropout}"), 1);
        assert_ne!(dropping, file);
        let dropping = Tokenizer::from_bytes(dropping.as_bytes()).unwrap();
        for _ in 0..5 {
            assert_eq!(dropping.encode(text).unwrap(), whole);
        }
    }
}

/// What follows a prompt: each part of the text of both that the prompt alone does not have.
fn continued(tokenizer: &Tokenizer, prompt: &[TokenId], answer: &[TokenId]) -> String {
    let mut detokenizer = Detokenizer::after(tokenizer, true, prompt);
    let mut text: String = answer
        .iter()
        .filter_map(|&id| detokenizer.push(id))
        .collect();
    text.extend(detokenizer.finish());
    text
}

/// The words of [`of_kind`], one of each kind that a decoder treats differently.
const WORDS: [&str; 14] = [
    "<s>", "▁It", "▁was", "▁", "▁▁", "a", "s", "<0xC3>", "<0xA9>", "<0xFF>", "Ġthe", "Ã", "©",
    "</s>",
];

/// A tokenizer of a few words with some decoder.
fn of_kind(decoder: &str) -> Tokenizer {
    let entries: Vec<String> = WORDS
        .iter()
        .enumerate()
        .map(|(id, word)| format!("\"{word}\": {id}"))
        .collect();
    let special = |id: usize| {
        format!(
            r#"{{"id": {id}, "content": "{}", "single_word": false, "lstrip": false, "rstrip": false,
                "normalized": false, "special": true}}"#,
            WORDS[id]
        )
    };
    let json = format!(
        r#"{{"version": "1.0", "truncation": null, "padding": null, "added_tokens": [{}, {}],
            "normalizer": null, "pre_tokenizer": null, "post_processor": null, "decoder": {decoder},
            "model": {{"type": "WordLevel", "unk_token": "a", "vocab": {{{}}}}}}}"#,
        special(0),
        special(13),
        entries.join(", ")
    );
    Tokenizer::from_bytes(json.as_bytes()).unwrap()
}

const LLAMA: &str = r#"{"type": "Sequence", "decoders": [
    {"type": "Replace", "pattern": {"String": "▁"}, "content": " "}, {"type": "ByteFallback"},
    {"type": "Fuse"}, {"type": "Strip", "content": " ", "start": 1, "stop": 0}]}"#;

/// Every kind of decoder that a tokenizer may have.
const KINDS: [&str; 8] = [
    LLAMA,
    r#"{"type": "Sequence", "decoders": [{"type": "ByteFallback"}, {"type": "Fuse"},
        {"type": "Strip", "content": " ", "start": 3, "stop": 0}]}"#,
    r#"{"type": "Sequence", "decoders": [{"type": "ByteFallback"},
        {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "always", "split": true}]}"#,
    r#"{"type": "Metaspace", "replacement": "▁", "prepend_scheme": "always", "split": true}"#,
    r#"{"type": "Metaspace", "replacement": "▁", "prepend_scheme": "first", "split": false}"#,
    r#"{"type": "Metaspace", "replacement": "▁", "prepend_scheme": "never", "split": true}"#,
    r#"{"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": false, "use_regex": false}"#,
    "null",
];

#[test]
fn an_answer_has_the_space_that_a_texts_own_beginning_loses() {
    for (decoder, expected) in [
        (LLAMA, " was a"),
        (KINDS[3], " was a"),
        (KINDS[7], " ▁was ▁ a"),
    ] {
        let tokenizer = of_kind(decoder);
        let ids = |words: &[&str]| -> Vec<TokenId> {
            words
                .iter()
                .map(|word| tokenizer.token_id(word).unwrap())
                .collect()
        };
        let answer = ids(&["▁was", "▁", "a"]);
        assert_eq!(
            continued(&tokenizer, &ids(&["<s>", "▁It"]), &answer),
            expected
        );
        // Nothing that anybody sees comes before it.
        let alone = continued(&tokenizer, &ids(&["<s>"]), &answer);
        assert_eq!(alone, expected[1..]);
    }
    // A prompt may end within a character.
    let tokenizer = of_kind(LLAMA);
    let id = |word| tokenizer.token_id(word).unwrap();
    let (first, second) = (id("<0xC3>"), id("<0xA9>"));
    assert_eq!(
        continued(&tokenizer, &[first], &[second, id("▁was")]),
        "é was"
    );
    let tokenizer = of_kind(KINDS[6]);
    assert_eq!(
        continued(&tokenizer, &[id("a"), id("Ã")], &[id("©"), id("a")]),
        "éa"
    );
}

proptest! {
    #[test]
    fn an_answers_text_is_what_the_prompts_text_lacks(
        ids in prop::collection::vec(0..WORDS.len() as u32, 0..40),
        cut in 0_usize..40,
        kind in 0..KINDS.len(),
    ) {
        let tokenizer = of_kind(KINDS[kind]);
        let ids: Vec<TokenId> = ids.into_iter().map(TokenId::new).collect();
        let (prompt, answer) = ids.split_at(cut.min(ids.len()));
        let decode = |ids: &[TokenId]| tokenizer.decode(ids, true).unwrap();
        let (before, whole) = (decode(prompt), decode(&ids));
        // Not so where the border is within a character, or in a run of bytes that is spoilt behind it.
        if let (false, Some(rest)) = (before.ends_with('\u{fffd}'), whole.strip_prefix(&before)) {
            prop_assert_eq!(continued(&tokenizer, prompt, answer), rest);
        }
    }
}

#[test]
fn a_character_of_several_tokens_waits_for_its_last_byte() {
    let smollm2 = tokenizer("smollm2");
    let ids = smollm2.encode("a👋b").unwrap();
    assert!(ids.len() > 3, "the emoji is one token");
    assert_eq!(streamed(&smollm2, &ids, false), ["a", "👋", "b"]);
    // Cut within the emoji, and with another character after the cut.
    assert_eq!(streamed(&smollm2, &ids[..2], false), ["a", "\u{fffd}"]);
    let broken = [ids[0], ids[1], ids[ids.len() - 1]];
    assert_eq!(streamed(&smollm2, &broken, false), ["a", "\u{fffd}b"]);
}

#[test]
fn byte_tokens_wait_for_the_end_of_their_run() {
    let tokenizer = tokenizer("byte-fallback");
    let shown = |tokens: &[&str]| pieces(&tokenizer, tokens);
    assert_eq!(shown(&["▁the", "▁cat", "s"]), ["the", " cat", "s"]);
    assert_eq!(shown(&["▁", "▁", "t"]), [" ", "t"]);
    assert_eq!(shown(&["t", "<0xC3>", "<0xA9>", "s"]), ["t", "és"]);
    assert_eq!(shown(&["<0xC3>", "t", "<0xA9>"]), ["\u{fffd}t", "\u{fffd}"]);
    // One bad byte makes the whole run bad.
    assert_eq!(
        shown(&["<0xC3>", "<0xA9>", "<0xFF>", "t"]),
        ["\u{fffd}\u{fffd}\u{fffd}t"]
    );
    assert_eq!(shown(&["<s>", "▁cat", "</s>"]), ["cat"]);
}

#[test]
fn only_a_plain_text_gets_the_tokens_of_the_post_processor() {
    let tokenizer = tokenizer("byte-fallback");
    let spelled = |ids: Vec<TokenId>| -> Vec<String> {
        ids.iter().map(|&id| tokenizer.token(id).unwrap()).collect()
    };
    // The file asks for truncation to four tokens and padding to sixteen; neither is done.
    let text = "the cat seen";
    let tokens = ["▁the", "▁cat", "▁", "s", "e", "e", "n"];
    assert_eq!(spelled(tokenizer.encode(text).unwrap()), tokens);
    let with_bos = spelled(tokenizer.encode_with_special(text).unwrap());
    assert_eq!(with_bos[0], "<s>");
    assert_eq!(with_bos[1..], tokens);
    let chinese = spelled(tokenizer.encode("雨").unwrap());
    assert_eq!(chinese, ["▁", "<0xE9>", "<0x9B>", "<0xA8>"]);
}

/// A pattern belongs to the model, too, and can ask for any time. Each match has a bound of its own.
#[test]
fn a_pattern_that_would_not_end_is_an_error() {
    for (pattern, text) in [
        ("(a+)+$", format!("{}b", "a".repeat(40))),
        ("(a|a)*c", format!("{}bc", "a".repeat(60))),
        ("a*a*a*a*a*a*a*a*c", format!("{}bc", "a".repeat(2_000))),
    ] {
        let json = format!(
            r#"{{"version": "1.0", "truncation": null, "padding": null, "added_tokens": [], "normalizer": null,
                "post_processor": null, "decoder": null, "model": {{"type": "WordLevel", "unk_token": "a",
                "vocab": {{"a": 0}}}}, "pre_tokenizer": {{"type": "Split", "pattern": {{"Regex": "{pattern}"}},
                "behavior": "Isolated", "invert": false}}}}"#
        );
        let tokenizer = Tokenizer::from_bytes(json.as_bytes()).unwrap();
        assert!(tokenizer.encode("b").is_ok());
        let error = tokenizer.encode(&text).unwrap_err().to_string();
        assert!(
            error.contains("retry-limit-in-match over"),
            "{pattern}: {error}"
        );
        assert!(tokenizer.encode("b").is_ok());
    }
}

#[test]
fn the_vocabulary_can_be_asked() {
    let tokenizer = tokenizer("qwen3");
    let end = tokenizer.token_id("<|im_end|>").unwrap();
    assert_eq!(end, TokenId::new(151_645));
    assert!(tokenizer.is_special(end));
    // Part of what a client may read: the tool call is not markup to hide.
    let call = tokenizer.token_id("<tool_call>").unwrap();
    assert!(!tokenizer.is_special(call));
    assert_eq!(tokenizer.token(call).as_deref(), Some("<tool_call>"));
    assert_eq!(tokenizer.token_id("no such token"), None);
    assert_eq!(tokenizer.token(TokenId::new(151_900)), None);
    assert_eq!(
        tokenizer.decode(&[TokenId::new(151_900)], false).unwrap(),
        ""
    );
}

#[test]
fn a_file_that_is_no_tokenizer_is_named() {
    let missing = Tokenizer::from_file(Path::new("no/tokenizer.json")).unwrap_err();
    assert!(
        missing
            .to_string()
            .starts_with("cannot read no/tokenizer.json: ")
    );
    let config = data("qwen3").join("tokenizer_config.json");
    let wrong = Tokenizer::from_file(&config).unwrap_err().to_string();
    assert!(wrong.contains("tokenizer_config.json is not a valid tokenizer.json: "));
    let cut = Tokenizer::from_bytes(b"{\"version\": \"1.0\", ").unwrap_err();
    assert!(matches!(cut, TokenizerError::Format { .. }), "{cut}");
}

/// A tokenizer of four words with the given decoder.
fn with_decoder(decoder: &str) -> Result<Tokenizer, TokenizerError> {
    let json = r#"{"version": "1.0", "added_tokens": [], "decoder": DECODER,
        "model": {"type": "WordLevel", "unk_token": "▁a", "vocab": {"▁a": 0, "▁▁b": 1, "c": 2, "▁": 3}}}"#;
    Tokenizer::from_bytes(json.replace("DECODER", decoder).as_bytes())
}

const METASPACE: &str = r#"{"type": "Metaspace", "replacement": "▁", "prepend_scheme": "always"}"#;
const STRIP: &str = r#"{"type": "Strip", "content": "▁", "start": 1, "stop": 0}"#;

#[test]
fn every_accepted_decoder_streams_what_it_decodes_whole() {
    let fused_strip = format!(
        r#"{{"type": "Sequence", "decoders": [{{"type": "Fuse"}}, {}]}}"#,
        STRIP.replace('1', "3")
    );
    for decoder in ["null", METASPACE, STRIP, &fused_strip] {
        let tokenizer = with_decoder(decoder).unwrap();
        for number in 0..256 {
            let ids = [1, 4, 16, 64].map(|place| TokenId::new(number / place % 4));
            let whole = tokenizer.decode(&ids, false).unwrap();
            assert_eq!(
                streamed(&tokenizer, &ids, false).concat(),
                whole,
                "{decoder}"
            );
        }
    }
}

#[test]
fn a_decoder_that_cannot_stream_is_refused_by_name() {
    for (decoder, name) in [
        (
            r#"{"type": "CTC", "pad_token": "p", "word_delimiter_token": "|", "cleanup": true}"#,
            "CTC",
        ),
        (
            r#"{"type": "WordPiece", "prefix": "p", "cleanup": true}"#,
            "WordPiece",
        ),
        (r#"{"type": "BPEDecoder", "suffix": "p"}"#, "BPEDecoder"),
        (&STRIP.replace('0', "2"), "Strip with stop = 2"),
        (
            &format!(r#"{{"type": "Sequence", "decoders": [{{"type": "Fuse"}}, {METASPACE}]}}"#),
            "after Fuse, other than Strip,",
        ),
    ] {
        let message = with_decoder(decoder).unwrap_err().to_string();
        let expected = format!("tokenizer.json: decoder {name} is not supported; accepted are");
        assert!(message.starts_with(&expected), "{message}");
    }
}

proptest! {
    /// Bytes of every kind in any order, special tokens and ids without a token among them.
    #[test]
    fn pieces_join_to_the_whole_decoding(
        picks in prop::collection::vec(0_u32..400, 0..60),
        skip_special: bool,
    ) {
        for name in ["byte-fallback", "smollm2", "qwen3"] {
            let tokenizer = shared(name);
            let ids: Vec<TokenId> = picks.iter().map(|&pick| TokenId::new(pick)).collect();
            let whole = tokenizer.decode(&ids, skip_special).unwrap();
            prop_assert_eq!(streamed(tokenizer, &ids, skip_special).concat(), whole);
        }
    }

    /// Mostly well-formed text, cut at any token.
    #[test]
    fn pieces_of_a_cut_text_join_to_its_decoding(text: String, keep in 0.0..1.0_f64) {
        for name in ["byte-fallback", "smollm2", "qwen3"] {
            let tokenizer = shared(name);
            let ids = tokenizer.encode(&text).unwrap();
            let kept = &ids[..(ids.len() as f64 * keep) as usize];
            let whole = tokenizer.decode(kept, false).unwrap();
            prop_assert_eq!(streamed(tokenizer, kept, false).concat(), whole);
        }
    }
}

fn shared(name: &'static str) -> &'static Tokenizer {
    use std::collections::BTreeMap;
    use std::sync::LazyLock;
    static ALL: LazyLock<BTreeMap<&str, Tokenizer>> = LazyLock::new(|| {
        let names = ["byte-fallback", "smollm2", "qwen3"];
        names.map(|name| (name, tokenizer(name))).into()
    });
    &ALL[name]
}
