//! Log-probabilities of sampled tokens, for the requests that ask for them. The others pay nothing.

use crate::TokenId;

/// Alternatives that a request may ask for with each token at most, as in the OpenAI API and vLLM.
pub const ALTERNATIVES_MAX: u8 = 20;

/// A token and the logarithm of its probability.
///
/// The probability is the softmax of the logits as the model gives them, before penalties,
/// temperature and filters: what vLLM calls `raw_logprobs`. So a token that was penalised or that
/// is seldom drawn shows what the model thinks of it.
#[derive(Clone, Copy, Debug, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct TokenLogprob {
    /// The token.
    pub token: TokenId,
    /// Natural logarithm, at most 0; negative infinity where the probability underflows.
    pub logprob: f32,
}

/// What a step has to say of the tokens that it sampled: for each whose request asks, the token
/// itself, then the most likely tokens in descending order, of equals the lower id first. It may be
/// among them, too. A reusable buffer.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Logprobs {
    entries: Vec<TokenLogprob>,
    spans: Vec<Span>,
}

/// Where the entries of one sampled token end; they begin where those of the one before it do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Span {
    sampled: u32,
    end: u32,
}

impl Logprobs {
    /// An empty buffer.
    pub fn new() -> Self {
        Self::default()
    }

    /// Empties the buffer and keeps its memory.
    pub fn clear(&mut self) {
        self.entries.clear();
        self.spans.clear();
    }

    /// Adds what there is to say of the token at `sampled` in the order of sampling: itself, then
    /// the most likely ones. To be called with rising `sampled`.
    pub fn push(&mut self, sampled: usize, entries: impl IntoIterator<Item = TokenLogprob>) {
        let sampled = sampled as u32;
        debug_assert!(
            self.spans.last().is_none_or(|last| last.sampled < sampled),
            "each token once, in their order"
        );
        self.entries.extend(entries);
        let end = self.entries.len() as u32;
        self.spans.push(Span { sampled, end });
    }

    /// What there is to say of the token at `sampled`; `None` if its request does not ask. O(log n)
    /// in the requests that do.
    pub fn of(&self, sampled: usize) -> Option<&[TokenLogprob]> {
        let found = |span: &Span| span.sampled.cmp(&(sampled as u32));
        let index = self.spans.binary_search_by(found).ok()?;
        let start = index.checked_sub(1).map_or(0, |last| self.spans[last].end);
        Some(&self.entries[start as usize..self.spans[index].end as usize])
    }

    /// For how many tokens there is something.
    pub fn len(&self) -> usize {
        self.spans.len()
    }

    /// Whether nobody has asked.
    pub fn is_empty(&self) -> bool {
        self.spans.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(token: u32) -> TokenLogprob {
        TokenLogprob {
            token: TokenId::new(token),
            logprob: -1.0,
        }
    }

    #[test]
    fn each_token_finds_its_own_entries() {
        let mut logprobs = Logprobs::new();
        logprobs.push(1, [entry(7), entry(8)]);
        logprobs.push(4, [entry(9)]);
        let of = |sampled| logprobs.of(sampled).map(<[_]>::to_vec);
        assert_eq!(of(1), Some(vec![entry(7), entry(8)]));
        assert_eq!(of(4), Some(vec![entry(9)]));
        assert_eq!([of(0), of(2), of(5)], [None, None, None]);
        assert_eq!(logprobs.len(), 2);
        logprobs.clear();
        assert!(logprobs.is_empty() && logprobs.of(1).is_none());
    }
}
