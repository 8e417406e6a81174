//! What the factors of a product are while they are multiplied: f32 as they are, or rounded to
//! bfloat16.
//!
//! A product of two bfloat16 numbers is exact in f32, and sums stay in f32. So rounded factors give
//! the same bits whether a processor multiplies them one by one or in pairs; only numbers below
//! 1e-38 may be taken for zero.

use super::block::Widened;
use super::lanes::{Dot, LANES, Lanes};
use super::packed::{Form, Lines, Packed};
use super::stored::{STEP, Stored, halves};

/// How weights and inputs are multiplied, a step of a row with the same step of an input at a time.
pub(crate) trait Factors<L: Lanes> {
    /// How inputs are packed.
    const FORM: Form;
    /// Inputs up to which weights stream through, widened for each tile anew.
    const STREAM_INPUTS: usize;
    /// Inputs of a tile through which weights stream; 4 at most.
    const STREAM_TILE_INPUTS: usize;

    /// What they are once weights are widened.
    type Widened: Steps<L>;
    /// A step of weights, in registers.
    type Weights: Copy;
    /// What of it meets the sums at once.
    type Unit: Copy;

    /// The weights, if they need no widening.
    fn as_widened<W: Stored>(weights: &[W::Step]) -> Option<&[Step<L, Self>]>;

    fn zero(lanes: L) -> Self::Weights;

    fn load<W: Stored>(lanes: L, step: &W::Step) -> Self::Weights;

    fn store(lanes: L, weights: Self::Weights, out: &mut Step<L, Self>);

    fn unit(weights: Self::Weights, unit: usize) -> Self::Unit;

    fn input(lanes: L, step: &Step<L, Self>, unit: usize) -> Self::Unit;

    /// The sums and one product more in each lane; a pair of bfloat16 numbers has two.
    fn add(lanes: L, w: Self::Unit, x: Self::Unit, sums: L::Vector) -> L::Vector;
}

/// A step of packed inputs, or of widened weights.
pub(crate) type Step<L, F> = <<F as Factors<L>>::Widened as Steps<L>>::Step;

/// How packed inputs meet widened weights.
pub(crate) trait Steps<L: Lanes> {
    /// Units of a step, each of [`LANES`] lanes.
    const UNITS: usize;
    /// Inputs of a tile: with its four rows, as many sums as there are registers for.
    const TILE_INPUTS: usize;

    /// A step of inputs, or of weights.
    type Step: Copy;
    /// What of a unit is in one register.
    type Register: Copy;

    /// The steps of all inputs.
    fn packed(x: &Packed) -> &[Lines<Self::Step>];

    /// Room for widened weights.
    fn room(widened: &mut Widened) -> &mut [Self::Step];

    fn part(lanes: L, step: &Self::Step, unit: usize, part: usize) -> Self::Register;

    /// As [`Factors::add`] does it.
    fn add_part(lanes: L, w: Self::Register, x: Self::Register, sums: L::Register) -> L::Register;
}

/// Numbers of 32 bits.
pub(crate) struct Wide;

impl<L: Lanes> Factors<L> for Wide {
    const FORM: Form = Form::Wide;
    const STREAM_INPUTS: usize = L::STREAM_INPUTS;
    const STREAM_TILE_INPUTS: usize = L::STREAM_TILE_INPUTS;

    type Widened = Self;
    type Weights = [L::Vector; 2];
    type Unit = L::Vector;

    #[inline(always)]
    fn as_widened<W: Stored>(weights: &[W::Step]) -> Option<&[[f32; STEP]]> {
        W::as_f32(weights)
    }

    #[inline(always)]
    fn zero(lanes: L) -> Self::Weights {
        [lanes.splat(0.0); 2]
    }

    #[inline(always)]
    fn load<W: Stored>(lanes: L, step: &W::Step) -> Self::Weights {
        W::load(lanes, step)
    }

    #[inline(always)]
    fn store(lanes: L, [first, second]: Self::Weights, out: &mut [f32; STEP]) {
        let [out_first, out_second] = out.as_chunks_mut::<LANES>().0 else {
            unreachable!("a step is two vectors")
        };
        lanes.store(first, out_first);
        lanes.store(second, out_second);
    }

    #[inline(always)]
    fn unit(weights: Self::Weights, unit: usize) -> L::Vector {
        weights[unit]
    }

    #[inline(always)]
    fn input(lanes: L, step: &[f32; STEP], unit: usize) -> L::Vector {
        lanes.load(halves(step)[unit])
    }

    #[inline(always)]
    fn add(lanes: L, w: L::Vector, x: L::Vector, sums: L::Vector) -> L::Vector {
        lanes.multiply_add(w, x, sums)
    }
}

impl<L: Lanes> Steps<L> for Wide {
    const UNITS: usize = 2;
    const TILE_INPUTS: usize = L::TILE_INPUTS;

    type Step = [f32; STEP];
    type Register = L::Register;

    #[inline(always)]
    fn packed(x: &Packed) -> &[Lines<[f32; STEP]>] {
        x.wide()
    }

    #[inline(always)]
    fn room(widened: &mut Widened) -> &mut [[f32; STEP]] {
        &mut widened.wide
    }

    #[inline(always)]
    fn part(lanes: L, step: &[f32; STEP], unit: usize, part: usize) -> L::Register {
        lanes.load_part(halves(step)[unit], part)
    }

    #[inline(always)]
    fn add_part(lanes: L, w: L::Register, x: L::Register, sums: L::Register) -> L::Register {
        lanes.multiply_add_part(w, x, sums)
    }
}

/// Numbers of 32 bits, rounded to bfloat16.
pub(crate) struct Rounded;

impl<L: Lanes> Factors<L> for Rounded {
    const FORM: Form = Form::Rounded;
    const STREAM_INPUTS: usize = L::STREAM_INPUTS;
    const STREAM_TILE_INPUTS: usize = L::STREAM_TILE_INPUTS;

    type Widened = Wide;
    type Weights = [L::Vector; 2];
    type Unit = L::Vector;

    #[inline(always)]
    fn as_widened<W: Stored>(_: &[W::Step]) -> Option<&[[f32; STEP]]> {
        None
    }

    #[inline(always)]
    fn zero(lanes: L) -> Self::Weights {
        Wide::zero(lanes)
    }

    #[inline(always)]
    fn load<W: Stored>(lanes: L, step: &W::Step) -> Self::Weights {
        W::load_rounded(lanes, step)
    }

    #[inline(always)]
    fn store(lanes: L, weights: Self::Weights, out: &mut [f32; STEP]) {
        Wide::store(lanes, weights, out);
    }

    #[inline(always)]
    fn unit(weights: Self::Weights, unit: usize) -> L::Vector {
        weights[unit]
    }

    #[inline(always)]
    fn input(lanes: L, step: &[f32; STEP], unit: usize) -> L::Vector {
        <Wide as Factors<L>>::input(lanes, step, unit)
    }

    #[inline(always)]
    fn add(lanes: L, w: L::Vector, x: L::Vector, sums: L::Vector) -> L::Vector {
        lanes.multiply_add(w, x, sums)
    }
}

/// Pairs of bfloat16 numbers, for processors that multiply those.
pub(crate) struct Pairs;

impl<L: Dot> Factors<L> for Pairs {
    const FORM: Form = Form::Pairs;
    const STREAM_INPUTS: usize = 4;
    const STREAM_TILE_INPUTS: usize = 4;

    type Widened = Self;
    type Weights = L::Pairs;
    type Unit = L::Pairs;

    #[inline(always)]
    fn as_widened<W: Stored>(weights: &[W::Step]) -> Option<&[[u16; STEP]]> {
        W::as_pairs(weights)
    }

    #[inline(always)]
    fn zero(lanes: L) -> L::Pairs {
        lanes.load_pairs(&[0; STEP])
    }

    #[inline(always)]
    fn load<W: Stored>(lanes: L, step: &W::Step) -> L::Pairs {
        W::pairs(lanes, step)
    }

    #[inline(always)]
    fn store(lanes: L, weights: L::Pairs, out: &mut [u16; STEP]) {
        lanes.store_pairs(weights, out);
    }

    #[inline(always)]
    fn unit(weights: L::Pairs, _: usize) -> L::Pairs {
        weights
    }

    #[inline(always)]
    fn input(lanes: L, step: &[u16; STEP], _: usize) -> L::Pairs {
        lanes.load_pairs(step)
    }

    #[inline(always)]
    fn add(lanes: L, w: L::Pairs, x: L::Pairs, sums: L::Vector) -> L::Vector {
        lanes.dot(w, x, sums)
    }
}

impl<L: Dot> Steps<L> for Pairs {
    const UNITS: usize = 1;
    const TILE_INPUTS: usize = L::TILE_INPUTS;

    type Step = [u16; STEP];
    type Register = L::Pairs;

    #[inline(always)]
    fn packed(x: &Packed) -> &[Lines<[u16; STEP]>] {
        x.pairs()
    }

    #[inline(always)]
    fn room(widened: &mut Widened) -> &mut [[u16; STEP]] {
        &mut widened.pairs
    }

    #[inline(always)]
    fn part(lanes: L, step: &[u16; STEP], _: usize, _: usize) -> L::Pairs {
        lanes.load_pairs(step)
    }

    #[inline(always)]
    fn add_part(lanes: L, w: L::Pairs, x: L::Pairs, sums: L::Register) -> L::Register {
        lanes.dot_part(w, x, sums)
    }
}
