//! The decoder's arithmetic in host memory: products that stream weights as they are stored through
//! all cores once for all inputs, and what is elementwise beside them.
//!
//! A product never depends on how many inputs there are, how many cores, or which neighbours an
//! input has: the same input gives the same bits. AVX2 and AVX-512 give the same bits too; the
//! portable version rounds products before it adds them and differs in the last bits.

mod block;
mod lanes;
pub(crate) mod math;
mod matrix;
mod packed;
mod quantization;
mod read_speed;
mod stored;
mod team;
#[cfg(target_arch = "x86_64")]
mod x86;

use std::fmt;

pub(crate) use lanes::{LANES, Lanes};
pub(crate) use matrix::make_rooms;
pub use matrix::{Elements, Matrix};
pub(crate) use packed::Packed;
pub use quantization::{Quantization, UnknownQuantization};
pub use read_speed::ReadSpeed;
pub use team::Team;
pub(crate) use team::Tile;

use lanes::Portable;

/// Instructions of this processor that the kernels can use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Instructions(Kind);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Portable(Portable),
    #[cfg(target_arch = "x86_64")]
    Avx2(x86::Avx2),
    #[cfg(target_arch = "x86_64")]
    Avx512(x86::Avx512),
}

/// Work that is compiled for each kind of processor.
pub(crate) trait Kernel {
    /// Does the work. What it calls must be inlined to be compiled with it.
    fn run<L: Lanes>(self, lanes: L);
}

impl Instructions {
    /// All that this processor has, the fastest last.
    pub fn available() -> Vec<Self> {
        let portable = Some(Kind::Portable(Portable));
        #[cfg(target_arch = "x86_64")]
        let all = [
            portable,
            x86::Avx2::detect().map(Kind::Avx2),
            x86::Avx512::detect().map(Kind::Avx512),
        ];
        #[cfg(not(target_arch = "x86_64"))]
        let all = [portable];
        all.into_iter().flatten().map(Self).collect()
    }

    /// The fastest that this processor has.
    pub fn best() -> Self {
        let best = Self::available().pop();
        best.unwrap_or(Self(Kind::Portable(Portable)))
    }

    /// How many of `inputs` share a tile of a product at most.
    pub(crate) fn tile_inputs(self, inputs: usize) -> usize {
        fn of<L: Lanes>(_: L, inputs: usize) -> usize {
            match inputs <= L::STREAM_INPUTS {
                true => L::STREAM_TILE_INPUTS,
                false => L::TILE_INPUTS,
            }
        }
        match self.0 {
            Kind::Portable(lanes) => of(lanes, inputs),
            #[cfg(target_arch = "x86_64")]
            Kind::Avx2(lanes) => of(lanes, inputs),
            #[cfg(target_arch = "x86_64")]
            Kind::Avx512(lanes) => of(lanes, inputs),
        }
    }

    /// Runs the version of `kernel` that is compiled for these instructions.
    pub(crate) fn run(self, kernel: impl Kernel) {
        fn with<L: Lanes>(lanes: L, kernel: impl Kernel) {
            lanes.run(
                #[inline(always)]
                || kernel.run(lanes),
            );
        }
        match self.0 {
            Kind::Portable(lanes) => with(lanes, kernel),
            #[cfg(target_arch = "x86_64")]
            Kind::Avx2(lanes) => with(lanes, kernel),
            #[cfg(target_arch = "x86_64")]
            Kind::Avx512(lanes) => with(lanes, kernel),
        }
    }
}

impl Default for Instructions {
    fn default() -> Self {
        Self::best()
    }
}

impl fmt::Display for Instructions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self.0 {
            Kind::Portable(_) => "portable",
            #[cfg(target_arch = "x86_64")]
            Kind::Avx2(_) => "avx2",
            #[cfg(target_arch = "x86_64")]
            Kind::Avx512(_) => "avx512",
        })
    }
}
