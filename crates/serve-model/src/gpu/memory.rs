//! What a decoder keeps on a GPU: weights, cache and the buffers of a step.

use burn::tensor::Shape;
use burn_cubecl::CubeDevice;
use burn_cubecl::tensor::CubeTensor;
use burn_std::Metadata;
use cubecl::bytes::Bytes;
use cubecl::client::Client;

use super::float::Float;
use super::kernels::{Best, Buffer, Cache, DRAW_NUMBERS, KernelShape, PARTS, Partial};
use crate::weights::{Place, Role, Rows, WeightsError};

/// Stored weights, `[outputs, inputs]`.
#[derive(Clone, Debug)]
pub(super) struct Matrix {
    pub(super) buffer: Buffer,
    pub(super) outputs: usize,
    pub(super) inputs: usize,
    /// The transposed view, which products take.
    pub(super) transposed: CubeTensor,
}

/// Makes memory on one device, all of it to stay: in allocations of their own size, which neither
/// waste memory nor move, so that recorded graphs can rely on them.
#[derive(Clone)]
pub(super) struct Memory {
    pub(super) client: Client,
    pub(super) device: CubeDevice,
    pub(super) float: Float,
}

impl Memory {
    pub(super) fn empty(&self, elements: usize, element_bytes: usize) -> Buffer {
        // No runtime takes a buffer of nothing.
        let elements = elements.max(1);
        let make = |bytes| self.client.empty(bytes);
        let bytes = elements * element_bytes;
        let handle = self.client.memory_persistent_allocation(bytes, make);
        Buffer { handle, elements }
    }

    pub(super) fn filled(&self, bytes: Bytes, elements: usize) -> Buffer {
        let make = |bytes| self.client.create(bytes);
        let handle = self.client.memory_persistent_allocation(bytes, make);
        Buffer { handle, elements }
    }

    pub(super) fn numbers(&self, numbers: Vec<f32>) -> Buffer {
        let elements = numbers.len();
        self.filled(Bytes::from_elems(numbers), elements)
    }

    /// Words for one step; the memory goes back to where it came from.
    pub(super) fn for_now(&self, words: Vec<u32>) -> Buffer {
        let elements = words.len();
        let handle = self.client.create(Bytes::from_elems(words));
        Buffer { handle, elements }
    }

    /// The same for numbers.
    pub(super) fn numbers_for_now(&self, numbers: Vec<f32>) -> Buffer {
        let elements = numbers.len();
        let handle = self.client.create(Bytes::from_elems(numbers));
        Buffer { handle, elements }
    }

    /// Room for as many words of 32 bits, for one step.
    pub(super) fn words_for_now(&self, elements: usize) -> Buffer {
        let handle = self.client.empty(elements * size_of::<u32>());
        Buffer { handle, elements }
    }

    /// Keys and values of one layer.
    pub(super) fn cache(&self, shape: &KernelShape, blocks: usize) -> Cache {
        let elements = blocks * shape.kv_heads * shape.block_size * shape.head_dim;
        Cache {
            keys: self.empty(elements, self.float.bytes()),
            values: self.empty(elements, self.float.bytes()),
        }
    }

    /// The first `rows` rows of a buffer as Burn sees them.
    pub(super) fn rows(&self, buffer: &Buffer, rows: usize, columns: usize) -> CubeTensor {
        CubeTensor::new_contiguous(
            self.client.clone(),
            self.device.clone(),
            Shape::from([rows, columns]),
            buffer.handle.clone(),
            self.float.dtype(),
        )
    }
}

impl Place for Memory {
    type Matrix = Matrix;
    type Vector = Buffer;

    fn matrix(&mut self, _role: Role, rows: &mut Rows<'_>) -> Result<Matrix, WeightsError> {
        let (outputs, inputs) = (rows.count(), rows.columns());
        let bytes = self.float.encode(rows.read_all()?);
        let buffer = self.filled(bytes, outputs * inputs);
        let mut transposed = self.rows(&buffer, outputs, inputs);
        let shape = Shape::from([inputs, outputs]);
        transposed.meta = Box::new(Metadata::new(shape, burn_std::strides![1, inputs]));
        Ok(Matrix {
            buffer,
            outputs,
            inputs,
            transposed,
        })
    }

    fn vector(&mut self, elements: Vec<f32>) -> Buffer {
        self.numbers(elements)
    }
}

/// How much a step may need.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Room {
    /// Positions.
    pub(super) rows: usize,
    /// Rows after which logits are wanted.
    pub(super) wanted: usize,
    /// Rows of a step that splits contexts.
    pub(super) split_rows: usize,
    /// Words.
    pub(super) words: usize,
}

impl Room {
    /// Whether a step that needs `other` fits.
    pub(super) fn holds(&self, other: &Self) -> bool {
        self.rows >= other.rows
            && self.wanted >= other.wanted
            && self.split_rows >= other.split_rows
            && self.words >= other.words
    }

    /// Enough for either.
    pub(super) fn and(&self, other: &Self) -> Self {
        Self {
            rows: self.rows.max(other.rows),
            wanted: self.wanted.max(other.wanted),
            split_rows: self.split_rows.max(other.split_rows),
            words: self.words.max(other.words),
        }
    }
}

/// The buffers of a step.
#[derive(Debug)]
pub(super) struct Buffers {
    pub(super) room: Room,
    pub(super) words: Buffer,
    /// The residual stream, `[rows, hidden]`, f32.
    pub(super) residual: Buffer,
    /// Still to be added to it, `[rows, hidden]`.
    pub(super) delta: Buffer,
    /// Normed, `[rows, hidden]`.
    pub(super) normed: Buffer,
    /// `[rows, (heads + 2 * kv_heads) * head_dim]`
    pub(super) qkv: Buffer,
    /// `[rows, heads * head_dim]`, f32.
    pub(super) queries: Buffer,
    /// `[rows, heads * head_dim]`
    pub(super) seen: Buffer,
    pub(super) partial: Partial,
    /// `[rows, 2 * middle]`
    pub(super) gate_up: Buffer,
    /// `[rows, middle]`
    pub(super) gated: Buffer,
    /// `[wanted, vocabulary]`
    pub(super) logits: Buffer,
    pub(super) best: Best,
    /// `[wanted, DRAW_NUMBERS]`, f32.
    pub(super) draws: Buffer,
    /// `[wanted]`
    pub(super) tokens: Buffer,
}

impl Buffers {
    pub(super) fn new(memory: &Memory, shape: &KernelShape, room: Room) -> Self {
        let element = memory.float.bytes();
        let query = shape.heads * shape.head_dim;
        let qkv = query + 2 * shape.kv_heads * shape.head_dim;
        let splits = room.split_rows * shape.heads * shape.splits_max();
        let rows = |columns: usize, bytes| memory.empty(room.rows * columns, bytes);
        Self {
            room,
            words: memory.empty(room.words, size_of::<u32>()),
            residual: rows(shape.hidden, size_of::<f32>()),
            delta: rows(shape.hidden, element),
            normed: rows(shape.hidden, element),
            qkv: rows(qkv, element),
            queries: rows(query, size_of::<f32>()),
            seen: rows(query, element),
            partial: Partial {
                seen: memory.empty(splits * shape.head_dim, size_of::<f32>()),
                sums: memory.empty(splits * 2, size_of::<f32>()),
            },
            gate_up: rows(2 * shape.middle, element),
            gated: rows(shape.middle, element),
            logits: memory.empty(room.wanted * shape.vocabulary, element),
            best: Best {
                values: memory.empty(room.wanted * PARTS, size_of::<f32>()),
                places: memory.empty(room.wanted * PARTS, size_of::<u32>()),
            },
            draws: memory.empty(room.wanted * DRAW_NUMBERS, size_of::<f32>()),
            tokens: memory.empty(room.wanted, size_of::<u32>()),
        }
    }
}
