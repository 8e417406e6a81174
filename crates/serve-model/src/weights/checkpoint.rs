//! The tensors of a checkpoint: safetensors files, one or several, or bytes inside the binary.
//!
//! Opening reads headers only. Tensors are then read by all cores, as they are stored or widened to `f32`,
//! some rows at a time if their device wants them so. A file that shrinks meanwhile is a read error, where
//! a memory map would be a bus error.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};

use rayon::prelude::*;
use safetensors::Dtype;

use super::error::WeightsError;
use super::header::{self, Entry};
use super::source::{StoredType, TensorSource};
use super::tree::{DecoderWeights, Part, Role, Visitor};
use crate::config::ModelConfig;
use crate::plain_file;

/// The tensors of safetensors files.
#[derive(Debug)]
pub struct Checkpoint {
    files: Vec<TensorFile>,
    tensors: BTreeMap<String, Entry>,
    /// Which shard holds which tensor, where an index says so.
    index: BTreeMap<String, String>,
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
            index: BTreeMap::new(),
        };
        // One that is there and no plain file is named where it is opened.
        if index.exists() {
            let map = header::read_index(&index)?;
            let mut shards: Vec<&String> = map.values().collect();
            shards.sort_unstable();
            shards.dedup();
            for shard in shards {
                checkpoint.add_file(folder.join(shard))?;
            }
            checkpoint.index = map;
        } else if single.exists() {
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
            index: BTreeMap::new(),
        })
    }

    /// Checks that every tensor of a model of this shape is there with the right shape and a type
    /// that can be read, and that no other is: an unknown one would change what the model computes.
    ///
    /// # Errors
    ///
    /// [`WeightsError`], naming file and tensor.
    pub fn check(&self, config: &ModelConfig) -> Result<(), WeightsError> {
        let mut check = Check {
            checkpoint: self,
            known: BTreeSet::new(),
        };
        DecoderWeights::visit(config, &mut check)?;
        let known = check.known;
        let unknown = |name: &str| !known.contains(name) && !is_harmless(name, config);
        match self.tensors.iter().find(|(name, _)| unknown(name)) {
            Some((name, entry)) => Err(WeightsError::Unexpected {
                file: self.file_of(entry),
                tensor: name.clone(),
                architecture: config.architecture,
            }),
            None => Ok(()),
        }
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
        let (mut file, length) = plain_file::open(&path).map_err(io)?;
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

/// Old checkpoints store the rotary frequencies, and some a copy of a tied projection.
fn is_harmless(tensor: &str, config: &ModelConfig) -> bool {
    tensor.ends_with("rotary_emb.inv_freq")
        || (config.tie_word_embeddings && tensor == "lm_head.weight")
}

/// Compares every tensor of a model with the one in a checkpoint, and ends at the first that differs: a
/// configuration may ask for millions.
struct Check<'a> {
    checkpoint: &'a Checkpoint,
    known: BTreeSet<String>,
}

impl Check<'_> {
    fn tensor(&mut self, name: &str, shape: Vec<usize>) -> Result<(), WeightsError> {
        let checkpoint = self.checkpoint;
        // Of a tensor that is not needed, an index may say what it likes.
        if let Some(shard) = checkpoint.index.get(name) {
            let found = checkpoint.tensors.get(name);
            if found.is_none_or(|entry| checkpoint.file_of(entry) != *shard) {
                return Err(WeightsError::NotInShard {
                    tensor: name.to_owned(),
                    shard: shard.clone(),
                });
            }
        }
        let entry = checkpoint.entry(name)?;
        if entry.shape != shape {
            return Err(checkpoint.shape_error(name, entry, shape));
        }
        if dtype_name(entry.dtype).is_none() {
            return Err(checkpoint.dtype_error(name, entry));
        }
        self.known.insert(name.to_owned());
        Ok(())
    }
}

impl Visitor for Check<'_> {
    type Matrix = ();
    type Vector = ();
    type Error = WeightsError;

    fn matrix(&mut self, _: Role, parts: &[Part], columns: usize) -> Result<(), WeightsError> {
        parts
            .iter()
            .try_for_each(|(name, rows)| self.tensor(name, vec![*rows, columns]))
    }

    fn vector(&mut self, parts: &[Part]) -> Result<(), WeightsError> {
        parts
            .iter()
            .try_for_each(|(name, elements)| self.tensor(name, vec![*elements]))
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
            return Err(self.shape_error(tensor, entry, vec![first + out.len()]));
        }
        let begin = entry.start + begin;
        // While they are in the cache of the core that has read them.
        let take = |bytes: &[u8], out: &mut [T]| {
            if !is_finite(entry.dtype, bytes) {
                return Err(WeightsError::NotFinite {
                    file: file.name.clone(),
                    tensor: tensor.to_owned(),
                });
            }
            convert(bytes, out);
            Ok(())
        };
        match &file.data {
            FileData::Bytes(bytes) => {
                let bytes = &bytes[begin as usize..][..out.len() * size];
                let chunks = out
                    .par_chunks_mut(CHUNK)
                    .zip(bytes.par_chunks(CHUNK * size));
                chunks
                    .into_par_iter()
                    .try_for_each(|(out, bytes)| take(bytes, out))
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
                    take(buffer, out)
                })
            }
        }
    }

    fn shape_error(&self, tensor: &str, entry: &Entry, expected: Vec<usize>) -> WeightsError {
        WeightsError::Shape {
            file: self.file_of(entry),
            tensor: tensor.to_owned(),
            expected,
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
        // A vocabulary may be padded with rows that nobody reads.
        match entry.bytes >= (elements * stored.bytes()) as u64 {
            true => Ok(stored),
            false => Err(self.shape_error(tensor, entry, vec![elements])),
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

/// Whether no element is infinite or not a number: such a one has all bits of its exponent set.
fn is_finite(dtype: Dtype, bytes: &[u8]) -> bool {
    let half = |exponent: u16| {
        let halves = bytes.as_chunks().0.iter();
        let found = |half: &[u8; 2]| u16::from_le_bytes(*half) & exponent == exponent;
        // Without a way out before the end, so that the compiler takes many at once.
        !halves.fold(false, |any, half| any | found(half))
    };
    match dtype {
        Dtype::F16 => half(0x7c00),
        Dtype::BF16 => half(0x7f80),
        _ => {
            let found = |word: &[u8; 4]| u32::from_le_bytes(*word) & 0x7f80_0000 == 0x7f80_0000;
            let words = bytes.as_chunks().0.iter();
            !words.fold(false, |any, word| any | found(word))
        }
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
