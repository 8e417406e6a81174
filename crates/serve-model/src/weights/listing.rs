//! The tensors of a model of some shape, listed by the walk that loads them.

use std::convert::Infallible;

use super::error::WeightsError;
use super::source::TensorSource;
use super::tree::{DecoderWeights, Part, Role, Visitor};
use crate::config::ModelConfig;

/// A tensor that a model has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Listed {
    /// Its name in a checkpoint.
    pub(crate) name: String,
    /// What a matrix is for; a vector has none.
    pub(crate) role: Option<Role>,
    /// Rows first.
    pub(crate) shape: Vec<usize>,
}

impl Listed {
    /// How many numbers it has.
    pub(crate) fn elements(&self) -> usize {
        self.shape.iter().product()
    }
}

/// Every tensor of a model of this shape, in the order in which a decoder uses them.
pub(crate) fn list(config: &ModelConfig) -> Vec<Listed> {
    let mut list = List(Vec::new());
    let Ok(_) = DecoderWeights::visit(config, &mut list);
    list.0
}

/// Trainable numbers of a model of this shape; a tied output projection counts once.
pub fn parameters(config: &ModelConfig) -> u64 {
    let all = list(config);
    all.iter().map(|tensor| tensor.elements() as u64).sum()
}

/// What is read of the tensors of a model of this shape, as they are stored.
pub(crate) fn stored_bytes(
    source: &dyn TensorSource,
    config: &ModelConfig,
) -> Result<u64, WeightsError> {
    let mut bytes = 0;
    for tensor in list(config) {
        let elements = tensor.elements();
        bytes += (elements * source.stored(&tensor.name, elements)?.bytes()) as u64;
    }
    Ok(bytes)
}

/// Remembers what it is shown.
struct List(Vec<Listed>);

impl List {
    fn add(&mut self, name: &str, role: Option<Role>, shape: Vec<usize>) {
        let name = name.to_owned();
        self.0.push(Listed { name, role, shape });
    }
}

impl Visitor for List {
    type Matrix = ();
    type Vector = ();
    type Error = Infallible;

    fn matrix(&mut self, role: Role, parts: &[Part], columns: usize) -> Result<(), Infallible> {
        for (name, rows) in parts {
            self.add(name, Some(role), vec![*rows, columns]);
        }
        Ok(())
    }

    fn vector(&mut self, parts: &[Part]) -> Result<(), Infallible> {
        for (name, elements) in parts {
            self.add(name, None, vec![*elements]);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Shape;

    #[test]
    fn a_model_has_as_many_parameters_as_its_checkpoint_has_elements() {
        let config = include_str!("../../tests/fixtures/tiny-qwen2/config.json");
        let config = ModelConfig::parse(config).unwrap();
        assert_eq!(parameters(&config), 136_000);
    }

    #[test]
    fn random_shapes_have_as_many_parameters_as_the_published_models() {
        let counted = Shape::ALL.map(|shape| {
            let config = ModelConfig::parse(shape.config).unwrap();
            (shape.name, parameters(&config))
        });
        let published = [
            ("qwen2.5-0.5b", 494_032_768),
            ("qwen2.5-1.5b", 1_543_714_304),
            ("qwen2.5-7b", 7_615_616_512),
            ("qwen3-0.6b", 596_049_920),
        ];
        assert_eq!(counted, published);
    }
}
