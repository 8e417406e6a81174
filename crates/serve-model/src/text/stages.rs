//! A tokenizer's decoder, run one token at a time: what each token completes, and what waits for the next.

use tokenizers::decoders::DecoderWrapper;
use tokenizers::{Decoder, Error};

/// A decoder as steps that each take one token and pass on none, one or several; and what they have kept
/// back of the text so far.
#[derive(Clone, Debug)]
pub(super) struct Stages(Vec<Stage>);

#[derive(Clone, Debug)]
enum Stage {
    /// Looks at each token alone; the library does it.
    Each(DecoderWrapper),
    /// Treats the first token differently; the library does it.
    First {
        decoder: DecoderWrapper,
        started: bool,
    },
    /// Tokens are words, with a space between them: what the library does without a decoder.
    Words { started: bool },
    /// Byte-level BPE: each character of a token stands for a byte.
    ByteLevel { pending: Vec<u8> },
    /// Llama's `<0xE2>` tokens: a run of them is text if it is UTF-8, else a U+FFFD for each byte.
    ByteFallback { run: Vec<u8> },
    /// Removes up to `left` characters from the start of the whole text.
    StripStart { content: char, left: usize },
}

impl Stages {
    /// The steps of a decoder, or the name of what cannot be run one token at a time.
    pub(super) fn of(decoder: Option<&DecoderWrapper>) -> Result<Self, String> {
        let mut stages = Vec::new();
        let mut fused = false;
        match decoder {
            None => stages.push(Stage::Words { started: false }),
            Some(decoder) => add(decoder, &mut stages, &mut fused)?,
        }
        Ok(Self(stages))
    }

    /// The text that the next token, as the vocabulary spells it, completes.
    pub(super) fn push(&mut self, token: String) -> Option<String> {
        let mut pieces = vec![token];
        for stage in &mut self.0 {
            let mut out = Vec::new();
            for piece in pieces {
                stage.push(piece, &mut out);
            }
            pieces = out;
        }
        joined(&pieces)
    }

    /// The text that was kept back for a token that did not come.
    pub(super) fn finish(&mut self) -> Option<String> {
        let mut pieces = Vec::new();
        for stage in &mut self.0 {
            let mut out = Vec::new();
            for piece in pieces {
                stage.push(piece, &mut out);
            }
            stage.finish(&mut out);
            pieces = out;
        }
        joined(&pieces)
    }

    /// Whether the beginning of the text is behind: what came can make no difference to the text of any
    /// token that follows, but for [what is kept back](Self::keep_beginning).
    pub(super) fn has_begun(&self) -> bool {
        self.0.iter().all(|stage| match stage {
            Stage::First { started, .. } | Stage::Words { started } => *started,
            Stage::StripStart { left, .. } => *left == 0,
            Stage::Each(_) | Stage::ByteLevel { .. } | Stage::ByteFallback { .. } => true,
        })
    }

    /// The text ends here for a reader, and another goes on with it: of what is kept back, only the bytes that
    /// begin a character are left.
    pub(super) fn keep_beginning(&mut self) {
        let mut pieces = Vec::new();
        for stage in &mut self.0 {
            let mut out = Vec::new();
            for piece in pieces {
                stage.push(piece, &mut out);
            }
            if let Stage::ByteFallback { run } = stage {
                let rest = run.split_off(run.len() - incomplete_suffix(run));
                flush_run(run, &mut out);
                *run = rest;
            }
            pieces = out;
        }
    }

    /// The bytes of one token in the middle of a text.
    pub(super) fn bytes(&self, token: String) -> Vec<u8> {
        let mut piece = token;
        for stage in &self.0 {
            match stage {
                Stage::Each(decoder) => {
                    piece = last(decoder.decode_chain(vec![piece])).unwrap_or_default();
                }
                Stage::First { decoder, .. } => {
                    let tokens = vec![String::new(), piece];
                    piece = last(decoder.decode_chain(tokens)).unwrap_or_default();
                }
                Stage::ByteLevel { .. } => return bytes_of(&piece),
                Stage::ByteFallback { .. } => {
                    if let Some(byte) = byte_token(&piece) {
                        return vec![byte];
                    }
                }
                // What they add or remove is no token's own.
                Stage::Words { .. } | Stage::StripStart { .. } => {}
            }
        }
        piece.into_bytes()
    }
}

fn joined(pieces: &[String]) -> Option<String> {
    let text = pieces.concat();
    (!text.is_empty()).then_some(text)
}

/// Appends the steps of `decoder`. Once `fused`, what passes between steps is a part of one token
/// that holds the whole text.
fn add(decoder: &DecoderWrapper, stages: &mut Vec<Stage>, fused: &mut bool) -> Result<(), String> {
    let stage = match decoder {
        DecoderWrapper::Sequence(sequence) => {
            for decoder in sequence.get_decoders() {
                add(decoder, stages, fused)?;
            }
            return Ok(());
        }
        DecoderWrapper::Fuse(_) => {
            *fused = true;
            return Ok(());
        }
        DecoderWrapper::Strip(strip) if strip.stop > 0 => {
            return Err(format!("Strip with stop = {}", strip.stop));
        }
        DecoderWrapper::Strip(strip) if *fused => Stage::StripStart {
            content: strip.content,
            left: strip.start,
        },
        DecoderWrapper::WordPiece(_) => return Err("WordPiece".to_owned()),
        DecoderWrapper::CTC(_) => return Err("CTC".to_owned()),
        DecoderWrapper::BPE(_) => return Err("BPEDecoder".to_owned()),
        _ if *fused => return Err("after Fuse, other than Strip,".to_owned()),
        DecoderWrapper::ByteLevel(_) => {
            *fused = true;
            Stage::ByteLevel {
                pending: Vec::new(),
            }
        }
        DecoderWrapper::ByteFallback(_) => Stage::ByteFallback { run: Vec::new() },
        DecoderWrapper::Metaspace(_) => Stage::First {
            decoder: decoder.clone(),
            started: false,
        },
        DecoderWrapper::Replace(_) | DecoderWrapper::Strip(_) => Stage::Each(decoder.clone()),
    };
    stages.push(stage);
    Ok(())
}

impl Stage {
    fn push(&mut self, piece: String, out: &mut Vec<String>) {
        match self {
            Self::Each(decoder) => out.extend(last(decoder.decode_chain(vec![piece]))),
            Self::First { decoder, started } => {
                let mut tokens = vec![piece];
                if std::mem::replace(started, true) {
                    tokens.insert(0, String::new());
                }
                out.extend(last(decoder.decode_chain(tokens)));
            }
            Self::Words { started } => {
                if std::mem::replace(started, true) {
                    out.push(" ".to_owned());
                }
                out.push(piece);
            }
            Self::ByteLevel { pending } => {
                pending.extend(bytes_of(&piece));
                let complete = pending.len() - incomplete_suffix(pending);
                let rest = pending.split_off(complete);
                out.push(String::from_utf8_lossy(pending).into_owned());
                *pending = rest;
            }
            Self::ByteFallback { run } => match byte_token(&piece) {
                Some(byte) => run.push(byte),
                None => {
                    flush_run(run, out);
                    out.push(piece);
                }
            },
            Self::StripStart { content, left } => {
                let mut text = piece.as_str();
                while *left > 0 {
                    match text.strip_prefix(*content) {
                        Some(rest) => {
                            text = rest;
                            *left -= 1;
                        }
                        None if text.is_empty() => break,
                        None => *left = 0,
                    }
                }
                out.push(text.to_owned());
            }
        }
    }

    fn finish(&mut self, out: &mut Vec<String>) {
        match self {
            Self::ByteLevel { pending } => out.push(String::from_utf8_lossy(pending).into_owned()),
            Self::ByteFallback { run } => flush_run(run, out),
            Self::Each(_) | Self::First { .. } | Self::Words { .. } | Self::StripStart { .. } => {}
        }
    }
}

/// The last token of a library decoder's answer. The decoders used here fail only if their regular
/// expression gives up on a token, and then the token is no text.
fn last(decoded: Result<Vec<String>, Error>) -> Option<String> {
    decoded.ok()?.pop()
}

/// How many bytes at the end of `bytes` begin a character whose other bytes are still to come.
fn incomplete_suffix(bytes: &[u8]) -> usize {
    // A character has four bytes at most, so what could begin one lies in the last three.
    let tail = bytes.len().saturating_sub(3);
    (tail..bytes.len())
        .find(|&start| {
            std::str::from_utf8(&bytes[start..])
                .is_err_and(|error| error.valid_up_to() == 0 && error.error_len().is_none())
        })
        .map_or(0, |start| bytes.len() - start)
}

/// The bytes of a byte-level token.
fn bytes_of(token: &str) -> Vec<u8> {
    let bytes = token.chars().map(byte_of).collect::<Option<Vec<u8>>>();
    // An added token is stored as its own text.
    bytes.unwrap_or_else(|| token.as_bytes().to_vec())
}

/// The byte that a character of a byte-level token stands for: itself where it is printable in
/// Latin-1, else numbered up from U+0100 (the table of GPT-2's `bytes_to_unicode`).
fn byte_of(c: char) -> Option<u8> {
    match u32::from(c) {
        code @ (0x21..=0x7e | 0xa1..=0xac | 0xae..=0xff) => u8::try_from(code).ok(),
        code @ 0x100..=0x120 => u8::try_from(code - 0x100).ok(),
        code @ 0x121..=0x142 => u8::try_from(code - 0x121 + 0x7f).ok(),
        0x143 => Some(0xad),
        _ => None,
    }
}

/// The byte of a token such as `<0xE2>`.
fn byte_token(token: &str) -> Option<u8> {
    let digits = token.strip_prefix("<0x")?.strip_suffix('>')?;
    if digits.len() != 2 {
        return None;
    }
    u8::from_str_radix(digits, 16).ok()
}

fn flush_run(run: &mut Vec<u8>, out: &mut Vec<String>) {
    let bytes = std::mem::take(run);
    let count = bytes.len();
    if count > 0 {
        out.push(String::from_utf8(bytes).unwrap_or_else(|_| "\u{fffd}".repeat(count)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_byte_has_one_character() {
        let mut seen = [0; 256];
        for c in (0..0x200).filter_map(char::from_u32) {
            if let Some(byte) = byte_of(c) {
                seen[usize::from(byte)] += 1;
            }
        }
        assert_eq!(seen, [1; 256]);
        assert_eq!(byte_of('Ġ'), Some(b' '));
        assert_eq!(byte_of('Ċ'), Some(b'\n'));
    }

    #[test]
    fn only_a_possible_beginning_is_kept_back() {
        for (bytes, kept) in [
            (&b""[..], 0),
            (b"abc", 0),
            ("\u{e9}".as_bytes(), 0),
            (b"a\xc3", 1),
            (b"\xf0\x9f\x98", 3),
            (b"\xe2\x82", 2),
            (b"\xff", 0),
            (b"\xc3\x28", 0),
            // 0xE0 must be followed by 0xA0 or more, so these two are no beginning.
            (b"\xe0\x80", 0),
            (b"\x80\x80", 0),
        ] {
            assert_eq!(incomplete_suffix(bytes), kept, "{bytes:02x?}");
        }
    }
}
