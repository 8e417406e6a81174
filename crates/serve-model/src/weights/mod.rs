//! The weights of a decoder: which tensors there are, where they are read from, and what a device keeps.
//!
//! What a device makes of a matrix is its own business: it implements [`Place`].

mod checkpoint;
mod error;
mod header;
mod listing;
mod random;
mod reader;
mod rows;
mod source;
mod tree;

pub use checkpoint::Checkpoint;
pub use error::WeightsError;
pub use listing::parameters;
pub(crate) use listing::{list, stored_bytes};
pub use random::RandomWeights;
pub use reader::Place;
pub use rows::Rows;
pub use source::{StoredType, TensorSource};
pub use tree::{DecoderWeights, HeadNorms, LayerWeights, Projection, Role};
