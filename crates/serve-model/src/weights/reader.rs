//! Reads the tensors of a decoder, and puts each where its device keeps it.

use super::error::WeightsError;
use super::rows::Rows;
use super::source::TensorSource;
use super::tree::{DecoderWeights, Part, Role, Visitor};
use crate::config::ModelConfig;

/// Turns what was read into what a device keeps.
pub trait Place {
    /// A matrix on the device.
    type Matrix;
    /// A vector on the device.
    type Vector;

    /// Keeps a matrix, whose rows it reads.
    ///
    /// # Errors
    ///
    /// [`WeightsError`] when a row cannot be read.
    fn matrix(&mut self, role: Role, rows: &mut Rows<'_>) -> Result<Self::Matrix, WeightsError>;

    /// Keeps a vector.
    fn vector(&mut self, elements: Vec<f32>) -> Self::Vector;
}

impl<M, V> DecoderWeights<M, V> {
    /// Reads all weights and puts them where `place` says. `progress` is told the bytes read so far.
    ///
    /// # Errors
    ///
    /// [`WeightsError`], naming the tensor.
    pub fn load(
        config: &ModelConfig,
        source: &dyn TensorSource,
        place: &mut dyn Place<Matrix = M, Vector = V>,
        progress: &mut dyn FnMut(u64),
    ) -> Result<Self, WeightsError> {
        let mut reader = Reader {
            source,
            place,
            progress,
            read: 0,
        };
        Self::visit(config, &mut reader)
    }
}

/// Reads tensors that the device keeps side by side into one buffer.
struct Reader<'a, M, V> {
    source: &'a dyn TensorSource,
    place: &'a mut dyn Place<Matrix = M, Vector = V>,
    progress: &'a mut dyn FnMut(u64),
    read: u64,
}

impl<M, V> Visitor for Reader<'_, M, V> {
    type Matrix = M;
    type Vector = V;
    type Error = WeightsError;

    fn matrix(&mut self, role: Role, parts: &[Part], columns: usize) -> Result<M, WeightsError> {
        let Self {
            source,
            place,
            progress,
            read,
        } = self;
        let mut progress = |bytes| {
            *read += bytes;
            progress(*read);
        };
        let mut rows = Rows::new(*source, parts, columns, &mut progress)?;
        place.matrix(role, &mut rows)
    }

    fn vector(&mut self, parts: &[Part]) -> Result<V, WeightsError> {
        let mut out = Vec::new();
        for (name, count) in parts {
            let stored = self.source.stored(name, *count)?;
            let first = out.len();
            out.resize(first + count, 0.0);
            self.source.fill(name, 0, &mut out[first..])?;
            self.read += (count * stored.bytes()) as u64;
        }
        (self.progress)(self.read);
        Ok(self.place.vector(out))
    }
}
