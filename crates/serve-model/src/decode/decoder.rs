//! The decoder: a shape and the device that runs it.

use std::fmt;

use serve_core::{Logprobs, TokenId};

use super::batch::Batch;
use super::device::{DecoderDevice, DeviceError};
use super::draws::Draws;
use crate::config::ModelConfig;

/// A model on a device.
pub struct Decoder {
    config: ModelConfig,
    device: Box<dyn DecoderDevice>,
}

impl fmt::Debug for Decoder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Decoder")
            .field("config", &self.config)
            .finish_non_exhaustive()
    }
}

impl Decoder {
    /// A decoder of this shape, whose weights and cache `device` has.
    pub fn new(config: ModelConfig, device: Box<dyn DecoderDevice>) -> Self {
        Self { config, device }
    }

    /// The shape.
    pub fn config(&self) -> &ModelConfig {
        &self.config
    }

    /// Runs a batch: KV of all its rows goes into the cache.
    ///
    /// # Errors
    ///
    /// [`DeviceError`] when the device fails.
    pub fn forward(&mut self, batch: &Batch) -> Result<(), DeviceError> {
        self.device.forward(self.config.layers, batch)
    }

    /// Appends the token that each draw chooses after its row of [`Batch::logit_rows`] of the batch
    /// that ran last, and what draws want to know of log-probabilities, by the draw's place.
    ///
    /// # Errors
    ///
    /// [`DeviceError`] when the device fails.
    pub fn sample(
        &mut self,
        draws: &Draws,
        tokens: &mut Vec<TokenId>,
        logprobs: &mut Logprobs,
    ) -> Result<(), DeviceError> {
        self.device.sample(draws, tokens, logprobs)
    }

    /// Bytes a second that the device reads from its memory at best, where it can tell.
    ///
    /// # Errors
    ///
    /// [`DeviceError`] when the device fails.
    pub fn bandwidth(&mut self) -> Result<Option<f64>, DeviceError> {
        self.device.bandwidth()
    }

    /// The logits after each of the wanted rows of the batch that ran last.
    ///
    /// # Errors
    ///
    /// [`DeviceError`] when the device fails.
    pub fn logits(&mut self) -> Result<Vec<Vec<f32>>, DeviceError> {
        let mut all = Vec::new();
        self.device.logits(&mut all)?;
        let rows = all.chunks_exact(self.config.vocab_size);
        Ok(rows.map(<[f32]>::to_vec).collect())
    }
}
