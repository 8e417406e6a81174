//! Of a model and its cache, what the kernels are compiled for.

use super::attend::AttendShape;

/// Positions that one cube of attention looks at together.
const CHUNK: usize = 128;
/// Splits of a context at most, so that partial results stay small.
const SPLITS_MAX: usize = 128;
/// Queries that a cube of attention answers at most; its registers grow with them.
const ASKED_MAX: usize = 16;

/// Of a model and its cache, what the kernels are compiled for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::gpu) struct KernelShape {
    pub(in crate::gpu) hidden: usize,
    pub(in crate::gpu) middle: usize,
    pub(in crate::gpu) vocabulary: usize,
    pub(in crate::gpu) heads: usize,
    pub(in crate::gpu) kv_heads: usize,
    pub(in crate::gpu) head_dim: usize,
    pub(in crate::gpu) block_size: usize,
    /// Positions of one sequence at most.
    pub(in crate::gpu) context_max: usize,
}

impl KernelShape {
    /// Neighbouring dimensions of a head that are read at once.
    pub(in crate::gpu) fn pack(&self) -> usize {
        if self.head_dim.is_multiple_of(4) {
            4
        } else {
            2
        }
    }

    /// Logits that are read at once, and how often that makes a row.
    pub(super) fn vocabulary_vectors(&self) -> (usize, usize) {
        let pack = if self.vocabulary.is_multiple_of(4) {
            4
        } else {
            1
        };
        (pack, self.vocabulary / pack)
    }

    /// Chunks in one split: more than one only for contexts that would have too many splits.
    fn chunks(&self) -> usize {
        self.context_max.div_ceil(CHUNK * SPLITS_MAX).max(1)
    }

    /// Positions in one split of a context.
    pub(in crate::gpu) fn split(&self) -> usize {
        CHUNK * self.chunks()
    }

    /// Splits of the longest context.
    pub(in crate::gpu) fn splits_max(&self) -> usize {
        self.context_max.div_ceil(self.split()).max(1)
    }

    /// Rows of one sequence that a cube of attention takes at once when there are many.
    pub(in crate::gpu) fn unit_rows(&self) -> usize {
        (ASKED_MAX * self.kv_heads / self.heads).max(1)
    }

    pub(super) fn attend(&self, rows: usize, whole: bool) -> AttendShape {
        AttendShape {
            heads: self.heads,
            kv_heads: self.kv_heads,
            head_dim: self.head_dim,
            block_size: self.block_size,
            pack: self.pack(),
            rows,
            chunk: CHUNK,
            chunks: self.chunks(),
            splits_max: self.splits_max(),
            whole,
        }
    }
}
