//! Text to tokens and back, as a model's own `tokenizer.json` says.
//!
//! Decoding one token at a time is [`Detokenizer`](super::Detokenizer)'s; which tokens end a text is
//! [`GenerationConfig`](super::GenerationConfig)'s.

use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use serve_core::TokenId;
use thiserror::Error;
use tokenizers::ModelWrapper;

use super::bounds;
use super::stages::Stages;
use crate::plain_file::{self, VOCABULARY_BYTES_MAX};

/// A model's tokenizer. Cheap to clone; the clones share one vocabulary.
///
/// Special tokens written out in a text (`<|im_end|>`) become those tokens, as in transformers: a
/// chat template renders its markup and what the user said into one string. Truncation and padding
/// that a file asks for are left out: a prompt is never cut silently. So is the dropout of merges, which is for
/// training: the same text is the same tokens, in a time that grows little faster than its length.
#[derive(Clone)]
pub struct Tokenizer {
    shared: Arc<Shared>,
    /// One above the last id that has at least a placeholder.
    placeholders_end: usize,
    /// Ids that the model has a row for are below this.
    rows: usize,
}

struct Shared {
    inner: tokenizers::Tokenizer,
    stages: Stages,
    /// Bytes of a text that one token stands for at most, if there is such a bound.
    token_bytes_max: Option<usize>,
    /// One above the last id that has a token.
    ids_end: usize,
}

/// Why a tokenizer could not be loaded or did not do its work.
#[derive(Debug, Error)]
pub enum TokenizerError {
    /// The file could not be read.
    #[error("cannot read {}: {source}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// The system's answer.
        source: std::io::Error,
    },
    /// The file is no tokenizer that the tokenizers library knows.
    #[error("{origin} is not a valid tokenizer.json: {cause}")]
    Format {
        /// The file, or what stands for it.
        origin: String,
        /// The library's own words.
        cause: String,
    },
    /// The file's decoder cannot be run one token at a time.
    #[error(
        "{origin}: decoder {decoder} is not supported; accepted are ByteLevel, Metaspace, and \
         sequences of Replace, ByteFallback, Strip (at the start) and Fuse"
    )]
    Decoder {
        /// The file, or what stands for it.
        origin: String,
        /// The decoder's type and what is wrong with it.
        decoder: String,
    },
    /// The library failed to encode a text.
    #[error("the text cannot be tokenized: {cause}")]
    Encode {
        /// The library's own words.
        cause: String,
    },
    /// The model does not know a token that the text has.
    #[error(
        "the text has the token {token:?} (id {id}), for which the model's vocabulary of {rows} has no row"
    )]
    NoRow {
        /// The token, as the vocabulary spells it.
        token: String,
        /// Its id.
        id: u32,
        /// Rows of the model.
        rows: usize,
    },
    /// The library failed to decode tokens.
    #[error("the tokens cannot be decoded: {cause}")]
    Decode {
        /// The library's own words.
        cause: String,
    },
}

impl Tokenizer {
    /// Reads a `tokenizer.json`.
    ///
    /// # Errors
    ///
    /// [`TokenizerError::Read`], [`TokenizerError::Format`] and [`TokenizerError::Decoder`], each of
    /// which names the file.
    pub fn from_file(path: &Path) -> Result<Self, TokenizerError> {
        let text = plain_file::read_text(path, VOCABULARY_BYTES_MAX);
        let text = text.map_err(|source| TokenizerError::Read {
            path: path.to_owned(),
            source,
        })?;
        Self::parse(text.as_bytes(), &path.display().to_string())
    }

    /// Reads the contents of a `tokenizer.json`.
    ///
    /// # Errors
    ///
    /// [`TokenizerError::Format`] and [`TokenizerError::Decoder`].
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, TokenizerError> {
        Self::parse(bytes, "tokenizer.json")
    }

    fn parse(bytes: &[u8], origin: &str) -> Result<Self, TokenizerError> {
        let bad = |cause: String| TokenizerError::Format {
            origin: origin.to_owned(),
            cause,
        };
        let format = |cause: tokenizers::Error| bad(cause.to_string());
        let inner = guarded(|| tokenizers::Tokenizer::from_bytes(bytes)).map_err(bad)?;
        let mut inner = inner.map_err(format)?;
        inner.with_truncation(None).map_err(format)?;
        inner.with_padding(None);
        if let ModelWrapper::BPE(model) = inner.get_model()
            && model.dropout.is_some()
        {
            let mut whole = model.clone();
            whole.dropout = None;
            inner.with_model(whole);
        }
        let stages =
            Stages::of(inner.get_decoder()).map_err(|decoder| TokenizerError::Decoder {
                origin: origin.to_owned(),
                decoder,
            })?;
        Ok(Self {
            shared: Arc::new(Shared {
                token_bytes_max: bounds::token_bytes_max(&inner),
                ids_end: ids_end(&inner),
                inner,
                stages,
            }),
            placeholders_end: 0,
            rows: usize::MAX,
        })
    }

    /// Gives each id below `vocab_size` that has no token a placeholder, such as `<70000>`, for a
    /// text: for a model whose vocabulary is larger than this one. No text becomes such an id.
    #[must_use]
    pub fn with_placeholders(&self, vocab_size: usize) -> Self {
        Self {
            placeholders_end: vocab_size,
            ..self.clone()
        }
    }

    /// Refuses texts with a token of an id from `rows` on: for a model whose vocabulary is smaller than this one.
    #[must_use]
    pub fn with_rows(&self, rows: usize) -> Self {
        Self {
            rows,
            ..self.clone()
        }
    }

    /// The tokens of `text` and nothing else: what a rendered chat prompt needs, whose template has
    /// already written the tokens that open it.
    ///
    /// # Errors
    ///
    /// [`TokenizerError::Encode`] and [`TokenizerError::NoRow`].
    pub fn encode(&self, text: &str) -> Result<Vec<TokenId>, TokenizerError> {
        self.encode_with(text, false)
    }

    /// The tokens of `text` with those that the file's post-processor adds, such as the BOS token of
    /// Llama models: what a plain text to be continued needs.
    ///
    /// # Errors
    ///
    /// [`TokenizerError::Encode`] and [`TokenizerError::NoRow`].
    pub fn encode_with_special(&self, text: &str) -> Result<Vec<TokenId>, TokenizerError> {
        self.encode_with(text, true)
    }

    fn encode_with(&self, text: &str, add_special: bool) -> Result<Vec<TokenId>, TokenizerError> {
        let failed = |cause: String| TokenizerError::Encode { cause };
        // A pattern of the file that takes more than ten million steps on one match panics.
        let encoding = guarded(|| self.shared.inner.encode_fast(text, add_special));
        let encoding = encoding.map_err(failed)?;
        let encoding = encoding.map_err(|cause| failed(cause.to_string()))?;
        let ids = encoding.get_ids();
        if let Some(&id) = ids.iter().find(|&&id| id as usize >= self.rows) {
            return Err(TokenizerError::NoRow {
                token: self.token(TokenId::new(id)).unwrap_or_default(),
                id,
                rows: self.rows,
            });
        }
        Ok(ids.iter().copied().map(TokenId::new).collect())
    }

    /// The text of `tokens`. Bytes that are not UTF-8 become U+FFFD; an id without a token, as in the
    /// padding of a model's embedding table, is no text.
    ///
    /// # Errors
    ///
    /// [`TokenizerError::Decode`].
    pub fn decode(&self, tokens: &[TokenId], skip_special: bool) -> Result<String, TokenizerError> {
        if self.placeholders_end > 0 {
            // The library leaves out what it does not know.
            let mut stages = self.stages().clone();
            let mut text = String::new();
            for token in tokens.iter().filter_map(|&id| self.shown(id, skip_special)) {
                text.extend(stages.push(token));
            }
            text.extend(stages.finish());
            return Ok(text);
        }
        let ids: Vec<u32> = tokens.iter().map(|token| token.get()).collect();
        let text = self.shared.inner.decode(&ids, skip_special);
        text.map_err(|cause| TokenizerError::Decode {
            cause: cause.to_string(),
        })
    }

    /// The most bytes of text that `tokens` tokens can hold. `None` where a token can stand for any length, as
    /// an unknown one can, or where text is thrown away before it becomes tokens.
    pub fn text_bytes_max(&self, tokens: u32) -> Option<usize> {
        let each = self.shared.token_bytes_max?;
        usize::try_from(tokens).ok()?.checked_mul(each)
    }

    /// How many tokens there are, added ones and placeholders included. A model's embedding table may have more rows.
    pub fn vocab_size(&self) -> usize {
        let size = self.shared.inner.get_vocab_size(true);
        size.max(self.placeholders_end)
    }

    /// One above the last id that has a token or a placeholder, and that the model has a row for.
    pub fn ids_end(&self) -> usize {
        let end = self.shared.ids_end.max(self.placeholders_end);
        end.min(self.rows)
    }

    /// The id of a token given as the vocabulary spells it.
    pub fn token_id(&self, token: &str) -> Option<TokenId> {
        self.shared.inner.token_to_id(token).map(TokenId::new)
    }

    /// A token as the vocabulary spells it, which is not its text (`Ġthe`, `▁the`, `<0x0A>`).
    pub fn token(&self, id: TokenId) -> Option<String> {
        let placeholder = || {
            let id = id.get();
            ((id as usize) < self.placeholders_end).then(|| format!("<{id}>"))
        };
        let token = self.shared.inner.id_to_token(id.get());
        token.or_else(placeholder)
    }

    /// The bytes of a token's text inside of a text, which need not be whole characters; those of the
    /// tokens of a text together are those of the text. Markup stands for itself, and an id without a
    /// token for nothing.
    pub fn bytes(&self, id: TokenId) -> Vec<u8> {
        let token = self.token(id);
        token.map_or_else(Vec::new, |token| self.shared.stages.bytes(token))
    }

    /// Whether a token is markup, such as an end of turn, that a reader should not see.
    pub fn is_special(&self, id: TokenId) -> bool {
        let added = self.shared.inner.get_added_vocabulary();
        self.token(id)
            .is_some_and(|token| added.is_special_token(&token))
    }

    /// A token as the vocabulary spells it, unless it is markup that is left out.
    pub(super) fn shown(&self, id: TokenId, skip_special: bool) -> Option<String> {
        match skip_special && self.is_special(id) {
            true => None,
            false => self.token(id),
        }
    }

    pub(super) fn stages(&self) -> &Stages {
        &self.shared.stages
    }
}

/// What the library answers, or the words of its panic: it takes a file, and a text, for one that was not made
/// to do harm.
fn guarded<T>(work: impl FnOnce() -> T) -> Result<T, String> {
    catch_unwind(AssertUnwindSafe(work)).map_err(|panic| {
        let said = panic.downcast_ref::<String>().cloned();
        said.unwrap_or_else(|| "the tokenizers library panicked".to_owned())
    })
}

fn ids_end(tokenizer: &tokenizers::Tokenizer) -> usize {
    let ids = tokenizer.get_vocab(true).into_values();
    ids.max().map_or(0, |last| last as usize + 1)
}

impl fmt::Debug for Tokenizer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tokenizer")
            .field("vocab_size", &self.vocab_size())
            .finish_non_exhaustive()
    }
}
