//! The launches of the GPU kernels, with what they are compiled for worked out in one place.
//!
//! Everything is unchecked inside a kernel. That indices stay within buffers is settled here: a
//! buffer is made for the most rows that a step can have, and what a step says of rows, positions
//! and blocks was checked against the limits before it became words.

#![expect(
    unsafe_code,
    reason = "a launch cannot check what a kernel indexes; see the top of the file"
)]

mod attend;
mod choose;
mod draw;
mod elementwise;
mod embed;
mod norm;
mod operands;
mod penalise;
mod product;
mod reduce;
mod rope;
mod shape;
mod tell;

use cubecl::client::Client;
use cubecl::ir::FloatKind;
use cubecl::prelude::*;
use cubecl::server::Handle;

use attend::AttendShape;
use draw::DrawShape;
use product::ProductShape;
use rope::RopeShape;
use tell::TellShape;

pub(super) use operands::{Best, Cache, Inputs, Partial, Penalties, RopeInputs, TellParts};
pub(super) use shape::KernelShape;
pub(super) use tell::entries as told_entries;

/// A run of memory on the device.
#[derive(Clone, Debug)]
pub(super) struct Buffer {
    pub(super) handle: Handle,
    /// In scalars, whatever their type.
    pub(super) elements: usize,
}

impl Buffer {
    /// As kernels take it, `pack` scalars at once.
    fn argument(&self, pack: usize) -> BufferArg {
        // SAFETY: a buffer is only made with as many elements as its memory has room for.
        unsafe { BufferArg::from_raw_parts(self.handle.clone(), self.elements / pack) }
    }
}

/// Units of a cube that goes over a whole row.
const ROW_UNITS: usize = 256;
/// Parts of a vocabulary that are searched side by side, a power of two.
pub(super) const PARTS: usize = 32;
/// Units of a cube that draws a token.
const DRAW_UNITS: usize = 512;
/// Rows of the products that [`Kernels::product`] is for.
pub(super) const PRODUCT_ROWS_MAX: usize = 16;
/// Numbers that say how a row is drawn; see [`Kernels::draw`].
pub(super) const DRAW_NUMBERS: usize = draw::NUMBERS;
/// Tokens that are found at most when log-probabilities are told.
pub(super) const FOUND: usize = tell::FOUND;
/// Words that are told of a row; see [`Kernels::tell`].
pub(super) const TOLD_WORDS: usize = tell::WORDS;

/// Launches kernels on one device, for one model.
pub(super) struct Kernels {
    pub(super) client: Client,
    pub(super) shape: KernelShape,
    /// Of weights, activations and cache.
    pub(super) element: ElemType,
    pub(super) eps: f32,
}

impl Kernels {
    /// The same for logits in f32.
    pub(super) fn in_f32(&self) -> Self {
        Self {
            client: self.client.clone(),
            element: ElemType::Float(FloatKind::F32),
            ..*self
        }
    }

    /// `out[row] = table[token of the row]` for `rows` rows.
    pub(super) fn embed(&self, table: &Buffer, inputs: Inputs<'_>, out: &Buffer, rows: usize) {
        // SAFETY: see the top of the file.
        unsafe {
            embed::embed::launch_unchecked(
                &self.client,
                CubeCount::new_1d(rows as u32),
                CubeDim::new_1d(ROW_UNITS as u32),
                table.argument(1),
                inputs.words.argument(1),
                out.argument(1),
                inputs.tokens_at,
                self.shape.hidden,
                ROW_UNITS,
                self.element,
            );
        }
    }

    #[expect(clippy::too_many_arguments, reason = "a kernel's operands")]
    fn norm(
        &self,
        x: &Buffer,
        delta: Option<&Buffer>,
        weight: &Buffer,
        inputs: Inputs<'_>,
        out: &Buffer,
        cubes: usize,
        gather: bool,
    ) {
        // SAFETY: see the top of the file. Without a delta its place is taken and not read.
        unsafe {
            norm::add_norm::launch_unchecked(
                &self.client,
                CubeCount::new_1d(cubes as u32),
                CubeDim::new_1d(ROW_UNITS as u32),
                x.argument(1),
                delta.unwrap_or(weight).argument(1),
                weight.argument(1),
                inputs.words.argument(1),
                out.argument(1),
                inputs.wanted_at,
                self.eps,
                self.shape.hidden,
                delta.is_some(),
                gather,
                ROW_UNITS,
                self.element,
            );
        }
    }

    /// `out = x * weight^T` for `rows` rows, of which there are [`PRODUCT_ROWS_MAX`] at most; `weight` is
    /// `[outputs, inputs]`.
    pub(super) fn product(
        &self,
        x: &Buffer,
        weight: &Buffer,
        out: &Buffer,
        rows: usize,
        (outputs, inputs): (usize, usize),
    ) {
        debug_assert!(rows <= PRODUCT_ROWS_MAX);
        let shape = ProductShape::of(rows, outputs);
        let pack = product::pack(inputs, self.element.size());
        // SAFETY: see the top of the file.
        unsafe {
            product::product::launch_unchecked(
                &self.client,
                CubeCount::new_1d(outputs.div_ceil(shape.columns) as u32),
                CubeDim::new_1d(product::UNITS as u32),
                pack,
                x.argument(pack),
                weight.argument(pack),
                out.argument(1),
                inputs / pack,
                outputs,
                shape,
                self.element,
            );
        }
    }

    /// Bias, head norms and rotary embedding of `rows` rows; keys and values go into the cache.
    pub(super) fn rope_write(
        &self,
        from: &RopeInputs<'_>,
        inputs: Inputs<'_>,
        queries: &Buffer,
        cache: &Cache,
        rows: usize,
    ) {
        let shape = RopeShape {
            heads: self.shape.heads,
            kv_heads: self.shape.kv_heads,
            head_dim: self.shape.head_dim,
            block_size: self.shape.block_size,
            pack: self.shape.pack(),
            bias: from.bias.is_some(),
            norms: from.norms.is_some(),
            units: (self.shape.head_dim / 2).next_power_of_two(),
        };
        // What is absent is not read; the angles, which are only read as well, take its place.
        let (query_norm, key_norm) = from.norms.unwrap_or((from.angles, from.angles));
        let heads = self.shape.heads + 2 * self.shape.kv_heads;
        // SAFETY: see the top of the file.
        unsafe {
            rope::rope_write::launch_unchecked(
                &self.client,
                CubeCount::new_2d(heads as u32, rows as u32),
                CubeDim::new_1d(shape.units as u32),
                from.qkv.argument(1),
                from.bias.unwrap_or(from.angles).argument(1),
                query_norm.argument(1),
                key_norm.argument(1),
                from.angles.argument(1),
                inputs.words.argument(1),
                queries.argument(1),
                cache.keys.argument(1),
                cache.values.argument(1),
                inputs.positions_at,
                inputs.slots_at,
                self.eps,
                shape,
                self.element,
            );
        }
    }

    /// What `units` work units, of up to [`KernelShape::unit_rows`] rows each, see of the whole context.
    pub(super) fn attend_whole(
        &self,
        queries: &Buffer,
        cache: &Cache,
        inputs: Inputs<'_>,
        out: &Buffer,
        partial: &Partial,
        units: usize,
    ) {
        let shape = self.shape.attend(self.shape.unit_rows(), true);
        self.attend(shape, queries, cache, inputs, out, partial, units, 1);
    }

    /// What `rows` single rows see of a context of up to `window` positions, split.
    #[expect(clippy::too_many_arguments, reason = "a kernel's operands")]
    pub(super) fn attend_split(
        &self,
        queries: &Buffer,
        cache: &Cache,
        inputs: Inputs<'_>,
        out: &Buffer,
        partial: &Partial,
        rows: usize,
        window: usize,
    ) {
        let shape = self.shape.attend(1, false);
        let splits = window.div_ceil(self.shape.split());
        self.attend(shape, queries, cache, inputs, out, partial, rows, splits);
        let units = self.shape.head_dim.next_multiple_of(32).min(ROW_UNITS);
        // SAFETY: see the top of the file.
        unsafe {
            attend::combine::launch_unchecked(
                &self.client,
                CubeCount::new_2d(self.shape.heads as u32, rows as u32),
                CubeDim::new_1d(units as u32),
                partial.seen.argument(1),
                partial.sums.argument(1),
                inputs.words.argument(1),
                out.argument(1),
                inputs.positions_at,
                shape,
                units,
                self.element,
            );
        }
    }

    #[expect(clippy::too_many_arguments, reason = "a kernel's operands")]
    fn attend(
        &self,
        shape: AttendShape,
        queries: &Buffer,
        cache: &Cache,
        inputs: Inputs<'_>,
        out: &Buffer,
        partial: &Partial,
        units: usize,
        splits: usize,
    ) {
        let scale = 1.0 / (self.shape.head_dim as f32).sqrt();
        let pack = shape.pack;
        // SAFETY: see the top of the file.
        unsafe {
            attend::attend::launch_unchecked(
                &self.client,
                CubeCount::new_3d(splits as u32, shape.kv_heads as u32, units as u32),
                CubeDim::new_1d(shape.chunk as u32),
                pack,
                queries.argument(pack),
                cache.keys.argument(pack),
                cache.values.argument(pack),
                inputs.words.argument(1),
                out.argument(pack),
                partial.seen.argument(pack),
                partial.sums.argument(1),
                inputs.units_at,
                scale,
                shape,
                self.element,
            );
        }
    }

    /// `x += bias` for `rows` rows.
    pub(super) fn add_bias(&self, x: &Buffer, bias: &Buffer, rows: usize, columns: usize) {
        let elements = rows * columns;
        let cubes = elements.div_ceil(ROW_UNITS);
        // SAFETY: see the top of the file.
        unsafe {
            elementwise::add_bias::launch_unchecked(
                &self.client,
                CubeCount::new_1d(cubes as u32),
                CubeDim::new_1d(ROW_UNITS as u32),
                x.argument(1),
                bias.argument(1),
                elements,
                columns,
                self.element,
            );
        }
    }

    /// `out = silu(gate) * up` for `rows` rows.
    pub(super) fn gate(&self, gate_up: &Buffer, out: &Buffer, rows: usize) {
        let elements = rows * self.shape.middle;
        let cubes = elements.div_ceil(ROW_UNITS);
        // SAFETY: see the top of the file.
        unsafe {
            elementwise::gate::launch_unchecked(
                &self.client,
                CubeCount::new_1d(cubes as u32),
                CubeDim::new_1d(ROW_UNITS as u32),
                gate_up.argument(1),
                out.argument(1),
                elements,
                self.shape.middle,
                self.element,
            );
        }
    }

    /// The most likely token of `rows` rows.
    pub(super) fn most_likely(&self, logits: &Buffer, best: &Best, tokens: &Buffer, rows: usize) {
        let (pack, vectors) = self.shape.vocabulary_vectors();
        // SAFETY: see the top of the file.
        unsafe {
            choose::largest_of_parts::launch_unchecked(
                &self.client,
                CubeCount::new_2d(PARTS as u32, rows as u32),
                CubeDim::new_1d(ROW_UNITS as u32),
                pack,
                logits.argument(pack),
                best.values.argument(1),
                best.places.argument(1),
                vectors,
                pack,
                PARTS,
                ROW_UNITS,
                self.element,
            );
            choose::largest_of_rows::launch_unchecked(
                &self.client,
                CubeCount::new_1d(rows as u32),
                CubeDim::new_1d(PARTS as u32),
                best.values.argument(1),
                best.places.argument(1),
                tokens.argument(1),
                PARTS,
            );
        }
    }

    /// Draws the tokens of those of `rows` rows whose temperature is not 0. `tokens` has the most
    /// likely ones.
    pub(super) fn draw(&self, logits: &Buffer, how: &Buffer, tokens: &Buffer, rows: usize) {
        let (pack, vectors) = self.shape.vocabulary_vectors();
        let shape = DrawShape {
            vectors,
            pack,
            bits: 8 * self.element.size() as u32,
            units: DRAW_UNITS,
        };
        // SAFETY: see the top of the file.
        unsafe {
            draw::draw::launch_unchecked(
                &self.client,
                CubeCount::new_1d(rows as u32),
                CubeDim::new_1d(DRAW_UNITS as u32),
                pack,
                logits.argument(pack),
                how.argument(1),
                tokens.argument(1),
                shape,
                self.element,
            );
        }
    }

    /// The penalised logits of the rows that `how` names, in f32.
    pub(super) fn penalise(&self, logits: &Buffer, how: &Penalties, out: &Buffer) {
        let vocabulary = self.shape.vocabulary;
        // SAFETY: see the top of the file. What was seen are tokens of the vocabulary.
        unsafe {
            penalise::widen::launch_unchecked(
                &self.client,
                CubeCount::new_2d(PARTS as u32, how.count as u32),
                CubeDim::new_1d(ROW_UNITS as u32),
                logits.argument(1),
                how.rows.argument(1),
                out.argument(1),
                vocabulary,
                PARTS,
                ROW_UNITS,
                self.element,
            );
            penalise::penalise::launch_unchecked(
                &self.client,
                CubeCount::new_1d(how.count as u32),
                CubeDim::new_1d(ROW_UNITS as u32),
                out.argument(1),
                how.rows.argument(1),
                how.numbers.argument(1),
                how.seen.argument(1),
                vocabulary,
                ROW_UNITS,
            );
        }
    }

    /// Puts the tokens of penalised rows where those of their rows are.
    pub(super) fn put_back(&self, chosen: &Buffer, how: &Penalties, tokens: &Buffer) {
        // SAFETY: see the top of the file.
        unsafe {
            penalise::put_back::launch_unchecked(
                &self.client,
                CubeCount::new_1d(how.count.div_ceil(ROW_UNITS) as u32),
                CubeDim::new_1d(ROW_UNITS as u32),
                chosen.argument(1),
                how.rows.argument(1),
                tokens.argument(1),
                how.count,
            );
        }
    }

    /// What log-probabilities are made of, for the `rows` that are named: of the `chosen` token and
    /// of the `wanted` most likely ones, at least 1. `out` is `[rows, TOLD_WORDS]`.
    pub(super) fn tell(
        &self,
        (logits, chosen): (&Buffer, &Buffer),
        (rows, count): (&Buffer, usize),
        wanted: u32,
        parts: &TellParts,
        out: &Buffer,
    ) {
        let (pack, vectors) = self.shape.vocabulary_vectors();
        let shape = TellShape {
            vectors,
            pack,
            parts: PARTS,
            units: ROW_UNITS,
        };
        // SAFETY: see the top of the file.
        unsafe {
            tell::tell_parts::launch_unchecked(
                &self.client,
                CubeCount::new_2d(PARTS as u32, count as u32),
                CubeDim::new_1d(ROW_UNITS as u32),
                pack,
                logits.argument(pack),
                rows.argument(1),
                parts.values.argument(1),
                parts.places.argument(1),
                parts.sums.argument(1),
                wanted,
                shape,
                self.element,
            );
            tell::tell_rows::launch_unchecked(
                &self.client,
                CubeCount::new_1d(count as u32),
                CubeDim::new_1d(ROW_UNITS as u32),
                logits.argument(1),
                chosen.argument(1),
                rows.argument(1),
                parts.values.argument(1),
                parts.places.argument(1),
                parts.sums.argument(1),
                out.argument(1),
                wanted,
                shape,
                self.element,
            );
        }
    }
}

#[cfg(test)]
mod tests;
