//! Seeded randomness: a counter-based hash and a small generator, both pure functions of their seed.
//!
//! Sampling, the mock's tokens, its faults and the simulator's arrivals all draw from here, so a
//! seed fixes a run to the bit on every machine. Not for secrets.

/// The finaliser of SplitMix64 (Steele, Lea and Flood, *Fast Splittable Pseudorandom Number
/// Generators*, OOPSLA 2014): a bijection on 64 bits that passes avalanche tests.
pub const fn mix(mut z: u64) -> u64 {
    z = z.wrapping_add(0x9E37_79B9_7F4A_7C15);
    z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ (z >> 31)
}

/// A hash of two numbers: the same two give the same answer, whatever else was drawn in between.
pub const fn mix2(a: u64, b: u64) -> u64 {
    mix(mix(a) ^ b)
}

/// Maps 64 random bits to a float in `[0, 1)` with 53 bits of resolution.
pub const fn unit_f64(bits: u64) -> f64 {
    (bits >> 11) as f64 / (1_u64 << 53) as f64
}

/// A SplitMix64 stream.
#[derive(Clone, Debug)]
pub struct Rng {
    state: u64,
}

impl Rng {
    /// A stream that is fixed by `seed`.
    pub const fn new(seed: u64) -> Self {
        Self { state: seed }
    }

    /// The next 64 random bits.
    pub const fn next_u64(&mut self) -> u64 {
        let out = mix(self.state);
        self.state = self.state.wrapping_add(0x9E37_79B9_7F4A_7C15);
        out
    }

    /// A float in `[0, 1)`.
    pub const fn next_f64(&mut self) -> f64 {
        unit_f64(self.next_u64())
    }

    /// A number in `0..bound`, by multiply-shift; the bias is below `bound / 2^64`.
    ///
    /// # Panics
    ///
    /// When `bound` is zero.
    pub const fn below(&mut self, bound: u64) -> u64 {
        assert!(bound > 0, "an empty range has no element to draw");
        ((self.next_u64() as u128 * bound as u128) >> 64) as u64
    }

    /// An exponentially distributed float with the given mean (inverse transform).
    pub fn exponential(&mut self, mean: f64) -> f64 {
        -mean * (1.0 - self.next_f64()).ln()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_stream_is_the_published_one() {
        // First outputs of SplitMix64 with seed 0 in the authors' reference code.
        let mut rng = Rng::new(0);
        assert_eq!(rng.next_u64(), 0xE220_A839_7B1D_CDAF);
        assert_eq!(rng.next_u64(), 0x6E78_9E6A_A1B9_65F4);
    }

    #[test]
    fn exponential_has_its_mean() {
        let mut rng = Rng::new(7);
        let n = 200_000;
        let mean = (0..n).map(|_| rng.exponential(3.0)).sum::<f64>() / f64::from(n);
        assert!((mean - 3.0).abs() < 0.05, "{mean}");
    }

    #[test]
    fn below_covers_its_range_and_nothing_else() {
        let mut rng = Rng::new(1);
        let mut seen = [0; 5];
        for _ in 0..5_000 {
            seen[rng.below(5) as usize] += 1;
        }
        assert!(seen.iter().all(|&n| n > 850), "{seen:?}");
    }
}
