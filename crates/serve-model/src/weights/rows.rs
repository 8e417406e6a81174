//! The rows of a matrix, as their device reads them.

use std::ops::Range;

use super::error::WeightsError;
use super::source::{StoredType, TensorSource};
use super::tree::Part;
use crate::numbers::Elements;

/// The rows of one tensor or of several, one after the other, in the type in which all are stored; in f32
/// if they differ.
pub struct Rows<'a> {
    source: &'a dyn TensorSource,
    parts: &'a [Part],
    columns: usize,
    stored: StoredType,
    /// Is told the bytes read, as they are stored.
    progress: &'a mut dyn FnMut(u64),
}

impl<'a> Rows<'a> {
    pub(super) fn new(
        source: &'a dyn TensorSource,
        parts: &'a [Part],
        columns: usize,
        progress: &'a mut dyn FnMut(u64),
    ) -> Result<Self, WeightsError> {
        let mut common = None;
        for (name, rows) in parts {
            let stored = source.stored(name, rows * columns)?;
            let same = common.is_none_or(|common| common == stored);
            common = Some(if same { stored } else { StoredType::F32 });
        }
        Ok(Self {
            source,
            parts,
            columns,
            stored: common.unwrap_or(StoredType::F32),
            progress,
        })
    }

    /// How many there are.
    pub fn count(&self) -> usize {
        self.parts.iter().map(|(_, rows)| rows).sum()
    }

    /// Elements of each.
    pub fn columns(&self) -> usize {
        self.columns
    }

    /// Reads some of them into a buffer that was used before, or into a new one.
    ///
    /// # Errors
    ///
    /// [`WeightsError`], naming the tensor.
    pub fn read(
        &mut self,
        rows: Range<usize>,
        used: Option<Elements>,
    ) -> Result<Elements, WeightsError> {
        let source = self.source;
        let bits = |name: &str, first, out: &mut [u16]| source.fill_bits(name, first, out);
        let numbers = |name: &str, first, out: &mut [f32]| source.fill(name, first, out);
        let (wide, half) = match used {
            None => (Vec::new(), Vec::new()),
            Some(Elements::F32(wide)) => (wide, Vec::new()),
            Some(Elements::F16(half) | Elements::Bf16(half)) => (Vec::new(), half),
        };
        let count = rows.len() * self.columns;
        let elements = match self.stored {
            StoredType::F32 => Elements::F32(self.fill(rows, wide, numbers)?),
            StoredType::F16 => Elements::F16(self.fill(rows, half, bits)?),
            StoredType::Bf16 => Elements::Bf16(self.fill(rows, half, bits)?),
        };
        (self.progress)((count * self.stored.bytes()) as u64);
        Ok(elements)
    }

    /// Reads all of them.
    ///
    /// # Errors
    ///
    /// [`WeightsError`], naming the tensor.
    pub fn read_all(&mut self) -> Result<Elements, WeightsError> {
        self.read(0..self.count(), None)
    }

    fn fill<T: Copy + Default>(
        &self,
        rows: Range<usize>,
        mut out: Vec<T>,
        fill: impl Fn(&str, usize, &mut [T]) -> Result<(), WeightsError>,
    ) -> Result<Vec<T>, WeightsError> {
        out.resize(rows.len() * self.columns, T::default());
        let mut rest = out.as_mut_slice();
        let mut start = 0;
        for (name, count) in self.parts {
            let here = rows.start.clamp(start, start + count)..rows.end.clamp(start, start + count);
            let (part, tail) = rest.split_at_mut(here.len() * self.columns);
            if !part.is_empty() {
                fill(name, (here.start - start) * self.columns, part)?;
            }
            rest = tail;
            start += count;
        }
        Ok(out)
    }
}
