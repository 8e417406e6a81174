//! What the tests of this folder share: a small GGUF writer and a folder that cleans up after itself.

use std::path::{Path, PathBuf};

/// A folder under the system's temporary one, removed when dropped.
pub(crate) struct TempDir(PathBuf);

impl TempDir {
    /// An empty folder; `name` keeps the tests of one process apart.
    pub(crate) fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("xtask-{}-{name}", std::process::id()));
        let _ = std::fs::remove_dir_all(&path);
        std::fs::create_dir_all(&path).unwrap();
        Self(path)
    }

    /// Where it is.
    pub(crate) fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for TempDir {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Builds a GGUF file in memory.
#[derive(Default)]
pub(crate) struct GgufWriter {
    meta: Vec<u8>,
    meta_count: u64,
    infos: Vec<u8>,
    info_count: u64,
    data: Vec<u8>,
}

impl GgufWriter {
    /// Adds a string.
    pub(crate) fn text(&mut self, key: &str, value: &str) -> &mut Self {
        self.key(key, 8);
        put_text(&mut self.meta, value);
        self
    }

    /// Adds a 32-bit unsigned integer.
    pub(crate) fn int(&mut self, key: &str, value: u32) -> &mut Self {
        self.key(key, 4);
        self.meta.extend(value.to_le_bytes());
        self
    }

    /// Adds a 32-bit float.
    pub(crate) fn float(&mut self, key: &str, value: f32) -> &mut Self {
        self.key(key, 6);
        self.meta.extend(value.to_le_bytes());
        self
    }

    /// Adds a list of strings.
    pub(crate) fn texts(&mut self, key: &str, values: &[&str]) -> &mut Self {
        self.key(key, 9);
        self.meta.extend(8_u32.to_le_bytes());
        self.meta.extend((values.len() as u64).to_le_bytes());
        values
            .iter()
            .for_each(|value| put_text(&mut self.meta, value));
        self
    }

    /// Adds a list of 32-bit signed integers.
    pub(crate) fn ints(&mut self, key: &str, values: &[i32]) -> &mut Self {
        self.key(key, 9);
        self.meta.extend(5_u32.to_le_bytes());
        self.meta.extend((values.len() as u64).to_le_bytes());
        self.meta
            .extend(values.iter().flat_map(|value| value.to_le_bytes()));
        self
    }

    /// Adds a tensor of raw bytes in ggml type `kind`; `shape` has the outermost dimension first.
    pub(crate) fn tensor(&mut self, name: &str, shape: &[u64], kind: u32, raw: &[u8]) -> &mut Self {
        self.data.resize(self.data.len().next_multiple_of(32), 0);
        put_text(&mut self.infos, name);
        self.infos.extend((shape.len() as u32).to_le_bytes());
        self.infos
            .extend(shape.iter().rev().flat_map(|dim| dim.to_le_bytes()));
        self.infos.extend(kind.to_le_bytes());
        self.infos.extend((self.data.len() as u64).to_le_bytes());
        self.info_count += 1;
        self.data.extend(raw);
        self
    }

    /// Adds a tensor of plain floats.
    pub(crate) fn f32_tensor(&mut self, name: &str, shape: &[u64], numbers: &[f32]) -> &mut Self {
        let raw = numbers
            .iter()
            .flat_map(|x| x.to_le_bytes())
            .collect::<Vec<_>>();
        self.tensor(name, shape, 0, &raw)
    }

    /// The whole file.
    pub(crate) fn bytes(&self) -> Vec<u8> {
        let mut out = b"GGUF".to_vec();
        out.extend(3_u32.to_le_bytes());
        out.extend(self.info_count.to_le_bytes());
        out.extend(self.meta_count.to_le_bytes());
        out.extend(&self.meta);
        out.extend(&self.infos);
        out.resize(out.len().next_multiple_of(32), 0);
        out.extend(&self.data);
        out
    }

    fn key(&mut self, key: &str, kind: u32) {
        put_text(&mut self.meta, key);
        self.meta.extend(kind.to_le_bytes());
        self.meta_count += 1;
    }
}

fn put_text(out: &mut Vec<u8>, text: &str) {
    out.extend((text.len() as u64).to_le_bytes());
    out.extend(text.as_bytes());
}
