//! What the edge needs of a model beside its backend: text in, tokens out, and back.

mod mock;

use std::sync::Arc;

use serde_json::{Map, Value};
use serve_core::{Sampling, TokenId};
use thiserror::Error;

use crate::api::Message;

pub use mock::MockText;

/// A model's tokenizer, chat template and defaults. Shared by all requests.
pub trait Text: Send + Sync {
    /// The tokens of a plain text.
    ///
    /// # Errors
    ///
    /// [`TextError`] when the text has no tokens in this vocabulary.
    fn encode(&self, text: &str) -> Result<Vec<TokenId>, TextError>;

    /// The tokens of a conversation, rendered so that the assistant speaks next. `variables` are
    /// the client's own for the template.
    ///
    /// # Errors
    ///
    /// [`TextError`] when the template refuses the conversation or the text has no tokens.
    fn encode_chat(
        &self,
        messages: &[Message],
        variables: &Map<String, Value>,
    ) -> Result<Vec<TokenId>, TextError>;

    /// The most bytes of text that `tokens` tokens can hold, if there is such a bound. A text that is longer
    /// is refused before any work is done on it.
    fn bytes_max(&self, tokens: u32) -> Option<usize> {
        let _ = tokens;
        None
    }

    /// Whether all that can be asked for in so many bytes of JSON becomes tokens within some ten microseconds.
    /// Then it does so where it came in; a hop to another thread and back costs more.
    fn encodes_at_once(&self, bytes: usize) -> bool {
        let _ = bytes;
        false
    }

    /// Turns the tokens of one answer into text, as they come. The text goes on where the text of `prompt` ends;
    /// without a prompt it has a beginning of its own.
    fn detokenizer(&self, prompt: &[TokenId]) -> Box<dyn Detokenize>;

    /// The bytes of a token's text inside of a text, which need not be whole characters. Markup, which
    /// no text shows, stands for itself.
    fn bytes(&self, token: TokenId) -> Vec<u8>;

    /// The token of markup that is spelt so (`<|im_end|>`), if there is one. It is never text, so a stop string
    /// that is its spelling means the token.
    fn markup(&self, spelling: &str) -> Option<TokenId> {
        let _ = spelling;
        None
    }

    /// Token ids are below this.
    fn vocabulary(&self) -> u32;

    /// Tokens that end an answer.
    fn stop_tokens(&self) -> &Arc<[TokenId]>;

    /// How tokens are chosen where the client does not say.
    fn sampling(&self) -> Sampling;
}

/// The incremental half of a tokenizer: a token may complete no character, or several.
pub trait Detokenize: Send {
    /// Takes the next token and appends the text that is certain now.
    fn push(&mut self, token: TokenId, out: &mut String);

    /// Appends what is left when the last token has come; an unfinished character becomes U+FFFD.
    fn finish(&mut self, out: &mut String);
}

/// A text that cannot become tokens.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum TextError {
    /// A base model, which has no idea of a conversation.
    #[error("the model has no chat template; POST /v1/completions continues a text")]
    NoTemplate,
    /// The chat template refuses the conversation.
    #[error("the chat template says: {cause}")]
    Template {
        /// The template's own words.
        cause: String,
    },
    /// The tokenizer failed.
    #[error("the tokenizer says: {cause}")]
    Tokenizer {
        /// The tokenizer's own words.
        cause: String,
    },
}
