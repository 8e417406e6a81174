//! Writing a GGUF's tensors as one `model.safetensors` with Hugging Face's names and row order.
//!
//! The file is written by hand, in the order of its header, because a tensor at a time fits in
//! memory where the whole model as `f32` may not.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::Path;

use clap::ValueEnum;
use half::{bf16, f16};
use serde_json::{Map, Value, json};

use super::error::ConvertError;
use super::gguf::Gguf;

/// The type in which weights are stored.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum Dtype {
    /// bfloat16
    #[default]
    Bf16,
    /// IEEE half precision
    F16,
    /// IEEE single precision
    F32,
}

impl Dtype {
    /// The name in a `config.json`.
    pub(crate) fn torch_name(self) -> &'static str {
        match self {
            Self::Bf16 => "bfloat16",
            Self::F16 => "float16",
            Self::F32 => "float32",
        }
    }

    fn safetensors_name(self) -> &'static str {
        match self {
            Self::Bf16 => "BF16",
            Self::F16 => "F16",
            Self::F32 => "F32",
        }
    }

    fn bytes(self) -> u64 {
        match self {
            Self::Bf16 | Self::F16 => 2,
            Self::F32 => 4,
        }
    }

    /// The numbers in this type, little-endian, rounded to nearest even.
    fn encode(self, numbers: &[f32]) -> Vec<u8> {
        let each = numbers.iter();
        match self {
            Self::Bf16 => each
                .flat_map(|&x| bf16::from_f32(x).to_le_bytes())
                .collect(),
            Self::F16 => each.flat_map(|&x| f16::from_f32(x).to_le_bytes()).collect(),
            Self::F32 => each.flat_map(|x| x.to_le_bytes()).collect(),
        }
    }
}

/// GGUF's names outside the layers, and Hugging Face's.
const TOP: [(&str, &str); 3] = [
    ("token_embd", "model.embed_tokens"),
    ("output_norm", "model.norm"),
    ("output", "lm_head"),
];

/// GGUF's names inside a layer, and Hugging Face's.
const LAYER: [(&str, &str); 11] = [
    ("attn_norm", "input_layernorm"),
    ("ffn_norm", "post_attention_layernorm"),
    ("attn_q", "self_attn.q_proj"),
    ("attn_k", "self_attn.k_proj"),
    ("attn_v", "self_attn.v_proj"),
    ("attn_output", "self_attn.o_proj"),
    ("attn_q_norm", "self_attn.q_norm"),
    ("attn_k_norm", "self_attn.k_norm"),
    ("ffn_gate", "mlp.gate_proj"),
    ("ffn_up", "mlp.up_proj"),
    ("ffn_down", "mlp.down_proj"),
];

/// Embedding and output matrix count as one when their directions agree to this cosine.
const TIED_COSINE: f64 = 0.99;

/// Writes all weights to `path`. Returns whether input and output embeddings are one tensor.
pub(crate) fn write_weights(
    gguf: &Gguf,
    arch: &str,
    path: &Path,
    dtype: Dtype,
) -> Result<bool, ConvertError> {
    let (sources, tied) = sources(gguf)?;
    let heads = gguf.int(&format!("{arch}.attention.head_count"))?;
    let kv_heads = gguf
        .int(&format!("{arch}.attention.head_count_kv"))
        .unwrap_or(heads);
    let failed = |source: io::Error| ConvertError::write(path, source);
    let mut file = BufWriter::new(File::create(path).map_err(failed)?);
    let header = header(gguf, &sources, dtype)?;
    file.write_all(&header).map_err(failed)?;
    for (name, source) in &sources {
        let mut numbers = gguf.numbers(source)?;
        let rows = gguf.tensor(source)?.shape[0];
        // Only llama's own architecture has its rotary pairs interleaved in a GGUF.
        if arch == "llama" && name.contains(".q_proj.") {
            numbers = unpermute(&numbers, rows, heads);
        } else if arch == "llama" && name.contains(".k_proj.") {
            numbers = unpermute(&numbers, rows, kv_heads);
        }
        file.write_all(&dtype.encode(&numbers)).map_err(failed)?;
    }
    file.flush().map_err(failed)?;
    Ok(tied)
}

/// Hugging Face's name of each tensor with the GGUF tensor to take it from, and whether input and
/// output embeddings are tied.
///
/// Some GGUFs of models with tied embeddings store the one matrix twice, at two precisions. Then the
/// more precise copy (the output's) is taken for both, so that the folder is tied like the original.
fn sources(gguf: &Gguf) -> Result<(BTreeMap<String, String>, bool), ConvertError> {
    let mut sources = BTreeMap::new();
    for name in gguf
        .tensors()
        .keys()
        .filter(|name| *name != "rope_freqs.weight")
    {
        let hf = hf_name(name).ok_or_else(|| ConvertError::TensorName(name.clone()))?;
        sources.insert(hf, name.clone());
    }
    let (input, output) = ("token_embd.weight", "output.weight");
    if !gguf.tensors().contains_key(output) {
        return Ok((sources, true));
    }
    let tied = cosine(
        &gguf.first_rows(input, 512)?,
        &gguf.first_rows(output, 512)?,
    ) > TIED_COSINE;
    if tied {
        sources.remove("lm_head.weight");
        sources.insert("model.embed_tokens.weight".to_owned(), output.to_owned());
    }
    Ok((sources, tied))
}

/// `blk.3.attn_q.weight` -> `model.layers.3.self_attn.q_proj.weight`.
fn hf_name(name: &str) -> Option<String> {
    let (stem, suffix) = name.rsplit_once('.')?;
    let find = |table: &[(&str, &'static str)], key: &str| {
        table.iter().find(|row| row.0 == key).map(|row| row.1)
    };
    if let Some(rest) = stem.strip_prefix("blk.") {
        let (index, part) = rest.split_once('.')?;
        let part = find(&LAYER, part)?;
        return Some(format!("model.layers.{index}.{part}.{suffix}"));
    }
    Some(format!("{}.{suffix}", find(&TOP, stem)?))
}

/// The safetensors header with its length in front, padded to a multiple of eight.
fn header(
    gguf: &Gguf,
    sources: &BTreeMap<String, String>,
    dtype: Dtype,
) -> Result<Vec<u8>, ConvertError> {
    let mut entries = Map::new();
    entries.insert("__metadata__".to_owned(), json!({"format": "pt"}));
    let mut offset = 0;
    for (name, source) in sources {
        let shape = &gguf.tensor(source)?.shape;
        let end = offset + shape.iter().product::<u64>() * dtype.bytes();
        let entry = json!({
            "dtype": dtype.safetensors_name(), "shape": shape, "data_offsets": [offset, end],
        });
        entries.insert(name.clone(), entry);
        offset = end;
    }
    let mut text = Value::Object(entries).to_string().into_bytes();
    text.resize(text.len().next_multiple_of(8), b' ');
    let mut out = (text.len() as u64).to_le_bytes().to_vec();
    out.append(&mut text);
    Ok(out)
}

/// Undoes llama.cpp's row order of the q and k projections: interleaved rotary pairs become
/// half-split ones. Row `2 i + p` of a head goes to row `p * rows / 2 + i`.
fn unpermute(numbers: &[f32], rows: u64, heads: u64) -> Vec<f32> {
    let width = numbers.len() / rows as usize;
    let head_rows = (rows / heads) as usize;
    let mut out = Vec::with_capacity(numbers.len());
    for head in numbers.chunks_exact(head_rows * width) {
        for pair in 0..2 {
            for i in 0..head_rows / 2 {
                out.extend_from_slice(&head[(2 * i + pair) * width..][..width]);
            }
        }
    }
    out
}

fn cosine(a: &[f32], b: &[f32]) -> f64 {
    let dot = |a: &[f32], b: &[f32]| -> f64 {
        a.iter()
            .zip(b)
            .map(|(&x, &y)| f64::from(x) * f64::from(y))
            .sum()
    };
    dot(a, b) / (dot(a, a).sqrt() * dot(b, b).sqrt() + 1e-30)
}

#[cfg(test)]
mod tests {
    use super::super::fixture::{GgufWriter, TempDir};
    use super::*;

    #[test]
    fn names_are_translated_and_unknown_ones_are_not_guessed() {
        let hf = |name| hf_name(name);
        assert_eq!(
            hf("token_embd.weight").unwrap(),
            "model.embed_tokens.weight"
        );
        assert_eq!(
            hf("blk.11.attn_k.bias").unwrap(),
            "model.layers.11.self_attn.k_proj.bias"
        );
        assert_eq!(hf("blk.0.ssm_conv.weight"), None);
        assert_eq!(hf("v.patch_embd.weight"), None);
    }

    #[test]
    fn rotary_pairs_are_split_within_each_head() {
        // Two heads of four rows, one column: interleaved 0a 0b 1a 1b.
        let interleaved = [0.0, 10.0, 1.0, 11.0, 2.0, 12.0, 3.0, 13.0];
        let split = [0.0, 1.0, 10.0, 11.0, 2.0, 3.0, 12.0, 13.0];
        assert_eq!(unpermute(&interleaved, 8, 2), split);
    }

    #[test]
    fn rounding_is_to_nearest_even() {
        // 1 + 2^-8 lies halfway between two bfloat16 numbers; the even one is 1.
        let halfway = 1.0 + 2.0_f32.powi(-8);
        assert_eq!(
            Dtype::Bf16.encode(&[halfway]),
            bf16::from_f32(1.0).to_le_bytes()
        );
        assert_eq!(
            Dtype::F16.encode(&[halfway]),
            f16::from_f32(halfway).to_le_bytes()
        );
        assert_eq!(Dtype::F32.encode(&[halfway]), halfway.to_le_bytes());
    }

    fn model(output: &[f32]) -> GgufWriter {
        let mut writer = GgufWriter::default();
        writer.int("llama.attention.head_count", 1);
        writer.f32_tensor("token_embd.weight", &[2, 2], &[1.0, 2.0, 3.0, 4.0]);
        writer.f32_tensor("blk.0.attn_q.weight", &[4, 1], &[0.0, 10.0, 1.0, 11.0]);
        writer.f32_tensor("output.weight", &[2, 2], output);
        writer
    }

    fn written(name: &str, writer: &GgufWriter) -> (bool, Vec<u8>) {
        let dir = TempDir::new(name);
        let source = dir.path().join("a.gguf");
        std::fs::write(&source, writer.bytes()).unwrap();
        let target = dir.path().join("model.safetensors");
        let gguf = Gguf::open(&source).unwrap();
        let tied = write_weights(&gguf, "llama", &target, Dtype::F32).unwrap();
        (tied, std::fs::read(target).unwrap())
    }

    fn floats(file: &[u8], name: &str) -> Vec<f32> {
        let tensors = safetensors::SafeTensors::deserialize(file).unwrap();
        let raw = tensors.tensor(name).unwrap().data().to_vec();
        let (numbers, _) = raw.as_chunks::<4>();
        numbers.iter().map(|&x| f32::from_le_bytes(x)).collect()
    }

    #[test]
    fn the_safetensors_crate_reads_the_file_back() {
        let (tied, file) = written("weights-untied", &model(&[4.0, -3.0, 2.0, -1.0]));
        assert!(!tied);
        assert_eq!(floats(&file, "lm_head.weight"), [4.0, -3.0, 2.0, -1.0]);
        assert_eq!(
            floats(&file, "model.layers.0.self_attn.q_proj.weight"),
            [0.0, 1.0, 10.0, 11.0]
        );
    }

    #[test]
    fn one_matrix_stored_twice_is_written_once_from_the_more_precise_copy() {
        let precise = [1.01, 2.0, 3.0, 4.0];
        let (tied, file) = written("weights-tied", &model(&precise));
        assert!(tied);
        assert_eq!(floats(&file, "model.embed_tokens.weight"), precise);
        let tensors = safetensors::SafeTensors::deserialize(&file).unwrap();
        assert!(tensors.tensor("lm_head.weight").is_err());
    }
}
