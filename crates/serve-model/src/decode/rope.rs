//! Rotary position embedding (Su et al., 2021) in the rotate-half form, with linear scaling (Chen et al.,
//! 2023), YaRN (Peng et al., ICLR 2024) and the Llama 3.1 scaling.
//!
//! Arithmetic is in f32 in the order in which transformers does it, since at large positions a
//! rounding of the frequency moves the angle visibly.

use std::f64::consts::PI;

use rayon::prelude::*;

use crate::config::{Rope, RopeScaling};

impl Rope {
    /// The angle of each pair of dimensions per position, and the factor on cos and sin.
    fn frequencies(&self, head_dim: usize) -> (Vec<f32>, f32) {
        let theta = self.theta as f32;
        let wave = |pair: usize| theta.powf((2 * pair) as f32 / head_dim as f32);
        let waves = (0..head_dim / 2).map(wave);
        match self.scaling {
            RopeScaling::None | RopeScaling::Dynamic { .. } => {
                (waves.map(|wave| 1.0 / wave).collect(), 1.0)
            }
            RopeScaling::Linear { factor } => {
                let factor = factor as f32;
                (waves.map(|wave| 1.0 / wave / factor).collect(), 1.0)
            }
            RopeScaling::Llama3 {
                factor,
                low_freq_factor,
                high_freq_factor,
                original_positions,
            } => {
                let original = original_positions as f64;
                let long = (original / low_freq_factor) as f32;
                let short = (original / high_freq_factor) as f32;
                let (original, factor) = (original as f32, factor as f32);
                let scaled = waves.map(|wave| {
                    let frequency = 1.0 / wave;
                    let wavelength = (2.0 * PI) as f32 / frequency;
                    if wavelength > long {
                        frequency / factor
                    } else if wavelength < short {
                        frequency
                    } else {
                        let smooth = (original / wavelength - low_freq_factor as f32)
                            / (high_freq_factor - low_freq_factor) as f32;
                        (1.0 - smooth) * frequency / factor + smooth * frequency
                    }
                });
                (scaled.collect(), 1.0)
            }
            RopeScaling::Yarn { factor, .. } => {
                let (low, high) = self.yarn_ramp(head_dim);
                let scaled = waves.enumerate().map(|(pair, wave)| {
                    let ramp = ((pair as f32 - low as f32) / (high - low) as f32).clamp(0.0, 1.0);
                    let kept = 1.0 - ramp;
                    let stretched = 1.0 / (factor as f32 * wave);
                    stretched * (1.0 - kept) + 1.0 / wave * kept
                });
                (scaled.collect(), self.yarn_attention_factor() as f32)
            }
        }
    }

    /// The first and the last pair of the ramp.
    fn yarn_ramp(&self, head_dim: usize) -> (f64, f64) {
        let RopeScaling::Yarn {
            beta_fast,
            beta_slow,
            truncate,
            original_positions,
            ..
        } = self.scaling
        else {
            return (0.0, 0.0);
        };
        let dim = head_dim as f64;
        let pair_of = |rotations: f64| {
            dim * (original_positions as f64 / (rotations * 2.0 * PI)).ln()
                / (2.0 * self.theta.ln())
        };
        let (mut low, mut high) = (pair_of(beta_fast), pair_of(beta_slow));
        if truncate {
            (low, high) = (low.floor(), high.ceil());
        }
        (low, high) = (low.max(0.0), high.min(dim - 1.0));
        if low == high {
            high += 0.001;
        }
        (low, high)
    }

    fn yarn_attention_factor(&self) -> f64 {
        let RopeScaling::Yarn {
            factor,
            attention_factor,
            mscale,
            mscale_all_dim,
            ..
        } = self.scaling
        else {
            return 1.0;
        };
        let scale = |mscale: f64| {
            if factor <= 1.0 {
                1.0
            } else {
                0.1 * mscale * factor.ln() + 1.0
            }
        };
        match (attention_factor, mscale, mscale_all_dim) {
            (Some(factor), _, _) => factor,
            (None, Some(mscale), Some(all_dim)) => scale(mscale) / scale(all_dim),
            _ => scale(1.0),
        }
    }
}

/// cos and sin of every position and pair of dimensions.
#[derive(Clone, Debug)]
pub struct RopeTable {
    pairs: usize,
    /// For each position all cosines, then all sines.
    angles: Vec<f32>,
}

impl RopeTable {
    /// A table for positions `0..positions`. O(positions x head_dim) time and memory.
    pub fn new(rope: &Rope, head_dim: usize, positions: u32) -> Self {
        let (frequencies, factor) = rope.frequencies(head_dim);
        let pairs = frequencies.len();
        let mut angles = vec![0.0; positions as usize * 2 * pairs];
        let rows = angles.par_chunks_mut((2 * pairs).max(1)).enumerate();
        rows.for_each(|(position, row)| {
            let (cos, sin) = row.split_at_mut(pairs);
            for ((cos, sin), frequency) in cos.iter_mut().zip(sin).zip(&frequencies) {
                let angle = position as f32 * frequency;
                (*cos, *sin) = (angle.cos() * factor, angle.sin() * factor);
            }
        });
        Self { pairs, angles }
    }

    /// For each position all cosines, then all sines: `[positions, head_dim]`.
    pub(crate) fn into_angles(self) -> Vec<f32> {
        self.angles
    }

    /// Rotates one head in place: dimension `i` pairs with `i + head_dim / 2`.
    pub fn rotate(&self, head: &mut [f32], position: u32) {
        let row = &self.angles[position as usize * 2 * self.pairs..][..2 * self.pairs];
        let (cos, sin) = row.split_at(self.pairs);
        let (low, high) = head.split_at_mut(self.pairs);
        for (((a, b), cos), sin) in low.iter_mut().zip(high).zip(cos).zip(sin) {
            (*a, *b) = (*a * cos - *b * sin, *b * cos + *a * sin);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rotation_keeps_lengths_and_depends_on_distance_alone() {
        let rope = Rope {
            theta: 10_000.0,
            scaling: RopeScaling::None,
        };
        let table = RopeTable::new(&rope, 8, 64);
        let at = |position| {
            let mut head = [1.0, -2.0, 0.5, 3.0, 0.25, -1.0, 2.0, 1.5];
            table.rotate(&mut head, position);
            head
        };
        let dot = |a: [f32; 8], b: [f32; 8]| a.iter().zip(b).map(|(a, b)| a * b).sum::<f32>();
        assert_eq!(at(0), [1.0, -2.0, 0.5, 3.0, 0.25, -1.0, 2.0, 1.5]);
        assert!((dot(at(9), at(9)) - dot(at(0), at(0))).abs() < 1e-4);
        assert!((dot(at(9), at(4)) - dot(at(45), at(40))).abs() < 1e-4);
        assert!((dot(at(9), at(4)) - dot(at(9), at(3))).abs() > 1e-2);
    }

    #[test]
    fn yarn_keeps_fast_pairs_and_stretches_slow_ones() {
        let scaling = RopeScaling::Yarn {
            factor: 4.0,
            attention_factor: None,
            mscale: None,
            mscale_all_dim: None,
            beta_fast: 32.0,
            beta_slow: 1.0,
            truncate: true,
            original_positions: 32_768,
        };
        let plain = Rope {
            theta: 1e6,
            scaling: RopeScaling::None,
        };
        let yarn = Rope {
            theta: 1e6,
            scaling,
        };
        let (plain, _) = plain.frequencies(128);
        let (scaled, factor) = yarn.frequencies(128);
        assert_eq!(scaled[0], plain[0]);
        assert!((scaled[63] * 4.0 / plain[63] - 1.0).abs() < 1e-6);
        assert!((factor - 1.138_629_4).abs() < 1e-6, "{factor}");
    }
}
