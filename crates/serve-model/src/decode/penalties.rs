//! What a request's penalties count, and what they make of its logits. Choosing a token is
//! [`crate::sampler`]'s.

use serve_core::Sampling;

/// A token that a request has seen: in its output so often, or, where the prompt is penalised as
/// well, there alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Seen {
    /// The token.
    pub token: u32,
    /// How often the output has it.
    pub outputs: u32,
}

/// The tokens that a request has seen, each once, ascending. A pure function of the request's tokens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct History {
    seen: Vec<Seen>,
    with_prompt: bool,
}

impl History {
    /// What `sampling` has to know of a request with this prompt; `None` without penalties. Makes
    /// room for `outputs_max` tokens, so that none of them has to.
    pub fn of(sampling: &Sampling, prompt: &[u32], outputs_max: usize) -> Option<Self> {
        if !sampling.penalises() {
            return None;
        }
        let with_prompt = sampling.penalises_prompt();
        let penalised = if with_prompt { prompt.len() } else { 0 };
        let mut history = Self {
            seen: Vec::with_capacity(penalised + outputs_max),
            with_prompt,
        };
        history.restart(prompt, &[]);
        Some(history)
    }

    /// Takes in the next token of the output. O(log n), and a move of what lies behind it.
    pub fn push(&mut self, token: u32) {
        match self.seen.binary_search_by_key(&token, |seen| seen.token) {
            Ok(index) => self.seen[index].outputs += 1,
            Err(index) => self.seen.insert(index, Seen { token, outputs: 1 }),
        }
    }

    /// Begins anew with this prompt and output.
    pub fn restart(&mut self, prompt: &[u32], outputs: &[u32]) {
        self.seen.clear();
        if self.with_prompt {
            let unseen = |&token| Seen { token, outputs: 0 };
            self.seen.extend(prompt.iter().map(unseen));
            self.seen.sort_unstable_by_key(|seen| seen.token);
            self.seen.dedup();
        }
        for &token in outputs {
            self.push(token);
        }
    }

    /// What has been seen.
    pub fn seen(&self) -> &[Seen] {
        &self.seen
    }

    /// How much may come to be seen.
    pub fn capacity(&self) -> usize {
        self.seen.capacity()
    }
}

/// Penalises the logits of all that was seen, in the order of vLLM: repetition, frequency, presence.
pub(crate) fn penalise(logits: &mut [f32], sampling: &Sampling, seen: &[Seen]) {
    let (repetition, frequency, presence) = (
        sampling.repetition_penalty(),
        sampling.frequency_penalty(),
        sampling.presence_penalty(),
    );
    for seen in seen {
        let Some(logit) = logits.get_mut(seen.token as usize) else {
            continue;
        };
        *logit = match *logit > 0.0 {
            true => *logit / repetition,
            false => *logit * repetition,
        };
        *logit -= frequency * seen.outputs as f32;
        if seen.outputs > 0 {
            *logit -= presence;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn sampling(repetition: f32, frequency: f32, presence: f32) -> Sampling {
        let sampling = Sampling::GREEDY
            .with_repetition_penalty(repetition)
            .unwrap();
        let sampling = sampling.with_frequency_penalty(frequency).unwrap();
        sampling.with_presence_penalty(presence).unwrap()
    }

    #[test]
    fn penalties_are_those_of_vllm_in_its_order() {
        let seen = [(0, 0), (1, 2), (2, 1)].map(|(token, outputs)| Seen { token, outputs });
        let mut logits = [3.0, 3.0, -1.0, 3.0];
        penalise(&mut logits, &sampling(1.5, 0.25, 0.5), &seen);
        // The first is in the prompt alone; the last was never seen.
        assert_eq!(logits, [2.0, 2.0 - 0.5 - 0.5, -1.5 - 0.25 - 0.5, 3.0]);
    }

    #[test]
    fn the_prompt_counts_for_repetition_alone() {
        let seen = |sampling: Sampling| {
            let mut history = History::of(&sampling, &[5, 3, 5], 4)?;
            history.push(3);
            history.push(9);
            history.push(3);
            let seen = history.seen().iter();
            Some(
                seen.map(|seen| (seen.token, seen.outputs))
                    .collect::<Vec<_>>(),
            )
        };
        assert_eq!(seen(sampling(1.0, 0.0, 0.0)), None);
        assert_eq!(seen(sampling(1.0, 0.5, 0.0)), Some(vec![(3, 2), (9, 1)]));
        let all = Some(vec![(3, 2), (5, 0), (9, 1)]);
        assert_eq!(seen(sampling(1.2, 0.0, 0.0)), all);
    }

    proptest! {
        /// Token by token or at once, and after any other past: the history is that of the tokens.
        #[test]
        fn a_history_is_a_pure_function_of_the_tokens(
            prompt in prop::collection::vec(0_u32..20, 1..30),
            outputs in prop::collection::vec(0_u32..20, 0..30),
            other in prop::collection::vec(0_u32..20, 0..30),
            repetition in prop::sample::select(vec![1.0_f32, 1.1]),
        ) {
            let sampling = sampling(repetition, 0.1, 0.0);
            let make = || History::of(&sampling, &prompt, 60).unwrap();
            let mut grown = make();
            outputs.iter().for_each(|&token| grown.push(token));
            let mut again = make();
            other.iter().for_each(|&token| again.push(token));
            again.restart(&prompt, &outputs);
            prop_assert_eq!(&grown, &again);
            for token in 0..20 {
                let count = outputs.iter().filter(|&&output| output == token).count();
                let in_prompt = repetition != 1.0 && prompt.contains(&token);
                let expected = (count > 0 || in_prompt).then_some(count as u32);
                let found = grown.seen().iter().find(|seen| seen.token == token);
                prop_assert_eq!(found.map(|seen| seen.outputs), expected);
            }
        }
    }
}
