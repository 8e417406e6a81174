//! The header of a safetensors file and the index of a sharded checkpoint.

use std::collections::BTreeMap;
use std::io::Read;
use std::path::Path;

use safetensors::Dtype;
use safetensors::tensor::TensorInfo;
use serde::Deserialize;
use serde_json::{Map, Value};

use super::error::WeightsError;

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

/// Reads a header: eight bytes of length, then JSON. Every tensor is checked to lie inside the file
/// and to have as many bytes as its shape and type say.
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
    let header_bytes = u64::from_le_bytes(prefix);
    let data_start = header_bytes.saturating_add(8);
    if data_start > length {
        return Err(bad(format!(
            "its header should have {header_bytes} bytes and the file has {length}"
        )));
    }
    let mut header = vec![0; header_bytes as usize];
    reader
        .read_exact(&mut header)
        .map_err(|error| bad(error.to_string()))?;
    let header: Map<String, Value> =
        serde_json::from_slice(&header).map_err(|error| bad(error.to_string()))?;
    let tensors = header.into_iter().filter(|(key, _)| key != "__metadata__");
    let entry = |(tensor, value): (String, Value)| {
        let info = TensorInfo::deserialize(value)
            .map_err(|error| bad(format!("tensor {tensor}: {error}")))?;
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
    tensors.map(entry).collect()
}

/// Which shard holds which tensor. A shard is a plain file name, so that an index cannot point out
/// of its folder.
pub(super) fn read_index(path: &Path) -> Result<BTreeMap<String, String>, WeightsError> {
    #[derive(Deserialize)]
    struct Index {
        weight_map: BTreeMap<String, String>,
    }
    let file = path.display().to_string();
    let text = std::fs::read(path).map_err(|source| WeightsError::Io {
        file: file.clone(),
        source,
    })?;
    let index: Index = serde_json::from_slice(&text).map_err(|error| WeightsError::Index {
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
