//! The log-probabilities of an answer on their way out: each token's go with the text that it begins.

use std::collections::VecDeque;
use std::sync::Arc;

use serve_core::TokenLogprob;

use crate::api::{Score, ScoredToken};
use crate::text::Text;

/// Holds what there is to say of a token until the first character of its text goes out. Text is held
/// back while a character is not complete, or while it may become a stop string.
pub(crate) struct Scores {
    text: Arc<dyn Text>,
    held: VecDeque<ScoredToken>,
    /// Characters that tokens have become.
    decoded: usize,
    /// Characters that have gone out.
    sent: usize,
    cut: bool,
}

impl Scores {
    pub(crate) fn new(text: Arc<dyn Text>) -> Self {
        Self {
            text,
            held: VecDeque::new(),
            decoded: 0,
            sent: 0,
            cut: false,
        }
    }

    /// The next token has come: itself, then the most likely ones.
    pub(crate) fn saw(&mut self, told: &[TokenLogprob]) {
        let score = |entry: &TokenLogprob| Score {
            bytes: self.text.bytes(entry.token),
            logprob: entry.logprob,
        };
        if let Some((own, most_likely)) = told.split_first() {
            let token = ScoredToken {
                own: score(own),
                most_likely: most_likely.iter().map(score).collect(),
                text_offset: self.decoded,
            };
            self.held.push_back(token);
        }
    }

    /// Tokens have become this text.
    pub(crate) fn decoded(&mut self, text: &str) {
        self.decoded += text.chars().count();
    }

    /// A stop string has ended the answer: what begins behind the text is not part of it.
    pub(crate) fn cut(&mut self) {
        self.cut = true;
    }

    /// This text goes out, and with it the tokens that begin in it.
    pub(crate) fn sent(&mut self, text: &str) -> Vec<ScoredToken> {
        self.sent += text.chars().count();
        let begun = |token: &ScoredToken| token.text_offset < self.sent;
        let count = self.held.iter().take_while(|token| begun(token)).count();
        self.held.drain(..count).collect()
    }

    /// No more text follows: the tokens that have none.
    pub(crate) fn rest(&mut self) -> Vec<ScoredToken> {
        let rest = std::mem::take(&mut self.held);
        if self.cut { Vec::new() } else { rest.into() }
    }
}
