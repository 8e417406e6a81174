//! Projections: stored weights times activations.

use std::sync::Arc;

use burn::tensor::{Device, Tensor, TensorData};

use crate::attention::DeviceError;
use crate::kernels::{Instructions, Matrix, Scratch};

/// A projection with its weights in host memory.
#[derive(Debug)]
pub(super) struct Linear {
    /// `[outputs, inputs]`; the last one may be the embedding.
    weight: Arc<Matrix>,
    bias: Option<Vec<f32>>,
}

/// What all products of a step share.
pub(super) struct Products<'a> {
    pub(super) instructions: Instructions,
    pub(super) scratch: &'a mut Scratch,
    pub(super) device: &'a Device,
}

impl Linear {
    pub(super) fn new(weight: Arc<Matrix>, bias: Option<Vec<f32>>) -> Self {
        Self { weight, bias }
    }

    /// # Shapes
    ///
    /// - `x`: `[rows, inputs]`
    /// - result: `[rows, outputs]`
    pub(super) fn forward(
        &self,
        x: Tensor<2>,
        products: &mut Products<'_>,
    ) -> Result<Tensor<2>, DeviceError> {
        let [rows, _] = x.dims();
        let outputs = self.weight.rows();
        let x = x.try_into_data().map_err(|e| DeviceError::new(&e))?;
        let x = x.as_slice::<f32>().map_err(|e| DeviceError::new(&e))?;
        let mut out = vec![0.0; rows * outputs];
        self.weight
            .multiply(products.instructions, x, products.scratch, &mut out);
        if let Some(bias) = &self.bias {
            for row in out.chunks_exact_mut(outputs) {
                row.iter_mut().zip(bias).for_each(|(x, bias)| *x += bias);
            }
        }
        let out = TensorData::new(out, [rows, outputs]);
        Ok(Tensor::from_data(out, products.device))
    }
}
