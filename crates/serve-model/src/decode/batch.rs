//! What one forward pass runs: the positions of several sequences, flattened, and where their KV
//! lies. A reusable buffer.

use std::ops::Range;

use serve_core::Limits;

/// A ragged batch. Row `i` is one position of one sequence; the rows of a sequence are neighbours.
#[derive(Clone, Debug, Default)]
pub struct Batch {
    tokens: Vec<u32>,
    positions: Vec<u32>,
    sequences: Vec<Sequence>,
    blocks: Vec<u32>,
    logit_rows: Vec<u32>,
}

/// The rows of one sequence.
#[derive(Clone, Debug)]
pub struct Sequence {
    /// Its rows in the batch.
    pub rows: Range<usize>,
    /// The position of the first row; the others follow.
    pub start: u32,
    /// Its block table in [`Batch::blocks`].
    blocks: Range<usize>,
}

/// After which rows of a sequence logits are wanted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Logits {
    /// After none: the sequence goes on in a later step.
    None,
    /// After the last one.
    Last,
    /// After each.
    All,
}

impl Batch {
    /// An empty batch.
    pub fn new() -> Self {
        Self::default()
    }

    /// An empty batch with memory for the largest step within `limits`.
    pub fn within(limits: &Limits) -> Self {
        let rows = limits.step_tokens_max as usize;
        let sequences = limits.sequences_max as usize;
        let blocks = limits.blocks_for(limits.context_max) as usize;
        Self {
            tokens: Vec::with_capacity(rows),
            positions: Vec::with_capacity(rows),
            sequences: Vec::with_capacity(sequences),
            blocks: Vec::with_capacity(sequences * blocks),
            logit_rows: Vec::with_capacity(sequences),
        }
    }

    /// Empties the batch and keeps its memory.
    pub fn clear(&mut self) {
        self.tokens.clear();
        self.positions.clear();
        self.sequences.clear();
        self.blocks.clear();
        self.logit_rows.clear();
    }

    /// Adds `tokens` at positions `start..` of a sequence whose KV lies in `blocks`.
    pub fn push(
        &mut self,
        tokens: &[u32],
        start: u32,
        blocks: impl IntoIterator<Item = u32>,
        logits: Logits,
    ) {
        let rows = self.tokens.len()..self.tokens.len() + tokens.len();
        let first_block = self.blocks.len();
        self.tokens.extend_from_slice(tokens);
        self.positions.extend(start..start + tokens.len() as u32);
        self.blocks.extend(blocks);
        let wanted = match logits {
            Logits::None => rows.end..rows.end,
            Logits::Last => rows.end - 1..rows.end,
            Logits::All => rows.clone(),
        };
        self.logit_rows.extend(wanted.map(|row| row as u32));
        self.sequences.push(Sequence {
            rows,
            start,
            blocks: first_block..self.blocks.len(),
        });
    }

    /// The token of each row.
    pub fn tokens(&self) -> &[u32] {
        &self.tokens
    }

    /// The position of each row.
    pub fn positions(&self) -> &[u32] {
        &self.positions
    }

    /// The sequences, in the order of their rows.
    pub fn sequences(&self) -> &[Sequence] {
        &self.sequences
    }

    /// The block table of one of this batch's sequences.
    pub fn blocks(&self, sequence: &Sequence) -> &[u32] {
        &self.blocks[sequence.blocks.clone()]
    }

    /// The rows after which logits are wanted, in order.
    pub fn logit_rows(&self) -> &[u32] {
        &self.logit_rows
    }
}
