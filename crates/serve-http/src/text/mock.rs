//! A readable vocabulary for the mock backend: every token is a word of two syllables, and bytes
//! stand in for everything else, so any text can be encoded and comes back as it was.

use std::sync::Arc;

use serde_json::{Map, Value};
use serve_core::{Sampling, TokenId};

use super::{Detokenize, Text, TextError};
use crate::api::Message;
use crate::prepare::INLINE_JSON_BYTES_MAX;

const CONSONANTS: &[u8; 16] = b"bdfghjklmnprstvz";
const VOWELS: &[u8; 4] = b"aeio";
const SYLLABLES: u32 = 64;
const BYTES: u32 = 256;
const WORD_BYTES: usize = 5; // a space and two syllables

/// The vocabulary of the mock: words, then single bytes, then one end token.
///
/// A word token is a space and the word, so `" bade gizo"` is two tokens.
#[derive(Clone, Debug)]
pub struct MockText {
    stop_tokens: Arc<[TokenId]>,
}

impl MockText {
    /// How many tokens are words. A mock backend that draws from `0..WORDS` writes words only.
    pub const WORDS: u32 = SYLLABLES * SYLLABLES;

    /// The token that ends an answer.
    pub const END: TokenId = TokenId::new(Self::WORDS + BYTES);

    /// The vocabulary.
    pub fn new() -> Self {
        Self {
            stop_tokens: Arc::new([Self::END]),
        }
    }

    /// The token of one byte.
    pub fn byte(byte: u8) -> TokenId {
        TokenId::new(Self::WORDS + u32::from(byte))
    }
}

impl Default for MockText {
    fn default() -> Self {
        Self::new()
    }
}

impl Text for MockText {
    fn encode(&self, text: &str) -> Result<Vec<TokenId>, TextError> {
        let mut rest = text.as_bytes();
        let mut tokens = Vec::with_capacity(rest.len() / WORD_BYTES + 1);
        while let Some((&first, after)) = rest.split_first() {
            if let Some(word) = rest.first_chunk().and_then(word_token) {
                tokens.push(word);
                rest = &rest[WORD_BYTES..];
            } else {
                tokens.push(Self::byte(first));
                rest = after;
            }
        }
        Ok(tokens)
    }

    fn encode_chat(
        &self,
        messages: &[Message],
        _variables: &Map<String, Value>,
    ) -> Result<Vec<TokenId>, TextError> {
        let lines = messages
            .iter()
            .map(|message| format!("{}: {}\n", message.role.name(), message.content));
        self.encode(&format!("{}assistant:", lines.collect::<String>()))
    }

    fn bytes_max(&self, tokens: u32) -> Option<usize> {
        Some(tokens as usize * WORD_BYTES)
    }

    fn encodes_at_once(&self, bytes: usize) -> bool {
        bytes <= INLINE_JSON_BYTES_MAX
    }

    fn detokenizer(&self, _prompt: &[TokenId]) -> Box<dyn Detokenize> {
        Box::new(MockDetokenizer {
            partial: Vec::new(),
        })
    }

    fn bytes(&self, token: TokenId) -> Vec<u8> {
        let id = token.get();
        if id < Self::WORDS {
            let mut word = String::new();
            push_word(id, &mut word);
            return word.into_bytes();
        }
        match u8::try_from(id - Self::WORDS) {
            Ok(byte) => vec![byte],
            Err(_) => b"<end>".to_vec(),
        }
    }

    fn markup(&self, spelling: &str) -> Option<TokenId> {
        (spelling.as_bytes() == self.bytes(Self::END)).then_some(Self::END)
    }

    fn vocabulary(&self) -> u32 {
        Self::END.get() + 1
    }

    fn stop_tokens(&self) -> &Arc<[TokenId]> {
        &self.stop_tokens
    }

    fn sampling(&self) -> Sampling {
        Sampling::GREEDY
    }
}

struct MockDetokenizer {
    /// Bytes of a character that is not complete.
    partial: Vec<u8>,
}

impl Detokenize for MockDetokenizer {
    fn push(&mut self, token: TokenId, out: &mut String) {
        let id = token.get();
        if id < MockText::WORDS {
            self.finish(out);
            push_word(id, out);
        } else if let Ok(byte) = u8::try_from(id - MockText::WORDS) {
            self.partial.push(byte);
            match std::str::from_utf8(&self.partial) {
                Ok(text) => out.push_str(text),
                // The bytes so far may still begin a character.
                Err(error) if error.error_len().is_none() => return,
                Err(_) => out.push(char::REPLACEMENT_CHARACTER),
            }
            self.partial.clear();
        }
    }

    fn finish(&mut self, out: &mut String) {
        if !self.partial.is_empty() {
            out.push(char::REPLACEMENT_CHARACTER);
            self.partial.clear();
        }
    }
}

fn push_word(id: u32, out: &mut String) {
    out.push(' ');
    for syllable in [id / SYLLABLES, id % SYLLABLES] {
        out.push(char::from(CONSONANTS[(syllable / 4) as usize]));
        out.push(char::from(VOWELS[(syllable % 4) as usize]));
    }
}

/// The token of exactly these bytes, if they are a space and a word.
fn word_token(bytes: &[u8; WORD_BYTES]) -> Option<TokenId> {
    let &[b' ', first @ .., third, fourth] = bytes else {
        return None;
    };
    let high = syllable(first)?;
    let low = syllable([third, fourth])?;
    Some(TokenId::new(high * SYLLABLES + low))
}

fn syllable([consonant, vowel]: [u8; 2]) -> Option<u32> {
    let consonant = CONSONANTS.iter().position(|&c| c == consonant)?;
    let vowel = VOWELS.iter().position(|&v| v == vowel)?;
    Some((consonant * VOWELS.len() + vowel) as u32)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn decoded(tokens: &[TokenId]) -> String {
        let mut detokenizer = MockText::new().detokenizer(&[]);
        let mut out = String::new();
        for &token in tokens {
            detokenizer.push(token, &mut out);
        }
        detokenizer.finish(&mut out);
        out
    }

    #[test]
    fn every_word_is_its_own_token() {
        let text = MockText::new();
        for id in 0..MockText::WORDS {
            let word = decoded(&[TokenId::new(id)]);
            assert_eq!(text.encode(&word).unwrap(), [TokenId::new(id)], "{word}");
            assert_eq!(text.bytes(TokenId::new(id)), word.as_bytes());
        }
    }

    #[test]
    fn any_text_comes_back() {
        let text = MockText::new();
        for sample in ["", " bade gizo", "Grüße, 世界 🎉", "a  bade bad", " bad"] {
            let tokens = text.encode(sample).unwrap();
            assert_eq!(decoded(&tokens), sample);
            let bytes: Vec<u8> = tokens.iter().flat_map(|&token| text.bytes(token)).collect();
            assert_eq!(bytes, sample.as_bytes());
        }
    }

    #[test]
    fn a_broken_character_is_replaced_and_the_rest_goes_on() {
        let tokens = [
            MockText::byte(0xE4),
            TokenId::new(0),
            MockText::byte(0xC3),
            MockText::byte(b'x'),
            MockText::byte(b'y'),
        ];
        assert_eq!(decoded(&tokens), "\u{FFFD} baba\u{FFFD}y");
    }
}
