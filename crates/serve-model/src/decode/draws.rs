//! How the tokens after a forward pass are to be chosen: one draw for each wanted row. A reusable
//! buffer, like the batch.

use std::ops::Range;

use serve_core::Sampling;

use super::penalties::{History, Seen};

/// How to choose the token after one of the wanted rows.
#[derive(Clone, Debug, PartialEq)]
pub struct Draw {
    /// Temperature, filters, penalties and seed.
    pub sampling: Sampling,
    /// The position that the token will have.
    pub position: u32,
    /// Whether its log-probability is wanted, and those of how many most likely tokens.
    pub logprobs: Option<u8>,
    /// Where that which is penalised lies in [`Draws::all_seen`]; empty without penalties.
    pub(crate) seen: Range<usize>,
}

/// The draws of a step, in the order of its wanted rows.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Draws {
    draws: Vec<Draw>,
    seen: Vec<Seen>,
}

impl Draws {
    /// No draws.
    pub fn new() -> Self {
        Self::default()
    }

    /// Empties the buffer and keeps its memory.
    pub fn clear(&mut self) {
        self.draws.clear();
        self.seen.clear();
    }

    /// Makes room for histories of this length together.
    pub fn reserve(&mut self, seen: usize) {
        self.seen.reserve(seen.saturating_sub(self.seen.len()));
    }

    /// Adds the draw of the token at `position`. `history` is what the request has seen before it,
    /// and is wanted where `sampling` has penalties.
    pub fn push(
        &mut self,
        sampling: Sampling,
        position: u32,
        history: Option<&History>,
        logprobs: Option<u8>,
    ) {
        let start = self.seen.len();
        self.seen
            .extend_from_slice(history.map_or(&[], History::seen));
        self.draws.push(Draw {
            sampling,
            position,
            logprobs,
            seen: start..self.seen.len(),
        });
    }

    /// The draws.
    pub fn iter(&self) -> std::slice::Iter<'_, Draw> {
        self.draws.iter()
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.draws.len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.draws.is_empty()
    }

    /// What one of these draws penalises.
    pub fn seen(&self, draw: &Draw) -> &[Seen] {
        &self.seen[draw.seen.clone()]
    }

    /// What all draws penalise.
    #[cfg(feature = "gpu")]
    pub(crate) fn all_seen(&self) -> &[Seen] {
        &self.seen
    }
}
