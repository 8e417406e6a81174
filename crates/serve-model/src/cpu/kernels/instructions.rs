//! Which instructions this processor has, and a kernel's way to the version that is compiled for them.

use std::fmt;

use super::dots::Dots;
use super::lanes::{Lanes, Portable};
use super::packed::{Form, Layout};
#[cfg(target_arch = "x86_64")]
use super::x86;
use crate::numbers::Precision;

/// Instructions of this processor that the kernels can use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Instructions(Kind);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Portable(Portable),
    #[cfg(target_arch = "x86_64")]
    Avx2(x86::Avx2),
    #[cfg(target_arch = "x86_64")]
    Avx512(x86::Avx512<x86::Plain>),
    #[cfg(target_arch = "x86_64")]
    Avx512Bf16(x86::Avx512<x86::Bf16Dot>),
}

/// Work that is compiled for each kind of processor.
pub(crate) trait Kernel {
    /// Does the work. What it calls must be inlined to be compiled with it.
    fn run<L: Dots>(self, lanes: L);
}

impl Instructions {
    /// All that this processor has, the fastest last.
    pub fn available() -> Vec<Self> {
        let portable = Some(Kind::Portable(Portable));
        #[cfg(target_arch = "x86_64")]
        let all = [
            portable,
            x86::Avx2::detect().map(Kind::Avx2),
            x86::Avx512::<x86::Plain>::detect().map(Kind::Avx512),
            x86::Avx512::<x86::Bf16Dot>::detect().map(Kind::Avx512Bf16),
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

    /// How inputs are packed for products whose factors have this precision.
    pub(crate) fn layout(self, precision: Precision) -> Layout {
        fn tile_max<L: Lanes>(_: L) -> usize {
            L::TILE_INPUTS
        }
        Layout {
            form: match precision {
                Precision::F32 => Form::Wide,
                Precision::Bf16 => Form::Pairs,
                Precision::Int8 => Form::Octets,
            },
            tile_max: match self.0 {
                Kind::Portable(lanes) => tile_max(lanes),
                #[cfg(target_arch = "x86_64")]
                Kind::Avx2(lanes) => tile_max(lanes),
                #[cfg(target_arch = "x86_64")]
                Kind::Avx512(lanes) => tile_max(lanes),
                #[cfg(target_arch = "x86_64")]
                Kind::Avx512Bf16(lanes) => tile_max(lanes),
            },
        }
    }

    /// Runs the version of `kernel` that is compiled for these instructions.
    pub(crate) fn run(self, kernel: impl Kernel) {
        fn with<L: Dots>(lanes: L, kernel: impl Kernel) {
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
            #[cfg(target_arch = "x86_64")]
            Kind::Avx512Bf16(lanes) => with(lanes, kernel),
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
            #[cfg(target_arch = "x86_64")]
            Kind::Avx512Bf16(_) => "avx512-bf16",
        })
    }
}
