//! From files, or from the bytes inside the binary, to a model that serves.

mod error;
mod files;
mod place;
mod sizes;

use std::path::PathBuf;
use std::sync::Arc;

use crate::backend::DecoderBackend;
use crate::config::Architecture;
use crate::decoder::Decoder;
use crate::devices::{self, DeviceKind, Found};
use crate::generation::GenerationConfig;
use crate::host::HostOptions;
use crate::kernels::{Precision, Quantization};
use crate::shapes::Shape;
use crate::template::ChatTemplate;
use crate::tokenizer::Tokenizer;

pub use error::LoadError;
use files::Files;
use place::Placed;

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

/// Positions of one request with random weights, where none are asked for: what measurements need,
/// without the KV pool that a model's whole context takes.
pub const RANDOM_CONTEXT_DEFAULT: u32 = 4_096;

/// What the loaded model should be able to hold.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LoadOptions {
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
    pub host: HostOptions,
    /// Where the decoder runs.
    pub device: DeviceKind,
    /// On a GPU, the type of weights, activations and cache; where absent, bf16 if the GPU has it. On the
    /// CPU, what the factors of matrix products are rounded to, as far as it [goes](Precision::with) with
    /// the weights; where absent, [nothing is rounded or all is](Precision::of_cpu).
    pub precision: Option<Precision>,
    /// On a GPU, whether decode steps are recorded and replayed, instead of launched operation by
    /// operation.
    pub graphs: bool,
    /// On a GPU, whether every size of a step is run before the first request, so that none is
    /// compiled, tuned or recorded while a request waits.
    pub warm: bool,
}

impl Default for LoadOptions {
    fn default() -> Self {
        Self {
            sequences_max: 16,
            step_tokens_max: 512,
            context_max: None,
            block_size: 16,
            kv_tokens: None,
            host: HostOptions::default(),
            device: DeviceKind::Auto,
            precision: None,
            graphs: true,
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

/// A model that serves.
#[derive(Debug)]
pub struct Model {
    /// Runs plans.
    pub backend: DecoderBackend,
    /// Text to tokens and back.
    pub tokenizer: Arc<Tokenizer>,
    /// Messages to a prompt; base models have none.
    pub chat_template: Option<ChatTemplate>,
    /// Stop tokens and sampling defaults.
    pub generation: GenerationConfig,
    /// What it is, for people.
    pub info: ModelInfo,
}

/// What a loaded model is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ModelInfo {
    /// The folder's name, that of the embedded model, or `random:` and the shape's.
    pub name: String,
    /// The family.
    pub architecture: Architecture,
    /// Trainable numbers.
    pub parameters: u64,
    /// Memory of the weights.
    pub weights_bytes: u64,
    /// Memory of the KV pool.
    pub kv_bytes: u64,
    /// Positions that the KV pool holds.
    pub kv_tokens: u64,
    /// Type in which the model computes.
    pub dtype: &'static str,
    /// Type in which the weights are stored.
    pub stored_dtype: &'static str,
    /// What the matrices have been made when they were loaded, if not left as they are stored.
    pub quantization: Option<Quantization>,
    /// Where it computes.
    pub device: String,
    /// Positions of one request at most.
    pub context_max: u32,
}

impl ModelInfo {
    /// In what the weights are kept, as in `bf16` or `q8 (stored as bf16)`.
    pub fn weights_dtype(&self) -> String {
        match self.quantization {
            Some(to) => format!("{to} (stored as {})", self.stored_dtype),
            None => self.stored_dtype.to_owned(),
        }
    }
}

/// Loads a model onto its device.
///
/// Everything small is checked first, so that a damaged or unsuitable model fails before its weights
/// are read.
///
/// # Errors
///
/// [`LoadError`], naming the file, key, tensor or option at fault and what is accepted.
pub fn load(
    source: &Source,
    options: &LoadOptions,
    progress: &mut dyn FnMut(Progress),
) -> Result<Model, LoadError> {
    if let Some(precision) = options.precision
        && !Precision::with(options.host.quantization).contains(&precision)
    {
        return Err(LoadError::PrecisionOfWeights { precision });
    }
    let found = match (options.device, options.host.quantization) {
        (DeviceKind::Auto | DeviceKind::Cpu, Some(_)) => Found::Host(None),
        (device, Some(_)) => return Err(LoadError::Quantized { device }),
        (device, None) => devices::find(device)?,
    };
    if matches!(found, Found::Flex) && !matches!(options.precision, None | Some(Precision::F32)) {
        return Err(LoadError::FlexPrecision);
    }
    let Files {
        name,
        config,
        tokenizer,
        chat_template,
        generation,
        weights,
    } = Files::open(source)?;
    let mut options = options.clone();
    if matches!(source, Source::Random(_)) {
        let context = config.context_max.min(RANDOM_CONTEXT_DEFAULT);
        options.context_max.get_or_insert(context);
    }
    let decoder = place::Decoder {
        config: &config,
        weights: &*weights,
        options: &options,
    };
    let Placed {
        device,
        limits,
        weights_bytes,
        kv_bytes,
        dtype,
        name: device_name,
    } = decoder.place(&found, progress)?;
    let info = ModelInfo {
        name,
        architecture: config.architecture,
        parameters: config.parameters(),
        weights_bytes,
        kv_bytes,
        kv_tokens: u64::from(limits.usable_blocks()) * u64::from(limits.block_size),
        dtype,
        stored_dtype: weights.stored_dtype(),
        quantization: options.host.quantization,
        device: device_name,
        context_max: limits.context_max,
    };
    let decoder = Decoder::new(config, device);
    Ok(Model {
        backend: DecoderBackend::new(decoder, limits),
        tokenizer: Arc::new(tokenizer),
        chat_template,
        generation,
        info,
    })
}
