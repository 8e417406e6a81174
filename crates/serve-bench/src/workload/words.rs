//! Text of about so many tokens, without a tokenizer.
//!
//! It is made of common English words, each of which is one token (with the space before it) in the
//! vocabularies of Llama 3, Qwen and the GPT family. A small vocabulary needs more: the specification
//! says how many (`tokens_per_word`). The true count is the server's, in the `usage` of each row.

use std::sync::Arc;

use serve_core::rng::Rng;

const WORDS: &str = "the of and to in is it you that he was for on are with as his they be at one have \
    this from or had by not word but what some we can out other were all there when up use your how \
    said an each she which do their time if will way about many then them write would like so these \
    her long make thing see him two has look more day could go come did number sound no most people \
    my over know water than call first who may down side been now find any new work part take get \
    place made live where after back little only round man year came show every good me give our \
    under name very through just form sentence great think say help low line before turn cause much \
    mean old right too same tell boy follow want also around three small set put end does another \
    well large must big even such because turn here why ask went men read need land different home \
    us move try kind hand picture again change off play spell air away animal house point page letter \
    mother answer found study still learn should world";

/// About `tokens` tokens of text.
pub(super) fn text(tokens: u32, tokens_per_word: f64, rng: &mut Rng) -> Arc<str> {
    let list = WORDS.split_whitespace().collect::<Vec<_>>();
    let words = (f64::from(tokens) / tokens_per_word).round().max(1.0) as usize;
    let mut text = String::with_capacity(words * 6);
    for index in 0..words {
        if index > 0 {
            text.push(' ');
        }
        text.push_str(list[rng.below(list.len() as u64) as usize]);
    }
    text.into()
}

/// Exactly `tokens` token ids from `min` to `max`.
pub(super) fn ids(tokens: u32, (min, max): (u32, u32), rng: &mut Rng) -> Arc<[u32]> {
    let width = u64::from(max - min) + 1;
    (0..tokens).map(|_| min + rng.below(width) as u32).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_has_as_many_words_as_its_tokens_ask_for() {
        let words = |tokens, per_word| {
            let text = text(tokens, per_word, &mut Rng::new(1));
            text.split(' ').count()
        };
        assert_eq!(
            [words(1, 1.0), words(50, 1.0), words(50, 2.0), words(1, 9.0)],
            [1, 50, 25, 1]
        );
        let ids = ids(100, (7, 9), &mut Rng::new(1));
        assert_eq!(ids.len(), 100);
        assert!(ids.iter().all(|id| (7..=9).contains(id)));
    }
}
