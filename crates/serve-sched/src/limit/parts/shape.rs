//! How much longer large requests take than small ones, so that a change of sizes is not taken for a
//! change of load.
//!
//! Requests are sorted into cells by the size of the prompt and of the answer, and
//! `time = level x shape[cell]`. The level is what the load does to all of them; the shape is learned
//! from every round with the level divided out, and so is right whether the engine queues or not. A
//! cell that was never seen says nothing of the level: its first round is taken to be at the level
//! known so far. So no mixture of short and long, and no change from the one to the other, moves the
//! level by itself.

use std::collections::BTreeMap;

use serve_core::Span;

/// Time by the size of a request, relative to the load.
#[derive(Clone, Debug, PartialEq)]
pub(in crate::limit) struct Shape {
    cells: BTreeMap<Cell, f64>,
    round: BTreeMap<Cell, Sum>,
    level: f64,
}

/// Prompts that differ by less than a factor of four, answers by less than one of two.
type Cell = (u32, u32);

#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Sum {
    secs: f64,
    requests: f64,
}

/// Fewer requests of known sizes than this say too little of the level.
const KNOWN_MIN: f64 = 4.0;
/// After so many requests of a size, half of what was known of it has been learned anew.
const MEMORY: f64 = 64.0;

impl Default for Shape {
    fn default() -> Self {
        Self {
            cells: BTreeMap::new(),
            round: BTreeMap::new(),
            level: 1.0,
        }
    }
}

impl Shape {
    /// A request of these sizes took so long.
    pub(in crate::limit) fn add(&mut self, prompt_tokens: u32, output_tokens: u32, took: Span) {
        let bits = |tokens: u32| u32::BITS - tokens.leading_zeros();
        let cell = (bits(prompt_tokens) / 2, bits(output_tokens));
        let sum = self.round.entry(cell).or_default();
        sum.secs += took.as_secs_f64();
        sum.requests += 1.0;
    }

    /// Ends a round and gives its level: 1 in the first round, 2 where requests of the same sizes
    /// take twice as long as then. `None` where too few were of a size that was seen before.
    pub(in crate::limit) fn close_round(&mut self) -> Option<f64> {
        let round = std::mem::take(&mut self.round);
        let (mut secs, mut expected, mut known) = (0.0, 0.0, 0.0);
        for (cell, sum) in &round {
            if let Some(shape) = self.cells.get(cell) {
                secs += sum.secs;
                expected += sum.requests * shape;
                known += sum.requests;
            }
        }
        let first = self.cells.is_empty() && !round.is_empty();
        let level = (known >= KNOWN_MIN && expected > 0.0).then(|| secs / expected);
        // What takes no time at all has no level.
        self.level = level.filter(|&level| level > 0.0).unwrap_or(self.level);
        for (cell, sum) in round {
            let alone = sum.secs / sum.requests / self.level;
            let shape = self.cells.entry(cell).or_insert(alone);
            *shape += sum.requests / (sum.requests + MEMORY) * (alone - *shape);
        }
        match first {
            true => Some(self.level),
            false => level,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A round of `requests` answers of `tokens`, of half a second and 10 ms for each token, when the
    /// load makes everything `slower` times as slow.
    fn round(shape: &mut Shape, requests: u32, tokens: u32, slower: f64) -> Option<f64> {
        for _ in 0..requests {
            let secs = slower * (0.5 + 0.01 * f64::from(tokens));
            shape.add(1_000, tokens, Span::from_secs_f64(secs));
        }
        shape.close_round()
    }

    #[test]
    fn the_level_is_the_load_and_not_the_size() {
        let mut shape = Shape::default();
        let near = |level: Option<f64>, expected: f64| {
            let level = level.unwrap();
            assert!((level / expected - 1.0).abs() < 0.02, "{level} {expected}");
        };
        near(round(&mut shape, 10, 100, 1.0), 1.0);
        near(round(&mut shape, 10, 100, 2.0), 2.0);
        assert_eq!(round(&mut shape, 10, 5, 2.0), None, "never seen");
        near(round(&mut shape, 10, 5, 2.0), 2.0);
        near(round(&mut shape, 10, 5, 1.0), 1.0);
        near(round(&mut shape, 10, 100, 1.0), 1.0);
        for _ in 0..200 {
            round(&mut shape, 30, 100, 3.0);
        }
        near(round(&mut shape, 10, 100, 3.0), 3.0);
        near(round(&mut shape, 10, 5, 1.5), 1.5);
    }

    #[test]
    fn nothing_and_no_time_are_no_level() {
        let mut shape = Shape::default();
        assert_eq!(shape.close_round(), None);
        for _ in 0..5 {
            shape.add(0, 0, Span::ZERO);
            shape.add(0, 0, Span::ZERO);
            assert!(shape.close_round().is_none_or(f64::is_finite));
        }
    }
}
