//! The header of a safetensors file and the index of a sharded checkpoint.

use std::collections::BTreeMap;
use std::fmt;
use std::io::Read;
use std::path::Path;

use safetensors::Dtype;
use safetensors::tensor::TensorInfo;
use serde::de::{Error as _, IgnoredAny, MapAccess, Visitor};
use serde::{Deserialize, Deserializer};

use super::error::WeightsError;
use crate::plain_file::{self, VOCABULARY_BYTES_MAX};

/// Where a tensor lies.
#[derive(Clone, Debug)]
pub(super) struct Entry {
    /// Index of the file.
    pub(super) file: usize,
    /// Type of the elements as stored.
    pub(super) dtype: Dtype,
    /// Rows first.
    pub(super) shape: Vec<usize>,
    /// First byte, from the start of the file.
    pub(super) start: u64,
    /// Length in bytes.
    pub(super) bytes: u64,
}

/// Bytes of a header at most, as in the format's own library. The largest checkpoints have a few million.
pub(super) const HEADER_BYTES_MAX: u64 = 100_000_000;

/// How a file begins that stands for another one in a clone without Git LFS.
const GIT_LFS_POINTER: [u8; 8] = *b"version ";

/// Reads a header: eight bytes of length, then JSON. Every tensor is checked to lie inside the file, to
/// have as many bytes as its shape and type say, and to share none of them with another.
pub(super) fn parse(
    name: &str,
    file: usize,
    reader: &mut impl Read,
    length: u64,
) -> Result<Vec<(String, Entry)>, WeightsError> {
    let bad = |reason: String| WeightsError::Header {
        file: name.to_owned(),
        reason,
    };
    let mut prefix = [0; 8];
    reader
        .read_exact(&mut prefix)
        .map_err(|_| bad(format!("it has only {length} bytes")))?;
    if prefix == GIT_LFS_POINTER {
        let reason = "it is a pointer of Git LFS and holds no weights; git lfs pull fetches them";
        return Err(bad(reason.to_owned()));
    }
    let header_bytes = u64::from_le_bytes(prefix);
    let data_start = header_bytes.saturating_add(8);
    if data_start > length {
        return Err(bad(format!(
            "its header should have {header_bytes} bytes and the file has {length}"
        )));
    }
    if header_bytes > HEADER_BYTES_MAX {
        return Err(bad(format!(
            "its header should have {header_bytes} bytes; at most {HEADER_BYTES_MAX} are read"
        )));
    }
    let mut header = vec![0; header_bytes as usize];
    reader
        .read_exact(&mut header)
        .map_err(|error| bad(error.to_string()))?;
    let Header(tensors) =
        serde_json::from_slice(&header).map_err(|error| bad(error.to_string()))?;
    drop(header);
    let entry = |(tensor, info): (String, TensorInfo)| {
        let (start, end) = (info.data_offsets.0 as u64, info.data_offsets.1 as u64);
        let elements = info
            .shape
            .iter()
            .try_fold(1_usize, |n, &d| n.checked_mul(d));
        let bits = elements.and_then(|n| n.checked_mul(info.dtype.bitsize()));
        let bytes = end.checked_sub(start);
        if bytes.is_none() || bytes != bits.map(|bits| (bits / 8) as u64) {
            return Err(bad(format!(
                "tensor {tensor} of shape {:?} and type {:?} lies at bytes {start}..{end}",
                info.shape, info.dtype
            )));
        }
        let end = end.saturating_add(data_start);
        if end > length {
            return Err(WeightsError::Truncated {
                file: name.to_owned(),
                tensor,
                end,
                length,
            });
        }
        let entry = Entry {
            file,
            dtype: info.dtype,
            shape: info.shape,
            start: start + data_start,
            bytes: end - start - data_start,
        };
        Ok((tensor, entry))
    };
    let entries: Vec<(String, Entry)> = tensors.into_iter().map(entry).collect::<Result<_, _>>()?;
    match overlap(&entries) {
        Some((one, other)) => Err(bad(format!("tensors {one} and {other} overlap"))),
        None => Ok(entries),
    }
}

/// Two tensors that share bytes.
fn overlap(entries: &[(String, Entry)]) -> Option<(&str, &str)> {
    let mut filled: Vec<_> = entries
        .iter()
        .filter(|(_, entry)| entry.bytes > 0)
        .collect();
    filled.sort_unstable_by_key(|(_, entry)| entry.start);
    let pairs = filled.windows(2);
    pairs
        .filter_map(|pair| pair.first().zip(pair.last()))
        .find(|(one, other)| one.1.start + one.1.bytes > other.1.start)
        .map(|(one, other)| (one.0.as_str(), other.0.as_str()))
}

/// The tensors of a header, each of which it names once.
struct Header(BTreeMap<String, TensorInfo>);

impl<'de> Deserialize<'de> for Header {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(Tensors).map(Self)
    }
}

/// Takes tensors as they are read, so that a header is in memory only once.
struct Tensors;

impl<'de> Visitor<'de> for Tensors {
    type Value = BTreeMap<String, TensorInfo>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object of tensors")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
        let mut tensors = BTreeMap::new();
        while let Some(tensor) = map.next_key::<String>()? {
            if tensor == "__metadata__" {
                map.next_value::<IgnoredAny>()?;
                continue;
            }
            let info: TensorInfo = map
                .next_value()
                .map_err(|error| A::Error::custom(format!("tensor {tensor}: {error}")))?;
            if tensors.contains_key(&tensor) {
                return Err(A::Error::custom(format!("tensor {tensor} is there twice")));
            }
            tensors.insert(tensor, info);
        }
        Ok(tensors)
    }
}

/// Which shard holds which tensor. A shard is a plain file name, so that an index cannot point out
/// of its folder.
pub(super) fn read_index(path: &Path) -> Result<BTreeMap<String, String>, WeightsError> {
    #[derive(Deserialize)]
    struct Index {
        weight_map: BTreeMap<String, String>,
    }
    let file = path.display().to_string();
    let text = plain_file::read_text(path, VOCABULARY_BYTES_MAX);
    let text = text.map_err(|source| WeightsError::Io {
        file: file.clone(),
        source,
    })?;
    let index: Index = serde_json::from_str(&text).map_err(|error| WeightsError::Index {
        file: file.clone(),
        reason: error.to_string(),
    })?;
    let is_plain = |shard: &String| Path::new(shard).file_name() == Some(shard.as_ref());
    match index.weight_map.values().find(|shard| !is_plain(shard)) {
        Some(shard) => Err(WeightsError::Index {
            file,
            reason: format!("shard {shard:?} is no plain file name"),
        }),
        None => Ok(index.weight_map),
    }
}
