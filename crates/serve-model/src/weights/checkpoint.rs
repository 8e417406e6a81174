//! The tensors of a checkpoint: safetensors files, one or several, or bytes inside the binary; and
//! [`RandomWeights`], for want of one.
//!
//! Opening reads headers only. Tensors are then read by all cores, as they are stored or widened to `f32`,
//! some rows at a time if their device wants them so. A file that shrinks meanwhile is a read error, where
//! a memory map would be a bus error.

mod error;
mod header;
mod random;
mod rows;
mod tree;

use std::collections::BTreeMap;
use std::fmt;
use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};

use rayon::prelude::*;
use safetensors::Dtype;

use crate::config::ModelConfig;
use crate::kernels::{Kept, Precision, Quantization};

pub use error::WeightsError;
use header::Entry;
pub use random::RandomWeights;
pub use rows::Rows;
pub use tree::{DecoderWeights, HeadNorms, LayerWeights, Place, Projection, Role};

/// Where a decoder's tensors come from: a checkpoint, or anything else that can fill a buffer.
pub trait TensorSource: fmt::Debug + Sync {
    /// Writes elements of the named tensor, row by row, from number `first` on, over `out`.
    ///
    /// # Errors
    ///
    /// [`WeightsError`] when the tensor is not there, has no such elements, or cannot be read.
    fn fill(&self, tensor: &str, first: usize, out: &mut [f32]) -> Result<(), WeightsError>;

    /// Writes the bits of elements of the named tensor, which is stored in 16 bits, from number `first`
    /// on, over `out`.
    ///
    /// # Errors
    ///
    /// [`WeightsError`] as for [`TensorSource::fill`], and when the tensor is stored otherwise.
    fn fill_bits(&self, tensor: &str, first: usize, out: &mut [u16]) -> Result<(), WeightsError>;

    /// How the elements of one tensor are stored, of which there are so many.
    ///
    /// # Errors
    ///
    /// [`WeightsError`] when the tensor is not there, has more or fewer elements or a type that cannot be
    /// read.
    fn stored(&self, tensor: &str, elements: usize) -> Result<StoredType, WeightsError>;

    /// How the elements of all tensors are stored: `bf16`, `f16`, `f32`, or `mixed`.
    fn stored_dtype(&self) -> &'static str;
}

/// A type in which a tensor is stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StoredType {
    /// 32 bits.
    F32,
    /// Half precision.
    F16,
    /// bfloat16.
    Bf16,
}

impl StoredType {
    /// Bytes of an element.
    pub fn bytes(self) -> usize {
        match self {
            Self::F32 => size_of::<f32>(),
            Self::F16 | Self::Bf16 => size_of::<u16>(),
        }
    }
}

/// The tensors of safetensors files.
#[derive(Debug)]
pub struct Checkpoint {
    files: Vec<TensorFile>,
    tensors: BTreeMap<String, Entry>,
}

#[derive(Debug)]
struct TensorFile {
    name: String,
    data: FileData,
}

#[derive(Debug)]
enum FileData {
    Path(PathBuf),
    Bytes(&'static [u8]),
}

impl Checkpoint {
    /// Reads the headers of `model.safetensors` in `folder`, or of all shards that
    /// `model.safetensors.index.json` names.
    ///
    /// # Errors
    ///
    /// [`WeightsError`] when there is neither, a shard is missing, or a file is damaged or cut off.
    pub fn open(folder: &Path) -> Result<Self, WeightsError> {
        let single = folder.join("model.safetensors");
        let index = folder.join("model.safetensors.index.json");
        let mut checkpoint = Self {
            files: Vec::new(),
            tensors: BTreeMap::new(),
        };
        if index.is_file() {
            let map = header::read_index(&index)?;
            let mut shards: Vec<&String> = map.values().collect();
            shards.sort_unstable();
            shards.dedup();
            for shard in shards {
                checkpoint.add_file(folder.join(shard))?;
            }
            checkpoint.check_index(&map)?;
        } else if single.is_file() {
            checkpoint.add_file(single)?;
        } else {
            return Err(WeightsError::NotFound {
                folder: folder.to_owned(),
            });
        }
        Ok(checkpoint)
    }

    /// Reads the header of a safetensors file inside the binary.
    ///
    /// # Errors
    ///
    /// [`WeightsError`] when the bytes are no safetensors file.
    pub fn embedded(name: &str, bytes: &'static [u8]) -> Result<Self, WeightsError> {
        let entries = header::parse(name, 0, &mut &bytes[..], bytes.len() as u64)?;
        Ok(Self {
            files: vec![TensorFile {
                name: name.to_owned(),
                data: FileData::Bytes(bytes),
            }],
            tensors: entries.into_iter().collect(),
        })
    }

    /// Checks that every tensor of a model of this shape is there with the right shape and a type
    /// that can be read, and that no other is: an unknown one would change what the model computes.
    ///
    /// # Errors
    ///
    /// [`WeightsError`], naming file and tensor.
    pub fn check(&self, config: &ModelConfig) -> Result<(), WeightsError> {
        let expected = expected_tensors(config);
        for (name, shape) in &expected {
            let entry = self.entry(name)?;
            if entry.shape != *shape {
                return Err(WeightsError::Shape {
                    file: self.file_of(entry),
                    tensor: name.clone(),
                    expected: shape.clone(),
                    found: entry.shape.clone(),
                });
            }
            if dtype_name(entry.dtype).is_none() {
                return Err(WeightsError::Dtype {
                    file: self.file_of(entry),
                    tensor: name.clone(),
                    found: format!("{:?}", entry.dtype),
                });
            }
        }
        let known: std::collections::BTreeSet<&str> =
            expected.iter().map(|(name, _)| name.as_str()).collect();
        // Old checkpoints store the rotary frequencies, and some a copy of a tied projection.
        let harmless = |name: &str| {
            name.ends_with("rotary_emb.inv_freq")
                || (config.tie_word_embeddings && name == "lm_head.weight")
        };
        let unknown = |name: &str| !known.contains(name) && !harmless(name);
        match self.tensors.iter().find(|(name, _)| unknown(name)) {
            Some((name, entry)) => Err(WeightsError::Unexpected {
                file: self.file_of(entry),
                tensor: name.clone(),
                architecture: config.architecture,
            }),
            None => Ok(()),
        }
    }

    /// Bytes of all tensors as stored.
    pub fn stored_bytes(&self) -> u64 {
        self.tensors.values().map(|entry| entry.bytes).sum()
    }

    fn add_file(&mut self, path: PathBuf) -> Result<(), WeightsError> {
        let name = path.file_name().map_or_else(
            || path.display().to_string(),
            |name| name.to_string_lossy().into_owned(),
        );
        let io = |source| WeightsError::Io {
            file: path.display().to_string(),
            source,
        };
        let mut file = File::open(&path).map_err(io)?;
        let length = file.metadata().map_err(io)?.len();
        for (tensor, entry) in header::parse(&name, self.files.len(), &mut file, length)? {
            if let Some(other) = self.tensors.insert(tensor.clone(), entry) {
                return Err(WeightsError::Duplicate {
                    tensor,
                    first: self.files[other.file].name.clone(),
                    second: name,
                });
            }
        }
        self.files.push(TensorFile {
            name,
            data: FileData::Path(path),
        });
        Ok(())
    }

    fn check_index(&self, map: &BTreeMap<String, String>) -> Result<(), WeightsError> {
        for (tensor, shard) in map {
            let found = self.tensors.get(tensor).map(|entry| self.file_of(entry));
            if found.as_deref() != Some(shard.as_str()) {
                return Err(WeightsError::NotInShard {
                    tensor: tensor.clone(),
                    shard: shard.clone(),
                });
            }
        }
        Ok(())
    }

    fn entry(&self, tensor: &str) -> Result<&Entry, WeightsError> {
        self.tensors
            .get(tensor)
            .ok_or_else(|| WeightsError::Missing {
                tensor: tensor.to_owned(),
                files: self.files.iter().map(|file| file.name.clone()).collect(),
            })
    }

    fn file_of(&self, entry: &Entry) -> String {
        self.files[entry.file].name.clone()
    }
}

impl Checkpoint {
    /// Reads elements of a tensor with the function that `convert` names for its type.
    fn read<T: Send>(
        &self,
        tensor: &str,
        first: usize,
        out: &mut [T],
        convert: impl Fn(Dtype) -> Option<Convert<T>>,
    ) -> Result<(), WeightsError> {
        /// Elements that a core reads at once: small enough to stay in its cache.
        const CHUNK: usize = 1 << 17;
        let entry = self.entry(tensor)?;
        let file = &self.files[entry.file];
        let size = entry.dtype.bitsize() / 8;
        let convert = convert(entry.dtype).ok_or_else(|| self.dtype_error(tensor, entry))?;
        let begin = (first * size) as u64;
        if entry.bytes < begin + (out.len() * size) as u64 {
            return Err(self.shape_error(tensor, entry, first + out.len()));
        }
        let begin = entry.start + begin;
        match &file.data {
            FileData::Bytes(bytes) => {
                let bytes = &bytes[begin as usize..][..out.len() * size];
                let chunks = out
                    .par_chunks_mut(CHUNK)
                    .zip(bytes.par_chunks(CHUNK * size));
                chunks.for_each(|(out, bytes)| convert(bytes, out));
                Ok(())
            }
            FileData::Path(path) => {
                let chunks = out.par_chunks_mut(CHUNK).enumerate();
                chunks.try_for_each_init(Vec::new, |buffer, (index, out)| {
                    buffer.resize(out.len() * size, 0);
                    let start = begin + (index * CHUNK * size) as u64;
                    read_at(path, start, buffer).map_err(|source| WeightsError::Io {
                        file: path.display().to_string(),
                        source,
                    })?;
                    convert(buffer, out);
                    Ok(())
                })
            }
        }
    }

    fn shape_error(&self, tensor: &str, entry: &Entry, expected: usize) -> WeightsError {
        WeightsError::Shape {
            file: self.file_of(entry),
            tensor: tensor.to_owned(),
            expected: vec![expected],
            found: entry.shape.clone(),
        }
    }

    fn dtype_error(&self, tensor: &str, entry: &Entry) -> WeightsError {
        WeightsError::Dtype {
            file: self.file_of(entry),
            tensor: tensor.to_owned(),
            found: format!("{:?}", entry.dtype),
        }
    }
}

impl TensorSource for Checkpoint {
    fn fill(&self, tensor: &str, first: usize, out: &mut [f32]) -> Result<(), WeightsError> {
        self.read(tensor, first, out, widen_function)
    }

    fn fill_bits(&self, tensor: &str, first: usize, out: &mut [u16]) -> Result<(), WeightsError> {
        self.read(tensor, first, out, |dtype| match dtype {
            Dtype::F16 | Dtype::BF16 => Some(|bytes, out| {
                for (out, bytes) in out.iter_mut().zip(bytes.as_chunks().0) {
                    *out = u16::from_le_bytes(*bytes);
                }
            }),
            _ => None,
        })
    }

    fn stored(&self, tensor: &str, elements: usize) -> Result<StoredType, WeightsError> {
        let entry = self.entry(tensor)?;
        let stored = match entry.dtype {
            Dtype::F32 => StoredType::F32,
            Dtype::F16 => StoredType::F16,
            Dtype::BF16 => StoredType::Bf16,
            _ => return Err(self.dtype_error(tensor, entry)),
        };
        match entry.bytes == (elements * stored.bytes()) as u64 {
            true => Ok(stored),
            false => Err(self.shape_error(tensor, entry, elements)),
        }
    }

    fn stored_dtype(&self) -> &'static str {
        let mut names = self.tensors.values().filter_map(|e| dtype_name(e.dtype));
        let first = names.next().unwrap_or("f32");
        if names.all(|name| name == first) {
            first
        } else {
            "mixed"
        }
    }
}

/// Memory that the tensors of a model of this shape take on the CPU: matrices as they are
/// [kept](Role::kept), vectors in f32.
pub(crate) fn memory_bytes(
    source: &dyn TensorSource,
    config: &ModelConfig,
    quantization: Option<Quantization>,
    precision: Precision,
) -> Result<u64, WeightsError> {
    let mut bytes = 0;
    for (name, shape) in expected_tensors(config) {
        let role = match name.as_str() {
            "model.embed_tokens.weight" => Role::of_embedding(config),
            "lm_head.weight" => Role::Head,
            _ => Role::Projection,
        };
        let stored = source.stored(&name, shape.iter().product())?;
        let halved = matches!(stored, StoredType::F16 | StoredType::Bf16);
        bytes += match (shape.as_slice(), role.kept(quantization, precision)) {
            (&[rows, columns], Kept::Quantized(to)) => to.bytes(rows, columns),
            (&[rows, columns], kept) if halved || kept == Kept::Rounded => {
                (rows * columns * size_of::<u16>()) as u64
            }
            (shape, _) => (shape.iter().product::<usize>() * size_of::<f32>()) as u64,
        };
    }
    Ok(bytes)
}

/// What is read of the tensors of a model of this shape, as they are stored.
pub(crate) fn stored_bytes(
    source: &dyn TensorSource,
    config: &ModelConfig,
) -> Result<u64, WeightsError> {
    let mut bytes = 0;
    for (name, shape) in expected_tensors(config) {
        let elements = shape.iter().product();
        bytes += (elements * source.stored(&name, elements)?.bytes()) as u64;
    }
    Ok(bytes)
}

/// Name and shape of every tensor of a model, in the order in which a decoder uses them.
pub(crate) fn expected_tensors(config: &ModelConfig) -> Vec<(String, Vec<usize>)> {
    let (hidden, middle) = (config.hidden_size, config.intermediate_size);
    let (query, kv) = (config.query_size(), config.kv_size());
    let mut all = vec![(
        "model.embed_tokens.weight".to_owned(),
        vec![config.vocab_size, hidden],
    )];
    for layer in 0..config.layers {
        let mut add = |part: &str, shape: &[usize]| {
            all.push((format!("model.layers.{layer}.{part}"), shape.to_vec()));
        };
        add("input_layernorm.weight", &[hidden]);
        for (part, size) in [("q_proj", query), ("k_proj", kv), ("v_proj", kv)] {
            add(&format!("self_attn.{part}.weight"), &[size, hidden]);
            if config.qkv_bias {
                add(&format!("self_attn.{part}.bias"), &[size]);
            }
        }
        if config.qk_norm {
            add("self_attn.q_norm.weight", &[config.head_dim]);
            add("self_attn.k_norm.weight", &[config.head_dim]);
        }
        add("self_attn.o_proj.weight", &[hidden, query]);
        if config.output_bias {
            add("self_attn.o_proj.bias", &[hidden]);
        }
        add("post_attention_layernorm.weight", &[hidden]);
        let projections = [
            ("gate_proj", middle, hidden),
            ("up_proj", middle, hidden),
            ("down_proj", hidden, middle),
        ];
        for (part, outputs, inputs) in projections {
            add(&format!("mlp.{part}.weight"), &[outputs, inputs]);
            if config.mlp_bias {
                add(&format!("mlp.{part}.bias"), &[outputs]);
            }
        }
    }
    all.push(("model.norm.weight".to_owned(), vec![hidden]));
    if !config.tie_word_embeddings {
        all.push(("lm_head.weight".to_owned(), vec![config.vocab_size, hidden]));
    }
    all
}

fn dtype_name(dtype: Dtype) -> Option<&'static str> {
    match dtype {
        Dtype::F32 => Some("f32"),
        Dtype::F16 => Some("f16"),
        Dtype::BF16 => Some("bf16"),
        _ => None,
    }
}

type Convert<T> = fn(&[u8], &mut [T]);

fn widen_function(dtype: Dtype) -> Option<Convert<f32>> {
    match dtype {
        Dtype::F32 => Some(|bytes, out| {
            for (out, bytes) in out.iter_mut().zip(bytes.as_chunks().0) {
                *out = f32::from_le_bytes(*bytes);
            }
        }),
        Dtype::F16 => Some(|bytes, out| {
            for (out, bytes) in out.iter_mut().zip(bytes.as_chunks().0) {
                *out = half::f16::from_le_bytes(*bytes).to_f32();
            }
        }),
        Dtype::BF16 => Some(|bytes, out| {
            for (out, bytes) in out.iter_mut().zip(bytes.as_chunks().0) {
                *out = f32::from_bits(u32::from(u16::from_le_bytes(*bytes)) << 16);
            }
        }),
        _ => None,
    }
}

/// Every reader has a file handle, and so a cursor, of its own.
fn read_at(path: &Path, start: u64, out: &mut [u8]) -> std::io::Result<()> {
    let mut file = File::open(path)?;
    file.seek(SeekFrom::Start(start))?;
    file.read_exact(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_stored_type_widens_to_the_same_numbers() {
        let numbers = [0.0_f32, -1.5, 0.25, 3.0];
        let check = |dtype, bytes: Vec<u8>| {
            let mut out = [9.0; 4];
            widen_function(dtype).unwrap()(&bytes, &mut out);
            assert_eq!(out, numbers, "{dtype:?}");
        };
        let bytes = |f: fn(f32) -> [u8; 2]| numbers.into_iter().flat_map(f).collect();
        check(
            Dtype::F32,
            numbers.into_iter().flat_map(f32::to_le_bytes).collect(),
        );
        check(Dtype::F16, bytes(|x| half::f16::from_f32(x).to_le_bytes()));
        check(
            Dtype::BF16,
            bytes(|x| half::bf16::from_f32(x).to_le_bytes()),
        );
        assert!(widen_function(Dtype::I8).is_none());
    }
}
