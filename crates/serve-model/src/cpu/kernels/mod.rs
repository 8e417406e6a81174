//! The decoder's arithmetic in host memory: products that stream weights as they are stored through
//! all cores once for all inputs, and what is elementwise beside them.
//!
//! A product never depends on how many inputs there are, how many cores, or which neighbours an
//! input has: the same input gives the same bits. AVX2 and AVX-512 give the same bits too; the
//! portable version rounds products of f32 factors before it adds them and differs in the last bits.
//! With factors rounded to bfloat16 or to whole numbers all give the same bits, where one that differed
//! would be rounded to another number now and then.

mod dots;
mod instructions;
mod lanes;
pub(crate) mod math;
mod matrix;
mod packed;
pub(crate) mod pages;
mod product;
mod read_speed;
mod stored;
mod team;
#[cfg(target_arch = "x86_64")]
mod x86;

pub use instructions::Instructions;
pub(crate) use instructions::Kernel;
pub(crate) use lanes::{LANES, Lanes};
pub use matrix::{Kept, Matrix};
pub(crate) use packed::{Layout, Packed};
pub use read_speed::ReadSpeed;
pub use team::Team;
pub(crate) use team::Tile;
