//! Tokens to text, one at a time, without ever splitting a character.
//!
//! The pieces joined together are what decoding all tokens at once gives, for any tokens at all:
//! the bytes of a character that spans several tokens wait for the last one, and bytes that are not
//! UTF-8 become U+FFFD where the whole decoding puts it. Nothing is decoded twice.

use serve_core::TokenId;

use super::stages::Stages;
use super::tokenizer::Tokenizer;

/// Decodes one text. Make a new one for each.
///
/// ```
/// # use serve_model::text::{Detokenizer, Tokenizer};
/// # use serve_core::TokenId;
/// # fn show(tokenizer: &Tokenizer, tokens: &[TokenId]) {
/// let mut detokenizer = Detokenizer::new(tokenizer, true);
/// let mut text = String::new();
/// for &token in tokens {
///     text.extend(detokenizer.push(token));
/// }
/// text.extend(detokenizer.finish());
/// assert_eq!(text, tokenizer.decode(tokens, true).unwrap());
/// # }
/// ```
#[derive(Debug)]
pub struct Detokenizer {
    tokenizer: Tokenizer,
    skip_special: bool,
    stages: Stages,
}

impl Detokenizer {
    /// Starts a text. `skip_special` leaves out markup such as an end-of-turn token.
    pub fn new(tokenizer: &Tokenizer, skip_special: bool) -> Self {
        Self {
            tokenizer: tokenizer.clone(),
            skip_special,
            stages: tokenizer.stages().clone(),
        }
    }

    /// Starts in the middle of a text, behind the tokens of `prompt`: what follows is what decoding both
    /// together gives, without what decoding the prompt alone gives. So the first word has the space that a
    /// text's own beginning loses. A character that the prompt has begun and not ended is whole. Takes time in
    /// proportion to the tokens at both ends of the prompt, however many are between them.
    ///
    /// ```
    /// # use serve_model::text::{Detokenizer, Tokenizer};
    /// # use serve_core::TokenId;
    /// # fn show(tokenizer: &Tokenizer, prompt: &[TokenId], answer: &[TokenId]) {
    /// let mut detokenizer = Detokenizer::after(tokenizer, true, prompt);
    /// let mut text = tokenizer.decode(prompt, true).unwrap();
    /// for &token in answer {
    ///     text.extend(detokenizer.push(token));
    /// }
    /// text.extend(detokenizer.finish());
    /// assert_eq!(text, tokenizer.decode(&[prompt, answer].concat(), true).unwrap());
    /// # }
    /// ```
    pub fn after(tokenizer: &Tokenizer, skip_special: bool, prompt: &[TokenId]) -> Self {
        /// A token has a byte at least, and a character that is not complete has three at most.
        const TAIL: usize = 3;
        let mut this = Self::new(tokenizer, skip_special);
        let shown = |id: &TokenId| tokenizer.shown(*id, skip_special);
        let mut head = prompt.iter().filter_map(shown);
        while !this.stages.has_begun() {
            match head.next() {
                Some(token) => drop(this.stages.push(token)),
                None => break,
            }
        }
        // Behind the head, so that a byte is not taken twice; the other way round than they are pushed.
        let tail: Vec<String> = head.rev().take(TAIL).collect();
        for token in tail.into_iter().rev() {
            drop(this.stages.push(token));
        }
        this.stages.keep_beginning();
        this
    }

    /// The text that `token` completes; `None` while it completes none. Takes time in proportion to
    /// the token and the text that it completes, however long the text before it is.
    ///
    /// A Llama-style run of byte tokens (`<0xE2>`) is decided as a whole, since one bad byte turns
    /// the whole run into U+FFFD; it is kept back until another token ends it.
    pub fn push(&mut self, token: TokenId) -> Option<String> {
        let token = self.tokenizer.shown(token, self.skip_special)?;
        self.stages.push(token)
    }

    /// The text that was kept back for a token that did not come.
    pub fn finish(mut self) -> Option<String> {
        self.stages.finish()
    }
}
