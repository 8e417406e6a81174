//! Random weights, written once for every engine: the same numbers in each file, rounded to its type.

use std::collections::HashMap;
use std::fs::File;
use std::io::BufWriter;
use std::path::Path;

use candle_core::quantized::gguf_file::{self, Value};
use candle_core::quantized::{GgmlDType, QTensor};
use candle_core::{DType, Device, Tensor};
use candle_transformers::models::qwen2::Config;
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use serde_json::json;

use crate::Outcome;
use crate::engine::{Engine, Weights};
use crate::shape::{self, Entry};

/// Tokens whose logits are kept as the reference.
const PROMPT: std::ops::RangeInclusive<u32> = 1..=16;

/// Writes every file of the comparison beside `config.json`.
pub(crate) fn prepare(folder: &Path) -> Outcome {
    let config = shape::parse(&std::fs::read_to_string(folder.join("config.json"))?)?;
    let entries = shape::entries(&config);
    let mut tensors = HashMap::new();
    for (seed, entry) in (1..).zip(&entries) {
        let tensor = random(entry, config.hidden_size, seed)?;
        tensors.insert(entry.name.clone(), tensor);
    }
    candle_core::safetensors::save(&tensors, folder.join("model.safetensors"))?;
    for weights in [Weights::Bf16, Weights::Q8, Weights::Q4] {
        gguf(&config, &entries, &tensors, weights, folder)?;
    }
    golden(folder)
}

/// A matrix is uniform within 1/sqrt(inputs), a bias within 1/sqrt(hidden), as PyTorch initialises a
/// linear layer; norms are 1. In bf16.
fn random(entry: &Entry, hidden: usize, seed: u64) -> Outcome<Tensor> {
    let numbers = if entry.name.ends_with("norm.weight") {
        vec![1.0; entry.len()]
    } else {
        let inputs = match entry.dims[..] {
            [_, inputs] => inputs,
            _ => hidden,
        };
        let bound = 1.0 / (inputs as f32).sqrt();
        let mut rng = SmallRng::seed_from_u64(seed);
        let draw = |_| (rng.random::<f32>() * 2.0 - 1.0) * bound;
        (0..entry.len()).map(draw).collect::<Vec<f32>>()
    };
    let tensor = Tensor::from_vec(numbers, entry.dims.as_slice(), &Device::Cpu)?;
    Ok(tensor.to_dtype(DType::BF16)?)
}

/// One GGUF file. Norms and biases are f32 in it, and the head of a q4_0 file is q8_0, as
/// llama.cpp's own quantiser leaves them for rows such as Qwen2.5-0.5B's.
fn gguf(
    config: &Config,
    entries: &[Entry],
    tensors: &HashMap<String, Tensor>,
    weights: Weights,
    folder: &Path,
) -> Outcome {
    let mut made = Vec::new();
    for entry in entries {
        let kind = match (weights, entry.dims.len()) {
            (_, 1) => GgmlDType::F32,
            (Weights::Q4, _) if entry.is_head() => GgmlDType::Q8_0,
            (Weights::Q4, _) => GgmlDType::Q4_0,
            (Weights::Q8, _) => GgmlDType::Q8_0,
            (Weights::Bf16 | Weights::F32, _) => GgmlDType::BF16,
        };
        let wide = tensors[&entry.name].to_dtype(DType::F32)?;
        made.push((entry.gguf.as_str(), QTensor::quantize(&wide, kind)?));
    }
    let number = |value: usize| Value::U32(value as u32);
    let text = |value: &str| Value::String(value.to_owned());
    let metadata = [
        ("general.architecture", text("qwen2")),
        ("general.name", text("random weights")),
        ("qwen2.block_count", number(config.num_hidden_layers)),
        (
            "qwen2.context_length",
            number(config.max_position_embeddings),
        ),
        ("qwen2.embedding_length", number(config.hidden_size)),
        (
            "qwen2.feed_forward_length",
            number(config.intermediate_size),
        ),
        (
            "qwen2.attention.head_count",
            number(config.num_attention_heads),
        ),
        (
            "qwen2.attention.head_count_kv",
            number(config.num_key_value_heads),
        ),
        (
            "qwen2.attention.layer_norm_rms_epsilon",
            Value::F32(config.rms_norm_eps as f32),
        ),
        ("qwen2.rope.freq_base", Value::F32(config.rope_theta as f32)),
        ("qwen2.vocab_size", number(config.vocab_size)),
        ("tokenizer.ggml.model", text("no_vocab")),
    ];
    let metadata = metadata.each_ref().map(|(key, value)| (*key, value));
    let tensors = made.iter().map(|(name, tensor)| (*name, tensor));
    let tensors = tensors.collect::<Vec<_>>();
    let mut file = BufWriter::new(File::create(folder.join(weights.file()))?);
    Ok(gguf_file::write(&mut file, &metadata, &tensors)?)
}

/// What candle computes in f32 from a short prompt: the reference of the other engines.
fn golden(folder: &Path) -> Outcome {
    let mut engine = Engine::load(folder, Weights::F32)?;
    let prompt = PROMPT.collect::<Vec<u32>>();
    let logits = engine.logits(std::slice::from_ref(&prompt))?;
    let case = json!({ "name": "random weights", "ids": prompt, "last_logits": logits[0] });
    let file = File::create(folder.join("golden.json"))?;
    Ok(serde_json::to_writer(
        BufWriter::new(file),
        &json!({ "cases": [case] }),
    )?)
}
