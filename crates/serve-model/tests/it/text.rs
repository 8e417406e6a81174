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
