//! Seeded random tensors of any shape: the work of a real model, with nothing learnt.
//!
//! An element depends on the seed, its tensor's name and its place alone, so all cores can fill one
//! tensor and every run has the same weights.

use std::collections::BTreeMap;

use rayon::prelude::*;
use serve_core::rng::{mix, mix2};

use super::error::WeightsError;
use super::listing::list;
use super::source::{StoredType, TensorSource};
use crate::config::ModelConfig;

/// Random weights in bf16.
///
/// Norms are 1. A matrix is uniform within ±1/√inputs and a bias within ±1/√hidden, as PyTorch
/// initialises a linear layer, so that activations stay finite at any depth.
#[derive(Debug)]
pub struct RandomWeights {
    shapes: BTreeMap<String, Vec<usize>>,
    hidden_size: usize,
    seed: u64,
}

impl RandomWeights {
    /// Weights for a model of this shape, fixed by `seed`.
    pub fn new(config: &ModelConfig, seed: u64) -> Self {
        let tensors = list(config).into_iter();
        Self {
            shapes: tensors.map(|tensor| (tensor.name, tensor.shape)).collect(),
            hidden_size: config.hidden_size,
            seed,
        }
    }

    fn shape(&self, tensor: &str) -> Result<&[usize], WeightsError> {
        let shape = self.shapes.get(tensor);
        shape
            .map(Vec::as_slice)
            .ok_or_else(|| WeightsError::Missing {
                tensor: tensor.to_owned(),
                files: vec![FILE.to_owned()],
            })
    }

    fn write<T: Send>(
        &self,
        tensor: &str,
        first: usize,
        out: &mut [T],
        convert: fn(u16) -> T,
    ) -> Result<(), WeightsError> {
        /// Elements that a core makes at once.
        const CHUNK: usize = 1 << 16;
        let shape = self.shape(tensor)?;
        if shape.iter().product::<usize>() < first + out.len() {
            return Err(shape_error(tensor, shape, first + out.len()));
        }
        if tensor.ends_with("norm.weight") {
            out.fill_with(|| convert(bf16_bits(1.0)));
            return Ok(());
        }
        let inputs = match shape {
            [_, inputs] => *inputs,
            _ => self.hidden_size,
        };
        let scale = 1.0 / (inputs as f32).sqrt() / 32_768.0;
        let key = tensor
            .bytes()
            .fold(self.seed, |key, byte| mix2(key, byte.into()));
        let chunks = out.par_chunks_mut(CHUNK).enumerate();
        chunks.for_each(|(index, out)| {
            let mut element = first + index * CHUNK;
            let mut rest = out;
            while !rest.is_empty() {
                // One draw makes four elements, of which the first may belong to who came before.
                let skipped = element % 4;
                let (out, tail) = rest.split_at_mut(rest.len().min(4 - skipped));
                let mut bits = mix(key ^ (element / 4) as u64) >> (16 * skipped);
                element += out.len();
                for out in out {
                    // The half keeps the range symmetric.
                    let number = f32::from(bits as i16) + 0.5;
                    *out = convert(bf16_bits(number * scale));
                    bits >>= 16;
                }
                rest = tail;
            }
        });
        Ok(())
    }
}

/// What stands for a file's name in an error.
const FILE: &str = "the random weights";

fn shape_error(tensor: &str, shape: &[usize], expected: usize) -> WeightsError {
    WeightsError::Shape {
        file: FILE.to_owned(),
        tensor: tensor.to_owned(),
        expected: vec![expected],
        found: shape.to_vec(),
    }
}

/// The nearest bf16 of a finite number; halves are rounded up.
fn bf16_bits(number: f32) -> u16 {
    ((number.to_bits() + 0x8000) >> 16) as u16
}

impl TensorSource for RandomWeights {
    fn fill(&self, tensor: &str, first: usize, out: &mut [f32]) -> Result<(), WeightsError> {
        self.write(tensor, first, out, |bits| {
            f32::from_bits(u32::from(bits) << 16)
        })
    }

    fn fill_bits(&self, tensor: &str, first: usize, out: &mut [u16]) -> Result<(), WeightsError> {
        self.write(tensor, first, out, |bits| bits)
    }

    fn stored(&self, tensor: &str, elements: usize) -> Result<StoredType, WeightsError> {
        let shape = self.shape(tensor)?;
        match shape.iter().product::<usize>() == elements {
            true => Ok(StoredType::Bf16),
            false => Err(shape_error(tensor, shape, elements)),
        }
    }

    fn stored_dtype(&self) -> &'static str {
        "bf16"
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const UP: &str = "model.layers.1.mlp.up_proj.weight";

    fn weights(seed: u64) -> (ModelConfig, RandomWeights) {
        let config = include_str!("../../models/austen-2m/config.json");
        let config = ModelConfig::parse(config).unwrap();
        let weights = RandomWeights::new(&config, seed);
        (config, weights)
    }

    fn bits(seed: u64, tensor: &str) -> Vec<u16> {
        let (_, weights) = weights(seed);
        let mut out = vec![0; weights.shape(tensor).unwrap().iter().product()];
        weights.fill_bits(tensor, 0, &mut out).unwrap();
        out
    }

    #[test]
    fn a_seed_fixes_all_random_weights() {
        assert_eq!(bits(1, UP), bits(1, UP));
        assert_ne!(bits(1, UP), bits(2, UP));
        assert_ne!(bits(1, UP), bits(1, "model.layers.2.mlp.up_proj.weight"));
    }

    #[test]
    fn random_weights_are_the_same_numbers_in_either_type() {
        let (_, weights) = weights(3);
        let bits = bits(3, UP);
        let mut wide = vec![0.0; bits.len()];
        weights.fill(UP, 0, &mut wide).unwrap();
        let widened = bits
            .iter()
            .map(|&bits| half::bf16::from_bits(bits).to_f32());
        assert!(widened.eq(wide));
    }

    #[test]
    fn a_part_of_a_tensor_has_the_numbers_of_the_whole() {
        let (_, weights) = weights(4);
        let all = bits(4, UP);
        for (first, count) in [(0, 3), (1, 2), (7, 100), (4_096, 1), (65_533, 9)] {
            let mut part = vec![0; count];
            weights.fill_bits(UP, first, &mut part).unwrap();
            assert_eq!(part, all[first..first + count]);
        }
        let beyond = weights.fill_bits(UP, all.len() - 1, &mut [0; 2]);
        assert!(matches!(beyond, Err(WeightsError::Shape { .. })));
    }

    #[test]
    fn random_weights_are_uniform_within_their_bound() {
        let (config, weights) = weights(5);
        let mut out = vec![0.0; config.intermediate_size * config.hidden_size];
        weights.fill(UP, 0, &mut out).unwrap();
        let bound = 1.0 / (config.hidden_size as f64).sqrt();
        let count = out.len() as f64;
        let out: Vec<f64> = out.into_iter().map(f64::from).collect();
        let largest = out.iter().fold(0.0_f64, |max, x| max.max(x.abs()));
        // bf16 keeps eight bits, and rounding may go beyond the bound by half of the last.
        assert!(largest <= bound * (1.0 + 1.0 / 256.0), "{largest}");
        let mean = out.iter().sum::<f64>() / count;
        assert!(mean.abs() < 0.01 * bound, "{mean}");
        let variance = out.iter().map(|x| x * x).sum::<f64>() / count;
        assert!(
            (variance / (bound * bound / 3.0) - 1.0).abs() < 0.02,
            "{variance}"
        );
    }

    #[test]
    fn random_norms_are_one_and_other_tensors_are_refused() {
        let (config, weights) = weights(7);
        let mut norm = vec![0.0; config.hidden_size];
        weights.fill("model.norm.weight", 0, &mut norm).unwrap();
        assert!(norm.iter().all(|&x| x == 1.0));
        let missing = weights.fill("lm_head.weight", 0, &mut norm).unwrap_err();
        assert!(missing.to_string().contains("lm_head.weight is missing"));
        let shape = weights.stored(UP, norm.len()).unwrap_err();
        assert!(
            shape.to_string().contains("has shape [512, 192]"),
            "{shape}"
        );
    }
}
