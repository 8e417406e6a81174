//! What the CPU keeps of weights: each matrix made smaller, rounded or as it is stored; vectors in f32.

use super::kernels::{Kept, Matrix};
use crate::config::ModelConfig;
use crate::numbers::{Elements, Precision, Quantization};
use crate::weights::{Place, Role, Rows, TensorSource, WeightsError, list};

/// What a matrix is kept in. The vocabulary has 8 bits at least: its rows decide which token is chosen,
/// and looking up a token reads one row only.
fn kept(role: Role, quantization: Option<Quantization>, precision: Precision) -> Kept {
    match (role, quantization, precision) {
        (Role::Embedding, ..) => Kept::AsStored,
        (Role::TiedEmbedding | Role::Head, Some(_), _) => Kept::Quantized(Quantization::Q8),
        (Role::Projection, Some(to), _) => Kept::Quantized(to),
        (_, None, Precision::Bf16) => Kept::Rounded,
        (_, None, Precision::F32 | Precision::Int8) => Kept::AsStored,
    }
}

/// Memory that the tensors of a model of this shape take.
pub(crate) fn weights_bytes(
    source: &dyn TensorSource,
    config: &ModelConfig,
    quantization: Option<Quantization>,
    precision: Precision,
) -> Result<u64, WeightsError> {
    let mut bytes = 0;
    for tensor in list(config) {
        let stored = source.stored(&tensor.name, tensor.elements())?;
        bytes += match (tensor.role, tensor.shape.as_slice()) {
            (Some(role), &[rows, columns]) => {
                let kept = kept(role, quantization, precision);
                kept.bytes(rows, columns, stored.bytes())
            }
            _ => (tensor.elements() * size_of::<f32>()) as u64,
        };
    }
    Ok(bytes)
}

/// Lays weights out as they are read, rounded or as they are stored.
pub(super) struct CpuMemory {
    pub(super) quantization: Option<Quantization>,
    pub(super) precision: Precision,
    /// What was read last, for what is read next.
    pub(super) read: Option<Elements>,
}

impl Place for CpuMemory {
    type Matrix = Matrix;
    type Vector = Vec<f32>;

    fn matrix(&mut self, role: Role, rows: &mut Rows<'_>) -> Result<Matrix, WeightsError> {
        /// Elements that are read before they are laid out: enough work for all cores.
        const SLAB: usize = 2 << 20;
        let kept = kept(role, self.quantization, self.precision);
        let (count, columns) = (rows.count(), rows.columns());
        let slab = (SLAB / columns).max(1).next_multiple_of(Matrix::GROUP_ROWS);
        let mut read = rows.read(0..count.min(slab), self.read.take())?;
        let mut matrix = Matrix::with_room(count, columns, kept, &read);
        matrix.push(&read);
        for first in (slab..count).step_by(slab) {
            read = rows.read(first..count.min(first + slab), Some(read))?;
            matrix.push(&read);
        }
        self.read = Some(read);
        Ok(matrix)
    }

    fn vector(&mut self, elements: Vec<f32>) -> Vec<f32> {
        elements
    }
}
