//! What launches take together: buffers that belong to one another.

use super::Buffer;

/// What turns projected heads into queries, keys and values.
pub(in crate::gpu) struct RopeInputs<'a> {
    pub(in crate::gpu) qkv: &'a Buffer,
    pub(in crate::gpu) bias: Option<&'a Buffer>,
    /// Of queries and of keys.
    pub(in crate::gpu) norms: Option<(&'a Buffer, &'a Buffer)>,
    pub(in crate::gpu) angles: &'a Buffer,
}

/// Keys and values of one layer.
#[derive(Clone, Debug)]
pub(in crate::gpu) struct Cache {
    pub(in crate::gpu) keys: Buffer,
    pub(in crate::gpu) values: Buffer,
}

/// The words of a step on the device, and where its kinds start.
#[derive(Clone, Copy)]
pub(in crate::gpu) struct Inputs<'a> {
    pub(in crate::gpu) words: &'a Buffer,
    pub(in crate::gpu) tokens_at: usize,
    pub(in crate::gpu) positions_at: usize,
    pub(in crate::gpu) slots_at: usize,
    pub(in crate::gpu) wanted_at: usize,
    pub(in crate::gpu) units_at: usize,
}

/// Where splits of attention leave what they saw.
#[derive(Clone, Debug)]
pub(in crate::gpu) struct Partial {
    pub(in crate::gpu) seen: Buffer,
    pub(in crate::gpu) sums: Buffer,
}

/// Where the parts of a vocabulary leave the best they have.
#[derive(Clone, Debug)]
pub(in crate::gpu) struct Best {
    /// `[rows, PARTS]`
    pub(in crate::gpu) values: Buffer,
    /// `[rows, PARTS]`
    pub(in crate::gpu) places: Buffer,
}

/// Which of a step's rows are penalised, and how.
#[derive(Debug)]
pub(in crate::gpu) struct Penalties {
    /// Rows that are.
    pub(in crate::gpu) count: usize,
    /// `[count, 3]`: the row, and from where to where what it has seen goes.
    pub(in crate::gpu) rows: Buffer,
    /// `[count, 3]`: repetition, frequency, presence.
    pub(in crate::gpu) numbers: Buffer,
    /// Of all of them: tokens, and how often the output has each.
    pub(in crate::gpu) seen: Buffer,
}

/// Where the parts of a vocabulary leave what log-probabilities are made of.
#[derive(Debug)]
pub(in crate::gpu) struct TellParts {
    /// `[rows, PARTS, FOUND]`
    pub(in crate::gpu) values: Buffer,
    /// `[rows, PARTS, FOUND]`
    pub(in crate::gpu) places: Buffer,
    /// `[rows, PARTS]`
    pub(in crate::gpu) sums: Buffer,
}
