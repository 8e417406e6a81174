//! What every device shares: the walk through a decoder that it implements, the batch that it runs, and
//! how a token comes of its logits; and [`DecoderBackend`], which runs a scheduler's plans on one.

mod backend;
mod batch;
mod decoder;
mod device;
mod device_kind;
mod draws;
mod kv;
mod layout;
mod logprobs;
mod penalties;
mod rope;
mod sampler;

pub use backend::DecoderBackend;
pub use batch::{Batch, Logits, Sequence};
pub use decoder::Decoder;
pub use device::{DecoderDevice, DeviceError};
pub use device_kind::{CUDA_PACKAGES, CudaVersion, DeviceKind, DeviceMissing, UnknownDevice};
pub use draws::{Draw, Draws};
pub use kv::{KvPool, KvShape};
#[cfg(feature = "gpu")]
pub(crate) use layout::{Bucket, WINDOW_MIN};
pub(crate) use layout::{Buckets, Layout};
#[cfg(all(test, feature = "gpu"))]
pub(crate) use logprobs::logprobs;
#[cfg(all(test, feature = "gpu"))]
pub(crate) use penalties::penalise;
pub use penalties::{History, Seen};
pub use rope::RopeTable;
pub use sampler::Sampler;
