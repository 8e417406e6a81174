//! Reading a GGUF file: its metadata and its tensors' bytes. What the numbers mean is not known
//! here; see [`super::dequant`].
//!
//! Layout, little-endian: magic `GGUF`, version, tensor count, metadata count, metadata, tensor
//! infos, padding to `general.alignment`, tensor data. Source: the GGUF specification of the ggml
//! project, versions 2 and 3.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, BufReader, Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};

use thiserror::Error;

use super::dequant::{Encoding, dequantise};

/// Why a file could not be read as GGUF.
#[derive(Debug, Error)]
pub(crate) enum GgufError {
    /// The file cannot be opened or read.
    #[error("{}: {source}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// The operating system's answer.
        source: io::Error,
    },
    /// The file does not begin like a GGUF file that is understood here.
    #[error("not a GGUF file of version 2 or 3")]
    Magic,
    /// A count or length points past the end of the file.
    #[error("truncated or damaged: {what} needs {needed} bytes and {left} are left")]
    Truncated {
        /// What was being read.
        what: &'static str,
        /// Bytes that it claims.
        needed: u64,
        /// Bytes that there are.
        left: u64,
    },
    /// A string is not UTF-8.
    #[error("damaged: a string is not UTF-8")]
    Utf8,
    /// A metadata value has a type that the specification does not list.
    #[error("damaged: metadata type {0} is unknown; 0 to 12 are accepted")]
    ValueType(u32),
    /// A metadata key is missing or has another type.
    #[error("metadata key {key} must be {expected}")]
    Meta {
        /// The key.
        key: String,
        /// The type that is needed.
        expected: &'static str,
    },
    /// A tensor is missing.
    #[error("tensor {0} is missing")]
    NoTensor(String),
    /// A tensor is stored in an encoding without a dequantiser here.
    #[error(
        "tensor {name}: ggml type {id} is not supported; {} are",
        Encoding::names()
    )]
    Encoding {
        /// The tensor.
        name: String,
        /// Its ggml type number.
        id: u32,
    },
    /// A tensor's elements do not fill whole blocks.
    #[error(
        "tensor {name}: {elements} elements are not a whole number of {per_block}-element blocks"
    )]
    Blocks {
        /// The tensor.
        name: String,
        /// Its elements.
        elements: u64,
        /// Elements in a block of its encoding.
        per_block: u64,
    },
}

/// A metadata value; all integers are widened.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Value {
    /// An integer of any width.
    Int(i128),
    /// A float; a 32-bit one is kept exactly.
    Float(f64),
    /// A truth value.
    Bool(bool),
    /// A string.
    Text(String),
    /// A list of values of one type.
    List(Vec<Value>),
}

/// Where a tensor's bytes are.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Tensor {
    /// How its numbers are stored.
    pub(crate) encoding: Encoding,
    /// Its shape, outermost dimension first (GGUF stores it the other way round).
    pub(crate) shape: Vec<u64>,
    /// Offset of its first byte in the file.
    start: u64,
    /// Its size in the file.
    bytes: u64,
}

/// An open GGUF file.
#[derive(Debug)]
pub(crate) struct Gguf {
    path: PathBuf,
    meta: BTreeMap<String, Value>,
    tensors: BTreeMap<String, Tensor>,
}

impl Gguf {
    /// Reads the metadata and the tensor table, not the tensors.
    pub(crate) fn open(path: &Path) -> Result<Self, GgufError> {
        let io = |source| GgufError::Io {
            path: path.to_owned(),
            source,
        };
        let file = File::open(path).map_err(io)?;
        let size = file.metadata().map_err(io)?.len();
        let mut reader = Reader {
            path,
            inner: BufReader::new(file),
            position: 0,
            size,
        };
        let (tensor_count, meta_count) = reader.header()?;
        let mut meta = BTreeMap::new();
        for _ in 0..meta_count {
            let key = reader.string()?;
            let kind = reader.u32()?;
            meta.insert(key, reader.value(kind)?);
        }
        let mut infos = Vec::new();
        for _ in 0..tensor_count {
            infos.push(reader.tensor_info()?);
        }
        let align = match meta.get("general.alignment") {
            Some(Value::Int(n)) if *n > 0 => u64::try_from(*n).unwrap_or(32),
            _ => 32,
        };
        let base = reader.position.next_multiple_of(align);
        let mut tensors = BTreeMap::new();
        for info in infos {
            let (name, tensor) = info.locate(base, size)?;
            tensors.insert(name, tensor);
        }
        Ok(Self {
            path: path.to_owned(),
            meta,
            tensors,
        })
    }

    /// Every tensor by name.
    pub(crate) fn tensors(&self) -> &BTreeMap<String, Tensor> {
        &self.tensors
    }

    /// The tensor's numbers in row-major order.
    pub(crate) fn numbers(&self, name: &str) -> Result<Vec<f32>, GgufError> {
        let tensor = self.tensor(name)?;
        self.read(tensor, tensor.bytes)
    }

    /// The first `rows` rows (entries of the outermost dimension) of the tensor, or all of them.
    pub(crate) fn first_rows(&self, name: &str, rows: u64) -> Result<Vec<f32>, GgufError> {
        let tensor = self.tensor(name)?;
        let all = tensor.shape.first().copied().unwrap_or(1).max(1);
        self.read(tensor, tensor.bytes / all * rows.min(all))
    }

    /// The tensor's place and shape.
    pub(crate) fn tensor(&self, name: &str) -> Result<&Tensor, GgufError> {
        let missing = || GgufError::NoTensor(name.to_owned());
        self.tensors.get(name).ok_or_else(missing)
    }

    fn read(&self, tensor: &Tensor, bytes: u64) -> Result<Vec<f32>, GgufError> {
        let mut raw = vec![0; bytes as usize];
        let fill = |raw: &mut [u8]| {
            let mut file = File::open(&self.path)?;
            file.seek(SeekFrom::Start(tensor.start))?;
            file.read_exact(raw)
        };
        fill(&mut raw).map_err(|source| GgufError::Io {
            path: self.path.clone(),
            source,
        })?;
        Ok(dequantise(tensor.encoding, &raw))
    }

    /// The value under `key`, if there is one.
    pub(crate) fn get(&self, key: &str) -> Option<&Value> {
        self.meta.get(key)
    }

    /// The integer under `key`.
    pub(crate) fn int(&self, key: &str) -> Result<u64, GgufError> {
        match self.get(key) {
            Some(Value::Int(n)) => u64::try_from(*n).map_err(|_| wrong(key, "a whole number")),
            _ => Err(wrong(key, "a whole number")),
        }
    }

    /// The float under `key`.
    pub(crate) fn float(&self, key: &str) -> Result<f64, GgufError> {
        match self.get(key) {
            Some(Value::Float(x)) => Ok(*x),
            _ => Err(wrong(key, "a float")),
        }
    }

    /// The string under `key`.
    pub(crate) fn text(&self, key: &str) -> Result<&str, GgufError> {
        match self.get(key) {
            Some(Value::Text(text)) => Ok(text),
            _ => Err(wrong(key, "a string")),
        }
    }

    /// The list of strings under `key`.
    pub(crate) fn texts(&self, key: &str) -> Result<Vec<&str>, GgufError> {
        let Some(Value::List(items)) = self.get(key) else {
            return Err(wrong(key, "a list of strings"));
        };
        let texts = items.iter().map(|item| match item {
            Value::Text(text) => Ok(text.as_str()),
            _ => Err(wrong(key, "a list of strings")),
        });
        texts.collect()
    }

    /// The list of integers under `key`.
    pub(crate) fn ints(&self, key: &str) -> Result<Vec<i128>, GgufError> {
        let Some(Value::List(items)) = self.get(key) else {
            return Err(wrong(key, "a list of whole numbers"));
        };
        let int = |item: &Value| match item {
            Value::Int(n) => Ok(*n),
            _ => Err(wrong(key, "a list of whole numbers")),
        };
        items.iter().map(int).collect()
    }
}

fn wrong(key: &str, expected: &'static str) -> GgufError {
    GgufError::Meta {
        key: key.to_owned(),
        expected,
    }
}

/// A tensor info as it stands in the file.
struct Info {
    name: String,
    dims: Vec<u64>,
    kind: u32,
    offset: u64,
}

impl Info {
    fn locate(self, base: u64, file_size: u64) -> Result<(String, Tensor), GgufError> {
        let Some(encoding) = Encoding::from_id(self.kind) else {
            return Err(GgufError::Encoding {
                name: self.name,
                id: self.kind,
            });
        };
        let product = |product: u64, &dim: &u64| product.checked_mul(dim);
        let elements = self.dims.iter().try_fold(1, product).unwrap_or(u64::MAX);
        let per_block = encoding.block_elements() as u64;
        if !elements.is_multiple_of(per_block) {
            return Err(GgufError::Blocks {
                name: self.name,
                elements,
                per_block,
            });
        }
        let bytes = (elements / per_block).saturating_mul(encoding.block_bytes() as u64);
        let start = base.saturating_add(self.offset);
        let left = file_size.saturating_sub(start);
        if bytes > left {
            return Err(GgufError::Truncated {
                what: "a tensor",
                needed: bytes,
                left,
            });
        }
        let tensor = Tensor {
            encoding,
            shape: self.dims.into_iter().rev().collect(),
            start,
            bytes,
        };
        Ok((self.name, tensor))
    }
}

/// A cursor that knows how much is left, so that a damaged count cannot ask for all memory.
struct Reader<'a> {
    path: &'a Path,
    inner: BufReader<File>,
    position: u64,
    size: u64,
}

impl Reader<'_> {
    fn header(&mut self) -> Result<(u64, u64), GgufError> {
        let magic: [u8; 4] = self.bytes("the header")?;
        let version = self.u32()?;
        if magic != *b"GGUF" || !(2..=3).contains(&version) {
            return Err(GgufError::Magic);
        }
        Ok((self.u64()?, self.u64()?))
    }

    fn tensor_info(&mut self) -> Result<Info, GgufError> {
        let name = self.string()?;
        let dims = self.u32()?;
        self.claim("a tensor's shape", u64::from(dims) * 8)?;
        let dims = (0..dims).map(|_| self.u64()).collect::<Result<_, _>>()?;
        Ok(Info {
            name,
            dims,
            kind: self.u32()?,
            offset: self.u64()?,
        })
    }

    fn value(&mut self, kind: u32) -> Result<Value, GgufError> {
        let what = "a metadata value";
        Ok(match kind {
            0 => Value::Int(u8::from_le_bytes(self.bytes(what)?).into()),
            1 => Value::Int(i8::from_le_bytes(self.bytes(what)?).into()),
            2 => Value::Int(u16::from_le_bytes(self.bytes(what)?).into()),
            3 => Value::Int(i16::from_le_bytes(self.bytes(what)?).into()),
            4 => Value::Int(self.u32()?.into()),
            5 => Value::Int(i32::from_le_bytes(self.bytes(what)?).into()),
            6 => Value::Float(f32::from_le_bytes(self.bytes(what)?).into()),
            7 => Value::Bool(self.bytes::<1>(what)? != [0]),
            8 => Value::Text(self.string()?),
            9 => {
                let (item, count) = (self.u32()?, self.u64()?);
                self.claim("a metadata list", count)?; // an item takes at least one byte
                let items = (0..count).map(|_| self.value(item));
                Value::List(items.collect::<Result<_, _>>()?)
            }
            10 => Value::Int(self.u64()?.into()),
            11 => Value::Int(i64::from_le_bytes(self.bytes(what)?).into()),
            12 => Value::Float(f64::from_le_bytes(self.bytes(what)?)),
            other => return Err(GgufError::ValueType(other)),
        })
    }

    fn string(&mut self) -> Result<String, GgufError> {
        let length = self.u64()?;
        self.claim("a string", length)?;
        let mut text = vec![0; length as usize];
        self.fill(&mut text)?;
        String::from_utf8(text).map_err(|_| GgufError::Utf8)
    }

    fn u32(&mut self) -> Result<u32, GgufError> {
        self.bytes("a number").map(u32::from_le_bytes)
    }

    fn u64(&mut self) -> Result<u64, GgufError> {
        self.bytes("a number").map(u64::from_le_bytes)
    }

    fn bytes<const N: usize>(&mut self, what: &'static str) -> Result<[u8; N], GgufError> {
        self.claim(what, N as u64)?;
        let mut bytes = [0; N];
        self.fill(&mut bytes)?;
        Ok(bytes)
    }

    fn claim(&self, what: &'static str, needed: u64) -> Result<(), GgufError> {
        let left = self.size - self.position;
        if needed > left {
            return Err(GgufError::Truncated { what, needed, left });
        }
        Ok(())
    }

    fn fill(&mut self, bytes: &mut [u8]) -> Result<(), GgufError> {
        self.inner
            .read_exact(bytes)
            .map_err(|source| GgufError::Io {
                path: self.path.to_owned(),
                source,
            })?;
        self.position += bytes.len() as u64;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::super::fixture::{GgufWriter, TempDir};
    use super::*;

    #[test]
    fn metadata_and_tensors_come_back_as_they_were_written() {
        let dir = TempDir::new("gguf-read");
        let path = dir.path().join("a.gguf");
        let mut writer = GgufWriter::default();
        writer
            .text("name", "Zürich")
            .int("count", 7)
            .float("eps", 1e-6);
        writer.texts("tokens", &["a", "b"]).ints("types", &[1, 3]);
        writer.f32_tensor("w", &[2, 3], &[1.0, 2.0, 3.0, 4.0, 5.0, 6.0]);
        std::fs::write(&path, writer.bytes()).unwrap();

        let gguf = Gguf::open(&path).unwrap();
        assert_eq!(gguf.text("name").unwrap(), "Zürich");
        assert_eq!(gguf.int("count").unwrap(), 7);
        assert_eq!(gguf.float("eps").unwrap() as f32, 1e-6);
        assert_eq!(gguf.texts("tokens").unwrap(), ["a", "b"]);
        assert_eq!(gguf.ints("types").unwrap(), [1, 3]);
        assert_eq!(gguf.tensor("w").unwrap().shape, [2, 3]);
        assert_eq!(gguf.numbers("w").unwrap(), [1.0, 2.0, 3.0, 4.0, 5.0, 6.0]);
        assert_eq!(gguf.first_rows("w", 1).unwrap(), [1.0, 2.0, 3.0]);
        let missing = gguf.int("absent").unwrap_err().to_string();
        assert_eq!(missing, "metadata key absent must be a whole number");
    }

    #[test]
    fn a_file_cut_anywhere_is_an_error_and_never_a_panic() {
        let dir = TempDir::new("gguf-cut");
        let path = dir.path().join("a.gguf");
        let mut writer = GgufWriter::default();
        writer.text("name", "x").texts("tokens", &["a", "b"]);
        writer.f32_tensor("w", &[4], &[1.0, 2.0, 3.0, 4.0]);
        let whole = writer.bytes();
        for length in 0..whole.len() {
            std::fs::write(&path, &whole[..length]).unwrap();
            assert!(Gguf::open(&path).is_err(), "cut at {length}");
        }
    }

    #[test]
    fn an_encoding_without_a_dequantiser_is_named() {
        let dir = TempDir::new("gguf-kind");
        let path = dir.path().join("a.gguf");
        let mut writer = GgufWriter::default();
        writer.tensor("w", &[32], 20, &[0; 18]);
        std::fs::write(&path, writer.bytes()).unwrap();
        let message = Gguf::open(&path).unwrap_err().to_string();
        assert!(message.starts_with("tensor w: ggml type 20"), "{message}");
        assert!(message.contains("Q4_K"), "{message}");
    }
}
