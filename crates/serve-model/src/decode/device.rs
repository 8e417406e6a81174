//! What a decoder asks of a device: one call for each fused operation of its walk.
//!
//! A device owns the weights, the KV cache and the buffers of a step, and reuses them; between calls
//! the walk passes nothing but the batch. What is not here is when a sequence runs and which blocks
//! it owns: that comes with each batch.

use serve_core::{Logprobs, TokenId};
use thiserror::Error;

use super::batch::Batch;
use super::draws::Draws;

/// The device failed at something that cannot fail for reasons of the request.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
#[error("{cause}")]
pub struct DeviceError {
    /// The device's own words.
    pub cause: String,
}

impl DeviceError {
    /// Wraps whatever the device reports.
    pub fn new(cause: &impl std::fmt::Debug) -> Self {
        Self {
            cause: format!("{cause:?}"),
        }
    }
}

/// A decoder's weights, cache and arithmetic.
///
/// The calls of a step come in this order, with the same batch, and each works on what the one before
/// it left in the device's buffers:
///
/// 1. [`embed`](Self::embed)
/// 2. for each layer: [`project_qkv`](Self::project_qkv), [`attend`](Self::attend),
///    [`project_output`](Self::project_output), [`feed_forward`](Self::feed_forward)
/// 3. [`head`](Self::head), if logits are wanted
///
/// [`sample`](Self::sample) or [`logits`](Self::logits) may follow. A device that records a whole step
/// and replays it overrides [`forward`](Self::forward) as well.
///
/// The buffers, with `rows` the positions of the batch: the residual stream `[rows, hidden]`, queries
/// `[rows, heads * head_dim]`, what the heads saw, of the same shape, and logits
/// `[wanted rows, vocabulary]`.
pub trait DecoderDevice: Send {
    /// Takes the batch in, and makes the embeddings of its tokens the residual stream.
    ///
    /// # Errors
    ///
    /// [`DeviceError`] when the device fails. So it is with all calls.
    fn embed(&mut self, batch: &Batch) -> Result<(), DeviceError>;

    /// Queries, keys and values of the normed residual stream: norm, projection, bias, head norms and
    /// rotary embedding. Queries stay in their buffer; keys and values go where the block tables say.
    ///
    /// All keys and values of the batch are in the cache when this is done, so a sequence may attend
    /// to positions that another sequence of the same batch writes into a shared block.
    fn project_qkv(&mut self, layer: usize, batch: &Batch) -> Result<(), DeviceError>;

    /// Lets each query see its own position and all before it, straight from the cache's blocks.
    fn attend(&mut self, layer: usize, batch: &Batch) -> Result<(), DeviceError>;

    /// Adds the projection of what the heads saw to the residual stream.
    fn project_output(&mut self, layer: usize, batch: &Batch) -> Result<(), DeviceError>;

    /// Adds `down(silu(gate(x)) * up(x))` of the normed residual stream `x` to it.
    fn feed_forward(&mut self, layer: usize, batch: &Batch) -> Result<(), DeviceError>;

    /// Logits of [`Batch::logit_rows`], in order: final norm and projection onto the vocabulary.
    fn head(&mut self, batch: &Batch) -> Result<(), DeviceError>;

    /// Chooses a token after each wanted row; `draws` has one entry for each. The tokens are appended,
    /// and what draws want to know of log-probabilities, by the draw's place.
    fn sample(
        &mut self,
        draws: &Draws,
        tokens: &mut Vec<TokenId>,
        logprobs: &mut Logprobs,
    ) -> Result<(), DeviceError>;

    /// Appends the logits that [`head`](Self::head) left, row by row. For checks.
    fn logits(&mut self, out: &mut Vec<f32>) -> Result<(), DeviceError>;

    /// Bytes a second that the device reads from its memory at best, measured now; it takes a moment.
    /// `None` from a device that cannot tell.
    fn bandwidth(&mut self) -> Result<Option<f64>, DeviceError> {
        Ok(None)
    }

    /// The whole walk through `layers` layers, operation by operation.
    fn forward(&mut self, layers: usize, batch: &Batch) -> Result<(), DeviceError> {
        if batch.tokens().is_empty() {
            return Ok(());
        }
        self.embed(batch)?;
        for layer in 0..layers {
            self.project_qkv(layer, batch)?;
            self.attend(layer, batch)?;
            self.project_output(layer, batch)?;
            self.feed_forward(layer, batch)?;
        }
        if batch.logit_rows().is_empty() {
            return Ok(());
        }
        self.head(batch)
    }
}
