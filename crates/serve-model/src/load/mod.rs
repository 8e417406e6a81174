//! From files, or from the bytes inside the binary, to a model that serves.

mod devices;
mod error;
mod files;
mod memory;
mod model;
mod options;
mod placement;
mod sizes;

use std::sync::Arc;

use crate::decode::{Decoder, DecoderBackend, DeviceKind};
use crate::numbers::Precision;

pub use error::LoadError;
pub use model::{Model, ModelInfo};
pub use options::{EMBEDDED, LoadOptions, Progress, RANDOM_CONTEXT_DEFAULT, Source};

use devices::Found;
use files::Files;
use placement::{Placed, Placement};

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
        && !Precision::with(options.cpu.quantization).contains(&precision)
    {
        return Err(LoadError::PrecisionOfWeights { precision });
    }
    let found = match (options.device, options.cpu.quantization) {
        (DeviceKind::Auto | DeviceKind::Cpu, Some(_)) => Found::Cpu(None),
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
        parameters,
        warnings,
    } = Files::open(source, options.chat_template.as_deref())?;
    let mut options = options.clone();
    if matches!(source, Source::Random(_)) {
        let context = config.context_max.min(RANDOM_CONTEXT_DEFAULT);
        options.context_max.get_or_insert(context);
    }
    let placement = Placement {
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
    } = placement.place(&found, progress)?;
    let info = ModelInfo {
        name,
        architecture: config.architecture,
        parameters,
        weights_bytes,
        kv_bytes,
        kv_tokens: u64::from(limits.usable_blocks()) * u64::from(limits.block_size),
        dtype,
        stored_dtype: weights.stored_dtype(),
        quantization: options.cpu.quantization,
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
        warnings,
    })
}
