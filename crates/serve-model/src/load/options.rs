//! What is to be loaded and how, and what is heard meanwhile.

use std::path::PathBuf;

use crate::config::Shape;
use crate::cpu::CpuOptions;
use crate::decode::DeviceKind;
use crate::numbers::Precision;

/// Where a model comes from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Source {
    /// The two-million-parameter model inside the binary.
    Embedded,
    /// A folder in the layout of the Hugging Face hub.
    Folder(PathBuf),
    /// Random weights of a known shape, the same on every run, for measurements.
    ///
    /// Text goes through the embedded model's tokenizer and chat template. The tokens beyond its
    /// vocabulary have placeholders such as `<70000>` for a text, and no token ends an answer.
    Random(Shape),
}

/// The name of the model that is part of this crate.
pub const EMBEDDED: &str = "austen-2m";

/// Positions of one request with random weights, where none are asked for: what measurements need,
/// without the KV pool that a model's whole context takes.
pub const RANDOM_CONTEXT_DEFAULT: u32 = 4_096;

/// What the loaded model should be able to hold.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LoadOptions {
    /// A file with a chat template in place of the model's own.
    pub chat_template: Option<PathBuf>,
    /// Sequences in one step at most.
    pub sequences_max: u32,
    /// Positions in one step at most.
    pub step_tokens_max: u32,
    /// Positions of one request at most. Where absent: the model's own limit, and with random
    /// weights no more than [`RANDOM_CONTEXT_DEFAULT`].
    pub context_max: Option<u32>,
    /// Positions in one KV block.
    pub block_size: u32,
    /// Positions in the whole KV pool. Where absent: enough for every sequence to fill its context,
    /// or what half of the free memory holds if that is less.
    pub kv_tokens: Option<u64>,
    /// How the CPU works.
    pub cpu: CpuOptions,
    /// Where the decoder runs.
    pub device: DeviceKind,
    /// On a GPU, the type of weights, activations and cache; where absent, bf16 if the GPU has it. On the
    /// CPU, what the factors of matrix products are rounded to, as far as it [goes](Precision::with) with
    /// the weights; where absent, [nothing is rounded or all is](Precision::of_cpu).
    pub precision: Option<Precision>,
    /// On a GPU, whether decode steps are recorded and replayed, instead of launched operation by
    /// operation.
    pub graphs: bool,
    /// On CUDA, whether matrix products of few rows are Burn's, of which the GPU decides by timing which is used, in place
    /// of this crate's own: the control for what these gain.
    pub tuned_decode: bool,
    /// On a GPU, whether every size of a step is run before the first request, so that none is
    /// compiled, tuned or recorded while a request waits.
    pub warm: bool,
}

impl Default for LoadOptions {
    fn default() -> Self {
        Self {
            chat_template: None,
            sequences_max: 16,
            step_tokens_max: 512,
            context_max: None,
            block_size: 16,
            kv_tokens: None,
            cpu: CpuOptions::default(),
            device: DeviceKind::Auto,
            precision: None,
            graphs: true,
            tuned_decode: false,
            warm: true,
        }
    }
}

/// How far loading has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Progress {
    /// Weights are being read.
    Weights {
        /// Bytes read, as they are stored.
        bytes: u64,
        /// Bytes that there are.
        bytes_total: u64,
    },
    /// The KV pool is being made.
    Cache {
        /// Its size.
        bytes: u64,
    },
    /// Sizes of steps are being run for the first time.
    Warm {
        /// Sizes that were run.
        steps: usize,
        /// Sizes that there are.
        steps_total: usize,
    },
}
