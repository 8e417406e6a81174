//! candle's two Qwen2 models behind one set of calls: the plain one for f32 and bf16, the quantised one
//! for GGUF files.

use std::fs::File;
use std::io::BufReader;
use std::path::Path;

use candle_core::quantized::gguf_file::Content;
use candle_core::{D, DType, Device, Tensor};
use candle_nn::VarBuilder;
use candle_transformers::models::{quantized_qwen2, qwen2};
use clap::ValueEnum;

use crate::Outcome;
use crate::shape;

/// In what the weights are kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Weights {
    /// Widened when they are loaded.
    F32,
    /// As they are.
    Bf16,
    /// GGUF's q8_0.
    Q8,
    /// GGUF's q4_0, with the head in q8_0.
    Q4,
}

impl Weights {
    /// The name of their GGUF file.
    pub(crate) fn file(self) -> &'static str {
        match self {
            Self::F32 | Self::Bf16 => "bf16.gguf",
            Self::Q8 => "q8.gguf",
            Self::Q4 => "q4.gguf",
        }
    }
}

enum Model {
    Plain(qwen2::ModelForCausalLM),
    Quantized(quantized_qwen2::ModelWeights),
}

/// A model and where its sequences stand. All of a batch have the same length.
pub(crate) struct Engine {
    model: Model,
    /// Of all tensors, in bytes.
    pub(crate) weights_bytes: usize,
    position: usize,
}

impl Engine {
    pub(crate) fn load(folder: &Path, weights: Weights) -> Outcome<Self> {
        let dtype = match weights {
            Weights::F32 => DType::F32,
            Weights::Bf16 => DType::BF16,
            Weights::Q8 | Weights::Q4 => return Self::quantized(&folder.join(weights.file())),
        };
        let config = shape::parse(&std::fs::read_to_string(folder.join("config.json"))?)?;
        let parameters: usize = shape::entries(&config)
            .iter()
            .map(|entry| entry.len())
            .sum();
        let tensors =
            candle_core::safetensors::load(folder.join("model.safetensors"), &Device::Cpu)?;
        let builder = VarBuilder::from_tensors(tensors, dtype, &Device::Cpu);
        Ok(Self {
            model: Model::Plain(qwen2::ModelForCausalLM::new(&config, builder)?),
            weights_bytes: parameters * dtype.size_in_bytes(),
            position: 0,
        })
    }

    fn quantized(path: &Path) -> Outcome<Self> {
        let mut file = BufReader::new(File::open(path)?);
        let content = Content::read(&mut file)?;
        let bytes = content.tensor_infos.values().map(|info| {
            let kind = info.ggml_dtype;
            info.shape.elem_count() / kind.block_size() * kind.type_size()
        });
        let weights_bytes = bytes.sum();
        let model = quantized_qwen2::ModelWeights::from_gguf(content, &mut file, &Device::Cpu)?;
        Ok(Self {
            model: Model::Quantized(model),
            weights_bytes,
            position: 0,
        })
    }

    /// Forgets all sequences.
    pub(crate) fn clear(&mut self) {
        self.position = 0;
        match &mut self.model {
            Model::Plain(model) => model.clear_kv_cache(),
            Model::Quantized(model) => model.clear_kv_cache(),
        }
    }

    /// Runs the prompts of a batch, all of one length, and returns the likeliest tokens that follow.
    pub(crate) fn prompts(&mut self, prompts: &[Vec<u32>]) -> Outcome<Vec<u32>> {
        // The quantised model refuses several prompts of more than one token: what it takes the last
        // positions from is not contiguous.
        if matches!(self.model, Model::Plain(_)) || prompts.len() == 1 {
            return self.step(prompts);
        }
        let mut next = Vec::new();
        for position in 0..prompts.first().map_or(0, Vec::len) {
            let column = prompts.iter().map(|prompt| vec![prompt[position]]);
            next = self.step(&column.collect::<Vec<_>>())?;
        }
        Ok(next)
    }

    /// Runs the next tokens of each sequence, as many of each, and returns the likeliest that follow.
    pub(crate) fn step(&mut self, tokens: &[Vec<u32>]) -> Outcome<Vec<u32>> {
        Ok(self.forward(tokens)?.argmax(D::Minus1)?.to_vec1()?)
    }

    /// Runs the next tokens of each sequence, as many of each, and returns the logits after them.
    pub(crate) fn logits(&mut self, tokens: &[Vec<u32>]) -> Outcome<Vec<Vec<f32>>> {
        let logits = self.forward(tokens)?.to_dtype(DType::F32)?;
        Ok(logits.to_vec2()?)
    }

    /// `[sequences, vocabulary]`
    fn forward(&mut self, tokens: &[Vec<u32>]) -> Outcome<Tensor> {
        let length = tokens.first().map_or(0, Vec::len);
        let flat = tokens.concat();
        let input = Tensor::from_vec(flat, (tokens.len(), length), &Device::Cpu)?;
        let position = self.position;
        self.position += length;
        Ok(match &mut self.model {
            Model::Plain(model) => model.forward(&input, position)?.squeeze(1)?,
            Model::Quantized(model) => model.forward(&input, position)?,
        })
    }
}
