//! Puts a decoder onto its device: how much memory there is, what goes into it, and what it is called.

use serve_core::Limits;

use super::devices::Found;
use super::error::LoadError;
use super::memory;
use super::options::{LoadOptions, Progress};
use super::sizes::{Room, Sizes};
use crate::config::ModelConfig;
use crate::cpu::{self, CpuDevice};
use crate::decode::{DecoderDevice, DeviceMissing};
use crate::flex::FlexDevice;
use crate::numbers::Precision;
use crate::weights::{TensorSource, parameters, stored_bytes};

/// A decoder's weights and cache on a device.
pub(super) struct Placed {
    pub(super) device: Box<dyn DecoderDevice>,
    pub(super) limits: Limits,
    pub(super) weights_bytes: u64,
    pub(super) kv_bytes: u64,
    pub(super) dtype: &'static str,
    pub(super) name: String,
}

/// What is to be placed.
pub(super) struct Placement<'a> {
    pub(super) config: &'a ModelConfig,
    pub(super) weights: &'a dyn TensorSource,
    pub(super) options: &'a LoadOptions,
}

impl Placement<'_> {
    pub(super) fn place(
        &self,
        found: &Found,
        progress: &mut dyn FnMut(Progress),
    ) -> Result<Placed, LoadError> {
        match found {
            Found::Cpu(passed_over) => self.on_cpu(passed_over.as_ref(), progress),
            Found::Flex => self.on_flex(progress),
            #[cfg(feature = "gpu")]
            Found::Gpu(gpu) => self.on_gpu(gpu, progress),
        }
    }

    fn on_cpu(
        &self,
        passed_over: Option<&DeviceMissing>,
        progress: &mut dyn FnMut(Progress),
    ) -> Result<Placed, LoadError> {
        let quantization = self.options.cpu.quantization;
        let precision = self.options.precision;
        let precision = precision.unwrap_or(Precision::of_cpu(quantization));
        let stored = stored_bytes(self.weights, self.config)?;
        let sizes = self.sizes(&Room {
            free: memory::available_bytes(),
            weights_bytes: cpu::weights_bytes(self.weights, self.config, quantization, precision)?,
            kv_element_bytes: size_of::<f32>(),
            kv_percent_max: 50,
        })?;
        let device = CpuDevice::load(
            self.config,
            self.weights,
            sizes.kv,
            sizes.limits.context_max,
            precision,
            self.options.cpu,
            &mut |bytes| progress(read(bytes, stored)),
        )?;
        progress(cache(&sizes));
        let threads = device.threads();
        let passed_over = passed_over.map_or_else(String::new, |why| format!("; {why}"));
        let name = format!("cpu ({threads} threads{passed_over})");
        Ok(placed(device, &sizes, precision.name(), name))
    }

    fn on_flex(&self, progress: &mut dyn FnMut(Progress)) -> Result<Placed, LoadError> {
        let stored = stored_bytes(self.weights, self.config)?;
        let sizes = self.sizes(&Room {
            free: memory::available_bytes(),
            weights_bytes: parameters(self.config) * size_of::<f32>() as u64,
            kv_element_bytes: size_of::<f32>(),
            kv_percent_max: 50,
        })?;
        let device = FlexDevice::load(
            self.config,
            self.weights,
            &sizes.limits,
            &burn::tensor::Device::flex(),
            &mut |bytes| progress(read(bytes, stored)),
        )?;
        progress(cache(&sizes));
        let name = "flex (Burn's own operations, on the CPU)".to_owned();
        Ok(placed(device, &sizes, "f32", name))
    }

    #[cfg(feature = "gpu")]
    fn on_gpu(
        &self,
        gpu: &crate::gpu::Gpu,
        progress: &mut dyn FnMut(Progress),
    ) -> Result<Placed, LoadError> {
        use crate::gpu::{Float, GpuDevice, GpuParts};

        let float = match self.options.precision {
            Some(precision) => {
                Float::of(precision).ok_or(LoadError::PrecisionOfWeights { precision })?
            }
            None => gpu.float(),
        };
        let stored = stored_bytes(self.weights, self.config)?;
        let sizes = self.sizes(&Room {
            free: gpu.free_bytes(),
            weights_bytes: parameters(self.config) * float.bytes() as u64,
            kv_element_bytes: float.bytes(),
            // What is left is for the buffers of a step and for tuning.
            kv_percent_max: 85,
        })?;
        let parts = GpuParts {
            gpu,
            float,
            config: self.config,
            limits: &sizes.limits,
            source: self.weights,
            graphs: self.options.graphs,
            tuned_decode: self.options.tuned_decode,
        };
        let mut device = GpuDevice::load(&parts, &mut |bytes| progress(read(bytes, stored)))?;
        progress(cache(&sizes));
        if self.options.warm {
            device.warm(&mut |steps, steps_total| {
                progress(Progress::Warm { steps, steps_total });
            })?;
        }
        let graphs = match device.refused() {
            Some(cause) => format!("; decode steps cannot be recorded: {cause}"),
            None if device.graphs() == 0 => String::new(),
            None => format!("; {} decode steps recorded", device.graphs()),
        };
        let name = format!("{}{graphs}", gpu.name());
        Ok(placed(device, &sizes, float.name(), name))
    }

    fn sizes(&self, room: &Room) -> Result<Sizes, LoadError> {
        Sizes::of(self.config, self.options, room)
    }
}

fn placed(
    device: impl DecoderDevice + 'static,
    sizes: &Sizes,
    dtype: &'static str,
    name: String,
) -> Placed {
    Placed {
        device: Box::new(device),
        limits: sizes.limits,
        weights_bytes: sizes.weights_bytes,
        kv_bytes: sizes.kv_bytes,
        dtype,
        name,
    }
}

fn read(bytes: u64, bytes_total: u64) -> Progress {
    Progress::Weights { bytes, bytes_total }
}

fn cache(sizes: &Sizes) -> Progress {
    Progress::Cache {
        bytes: sizes.kv_bytes,
    }
}
