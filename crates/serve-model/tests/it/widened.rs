//! A fixture whose matrices are what quantisation leaves of them, stored in f32.

use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering};

use safetensors::tensor::TensorView;
use safetensors::{Dtype, SafeTensors, serialize_to_file};
use serve_model::cpu::{Kept, Matrix};
use serve_model::load::Source;
use serve_model::numbers::{Elements, Quantization};

use crate::fixtures::folder;

/// A folder that is gone when this is dropped.
pub(crate) struct Widened(PathBuf);

impl Widened {
    pub(crate) fn new(name: &str, quantization: Quantization) -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let out = format!("widened-{}-{number}", std::process::id());
        let out = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(out);
        std::fs::create_dir_all(&out).unwrap();
        let config = std::fs::read_to_string(folder(name).join("config.json")).unwrap();
        let config: serde_json::Value = serde_json::from_str(&config).unwrap();
        let tied = config["tie_word_embeddings"] == true;
        let mut tensors = Vec::new();
        for entry in std::fs::read_dir(folder(name)).unwrap() {
            let path = entry.unwrap().path();
            let file = path.file_name().unwrap().to_str().unwrap();
            if file.ends_with(".safetensors") {
                let bytes = std::fs::read(&path).unwrap();
                for (name, tensor) in SafeTensors::deserialize(&bytes).unwrap().iter() {
                    let to = becomes(name, tied, quantization);
                    tensors.push((name.to_owned(), Tensor::widened(&tensor, to)));
                }
            } else if !file.ends_with(".index.json") {
                std::fs::copy(&path, out.join(file)).unwrap();
            }
        }
        let views = tensors.iter().map(|(name, tensor)| (name, tensor.view()));
        serialize_to_file(views, None, &out.join("model.safetensors")).unwrap();
        Self(out)
    }

    pub(crate) fn source(&self) -> Source {
        Source::Folder(self.0.clone())
    }
}

impl Drop for Widened {
    fn drop(&mut self) {
        // Left behind, it does no harm.
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// What a matrix of this name is made: the vocabulary keeps 8 bits, and an embedding of its own all.
fn becomes(name: &str, tied: bool, asked: Quantization) -> Option<Quantization> {
    match name {
        "model.embed_tokens.weight" if !tied => None,
        "model.embed_tokens.weight" | "lm_head.weight" => Some(Quantization::Q8),
        _ => Some(asked),
    }
}

struct Tensor {
    shape: Vec<usize>,
    bytes: Vec<u8>,
}

impl Tensor {
    fn widened(stored: &TensorView<'_>, to: Option<Quantization>) -> Self {
        let bytes = stored.data();
        let mut numbers: Vec<f32> = match stored.dtype() {
            Dtype::F32 => {
                let words = bytes.as_chunks().0.iter();
                words.map(|&word| f32::from_le_bytes(word)).collect()
            }
            Dtype::BF16 => {
                let words = bytes.as_chunks().0.iter();
                let high = |&word| u32::from(u16::from_le_bytes(word)) << 16;
                words.map(|word| f32::from_bits(high(word))).collect()
            }
            other => panic!("a fixture in {other:?}"),
        };
        if let (&[_, columns], Some(to)) = (stored.shape(), to) {
            let elements = Elements::F32(numbers.clone());
            let matrix = Matrix::new(&elements, columns, Kept::Quantized(to));
            for (row, out) in numbers.chunks_mut(columns).enumerate() {
                matrix.copy_row(row, out);
            }
        }
        Self {
            shape: stored.shape().to_vec(),
            bytes: numbers.into_iter().flat_map(f32::to_le_bytes).collect(),
        }
    }

    fn view(&self) -> TensorView<'_> {
        TensorView::new(Dtype::F32, self.shape.clone(), &self.bytes).unwrap()
    }
}
