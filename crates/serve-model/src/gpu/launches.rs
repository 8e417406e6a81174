//! The launches of a step, in their order: what a recorded step replays.
//!
//! Nothing here waits, reads or makes memory.

use burn_cubecl::kernel::matmul::{MatmulStrategy, matmul};

use super::device::GpuDevice;
use super::kernels::{Buffer, Inputs, PRODUCT_ROWS_MAX, RopeInputs};
use super::memory::Matrix;
use crate::decode::DeviceError;
use crate::weights::{HeadNorms, LayerWeights, Projection};

impl GpuDevice {
    /// All launches of a step, whose words are on the device.
    pub(super) fn launch(&mut self, layers: usize) -> Result<(), DeviceError> {
        self.launch_embed();
        for layer in 0..layers {
            self.launch_qkv(layer)?;
            self.launch_attend(layer);
            self.launch_output(layer)?;
            self.launch_feed_forward(layer)?;
        }
        self.launch_head()
    }

    pub(super) fn launch_embed(&mut self) {
        let table = &self.weights.embedding.buffer;
        let out = &self.buffers.residual;
        self.kernels
            .embed(table, self.inputs(), out, self.layout.rows());
        self.pending = false;
    }

    pub(super) fn launch_qkv(&mut self, layer: usize) -> Result<(), DeviceError> {
        let weights = &self.weights.layers[layer];
        self.norm(&weights.attention_norm);
        self.pending = false;
        let LayerWeights {
            qkv, head_norms, ..
        } = weights;
        let buffers = &self.buffers;
        self.product(
            &buffers.normed,
            &qkv.weight,
            &buffers.qkv,
            self.layout.rows(),
        )?;
        let norms = head_norms.as_ref();
        let from = RopeInputs {
            qkv: &buffers.qkv,
            bias: qkv.bias.as_ref(),
            norms: norms.map(|HeadNorms { query, key }| (query, key)),
            angles: &self.angles,
        };
        let (cache, rows) = (&self.caches[layer], self.layout.rows());
        self.kernels
            .rope_write(&from, self.inputs(), &buffers.queries, cache, rows);
        Ok(())
    }

    pub(super) fn launch_attend(&mut self, layer: usize) {
        let buffers = &self.buffers;
        let operands = (&buffers.queries, &self.caches[layer], self.inputs());
        let (queries, cache, inputs) = operands;
        match self.bucket.window {
            Some(window) => self.kernels.attend_split(
                queries,
                cache,
                inputs,
                &buffers.seen,
                &buffers.partial,
                self.layout.units(),
                window,
            ),
            None => self.kernels.attend_whole(
                queries,
                cache,
                inputs,
                &buffers.seen,
                &buffers.partial,
                self.layout.units(),
            ),
        }
    }

    pub(super) fn launch_output(&mut self, layer: usize) -> Result<(), DeviceError> {
        let output = &self.weights.layers[layer].output;
        self.project(&self.buffers.seen, output, &self.buffers.delta)?;
        self.pending = true;
        Ok(())
    }

    pub(super) fn launch_feed_forward(&mut self, layer: usize) -> Result<(), DeviceError> {
        let weights = &self.weights.layers[layer];
        let (buffers, rows) = (&self.buffers, self.layout.rows());
        self.norm(&weights.mlp_norm);
        self.project(&buffers.normed, &weights.gate_up, &buffers.gate_up)?;
        self.kernels.gate(&buffers.gate_up, &buffers.gated, rows);
        self.project(&buffers.gated, &weights.down, &buffers.delta)?;
        self.pending = true;
        Ok(())
    }

    /// Logits of the wanted rows, and the most likely token of each.
    pub(super) fn launch_head(&mut self) -> Result<(), DeviceError> {
        let wanted = self.layout.wanted();
        if wanted == 0 {
            return Ok(());
        }
        let buffers = &self.buffers;
        let delta = self.pending.then_some(&buffers.delta);
        let norm = &self.weights.norm;
        self.kernels.wanted_norm(
            &buffers.residual,
            delta,
            norm,
            self.inputs(),
            &buffers.normed,
            wanted,
        );
        let head = self.weights.head.as_ref();
        let head = head.unwrap_or(&self.weights.embedding);
        self.product(&buffers.normed, head, &buffers.logits, wanted)?;
        self.kernels
            .most_likely(&buffers.logits, &buffers.best, &buffers.tokens, wanted);
        Ok(())
    }

    /// Adds what is pending to the residual stream, and norms it.
    fn norm(&self, weight: &Buffer) {
        let buffers = &self.buffers;
        let delta = self.pending.then_some(&buffers.delta);
        self.kernels.add_norm(
            &buffers.residual,
            delta,
            weight,
            self.inputs(),
            &buffers.normed,
            self.layout.rows(),
        );
    }

    fn project(
        &self,
        x: &Buffer,
        projection: &Projection<Matrix, Buffer>,
        out: &Buffer,
    ) -> Result<(), DeviceError> {
        let rows = self.layout.rows();
        self.product(x, &projection.weight, out, rows)?;
        if let Some(bias) = &projection.bias {
            let columns = projection.weight.outputs;
            self.kernels.add_bias(out, bias, rows, columns);
        }
        Ok(())
    }

    /// `out[rows, outputs] = x[rows, inputs] * weight^T`
    fn product(
        &self,
        x: &Buffer,
        weight: &Matrix,
        out: &Buffer,
        rows: usize,
    ) -> Result<(), DeviceError> {
        if self.own_products && rows <= PRODUCT_ROWS_MAX {
            let shape = (weight.outputs, weight.inputs);
            self.kernels.product(x, &weight.buffer, out, rows, shape);
            return Ok(());
        }
        let x = self.memory.rows(x, rows, weight.inputs);
        let out = self.memory.rows(out, rows, weight.outputs);
        let strategy = match self.tuned {
            true => MatmulStrategy::Autotune,
            false => MatmulStrategy::Cube,
        };
        let dtype = self.memory.float.dtype();
        matmul(x, weight.transposed.clone(), Some(out), strategy, dtype)
            .map(drop)
            .map_err(|error| DeviceError::new(&error))
    }

    fn inputs(&self) -> Inputs<'_> {
        Inputs {
            words: &self.buffers.words,
            tokens_at: self.layout.tokens_at,
            positions_at: self.layout.positions_at,
            slots_at: self.layout.slots_at,
            wanted_at: self.layout.wanted_at,
            units_at: self.layout.units_at,
        }
    }
}
