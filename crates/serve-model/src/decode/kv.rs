//! The paged KV cache in host memory: blocks of positions, addressed by the ids that a plan names.
//!
//! Who owns a block, and when it is free, is the scheduler's business. Nothing is ever moved.

use super::batch::Batch;

/// Sizes of a pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KvShape {
    /// Decoder layers.
    pub layers: usize,
    /// Key and value heads.
    pub heads: usize,
    /// Width of one head.
    pub head_dim: usize,
    /// Positions in a block.
    pub block_size: usize,
    /// Blocks, the null block included.
    pub blocks: usize,
}

impl KvShape {
    /// Numbers in the keys and values of all blocks in all layers.
    pub fn elements(&self) -> u64 {
        let position = 2 * self.layers * self.heads * self.head_dim;
        (position * self.block_size) as u64 * self.blocks as u64
    }
}

/// Keys and values of all layers. Within a layer the order is block, head, position, dimension, so
/// that the keys of one head in one block are one run of memory.
#[derive(Debug)]
pub struct KvPool {
    shape: KvShape,
    layers: Vec<Layer>,
}

#[derive(Debug)]
struct Layer {
    keys: Vec<f32>,
    values: Vec<f32>,
}

impl KvPool {
    /// A pool of zeros. The system hands out a page when it is first written.
    pub fn new(shape: KvShape) -> Self {
        let elements = shape.blocks * shape.heads * shape.block_size * shape.head_dim;
        let layer = || Layer {
            keys: vec![0.0; elements],
            values: vec![0.0; elements],
        };
        Self {
            shape,
            layers: (0..shape.layers).map(|_| layer()).collect(),
        }
    }

    /// The sizes.
    pub fn shape(&self) -> &KvShape {
        &self.shape
    }

    /// Stores keys and values of all heads, `[heads, head_dim]` each, of one position.
    pub fn write(&mut self, layer: usize, block: u32, slot: usize, keys: &[f32], values: &[f32]) {
        let dim = self.shape.head_dim;
        let first = self.run_start(block, 0) + slot * dim;
        let stride = self.shape.block_size * dim;
        let layer = &mut self.layers[layer];
        let heads = keys.chunks_exact(dim).zip(values.chunks_exact(dim));
        for (head, (key, value)) in heads.enumerate() {
            let run = first + head * stride..first + head * stride + dim;
            layer.keys[run.clone()].copy_from_slice(key);
            layer.values[run].copy_from_slice(value);
        }
    }

    /// Stores keys and values of all rows of a batch. Each row of `qkv` ends with the keys and the
    /// values of all heads, behind `query_size` other numbers.
    pub(crate) fn write_batch(
        &mut self,
        layer: usize,
        batch: &Batch,
        qkv: &[f32],
        query_size: usize,
    ) {
        let kv_size = self.shape.heads * self.shape.head_dim;
        let row_size = query_size + 2 * kv_size;
        for sequence in batch.sequences() {
            let blocks = batch.blocks(sequence);
            let rows = &qkv[sequence.rows.start * row_size..sequence.rows.end * row_size];
            let positions = sequence.start as usize..;
            for (position, row) in positions.zip(rows.chunks_exact(row_size)) {
                let (keys, values) = row[query_size..].split_at(kv_size);
                let block = blocks[position / self.shape.block_size];
                self.write(layer, block, position % self.shape.block_size, keys, values);
            }
        }
    }

    /// Keys and values of one head in one block, `[block_size, head_dim]` each.
    pub fn read(&self, layer: usize, block: u32, head: usize) -> (&[f32], &[f32]) {
        let start = self.run_start(block, head);
        let run = start..start + self.shape.block_size * self.shape.head_dim;
        let layer = &self.layers[layer];
        (&layer.keys[run.clone()], &layer.values[run])
    }

    fn run_start(&self, block: u32, head: usize) -> usize {
        let shape = &self.shape;
        (block as usize * shape.heads + head) * shape.block_size * shape.head_dim
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read_and_nothing_else_changes() {
        let shape = KvShape {
            layers: 2,
            heads: 2,
            head_dim: 2,
            block_size: 3,
            blocks: 4,
        };
        let mut pool = KvPool::new(shape);
        pool.write(1, 2, 1, &[1.0, 2.0, 3.0, 4.0], &[5.0, 6.0, 7.0, 8.0]);
        let (keys, values) = pool.read(1, 2, 1);
        assert_eq!(keys, [0.0, 0.0, 3.0, 4.0, 0.0, 0.0]);
        assert_eq!(values, [0.0, 0.0, 7.0, 8.0, 0.0, 0.0]);
        let written = |layer: &Layer| layer.keys.iter().filter(|&&x| x != 0.0).count();
        assert_eq!(pool.layers.iter().map(written).collect::<Vec<_>>(), [0, 4]);
        assert_eq!(shape.elements(), 2 * 2 * 2 * 2 * 3 * 4);
    }
}
