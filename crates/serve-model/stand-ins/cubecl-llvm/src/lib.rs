//! A stand-in for `cubecl-llvm`, with as much of its interface as `cubecl-cuda` names and nothing
//! behind it.
//!
//! `cubecl-cuda` depends on the real crate, whose build script downloads LLVM. With the `cpp` feature
//! of `cubecl-cuda` kernels are compiled by NVRTC as CUDA C++, and LLVM is never asked. What is here
//! only has to compile; asked all the same, it says that it cannot.

use std::ffi::c_char;

use cubecl_core::ir::{DeviceProperties, nvidia::SmArch};
use cubecl_core::prelude::KernelDefinition;
use cubecl_runtime::compiler::{CompilationError, Compiler};
use cubecl_runtime::kernel::BufferIOAttr;

/// What is particular to NVIDIA.
pub mod nvptx {
    /// Versions of PTX.
    pub mod ptx_version {
        /// A version that is never found.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub struct PtxVersion(u32);

        impl PtxVersion {
            /// None, whatever the driver.
            pub fn for_driver(_driver: i32) -> Option<Self> {
                None
            }
        }

        impl std::fmt::Display for PtxVersion {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                write!(f, "ptx{}", self.0)
            }
        }
    }
}

/// What all targets share.
pub mod shared {
    /// Features that a target does not have.
    pub mod lowered_features {
        /// A target.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum GpuTarget {
            /// NVIDIA.
            Nvptx,
        }

        /// Leaves the properties as they are.
        pub fn restrict_features(
            _properties: &mut super::super::DeviceProperties,
            _target: GpuTarget,
        ) {
        }
    }
}

/// What is compiled for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LlvmTarget {
    /// The host.
    #[default]
    Cpu,
    /// NVIDIA.
    Nvptx,
}

/// A compiler that compiles nothing.
#[derive(Clone, Debug, Default)]
pub struct PlironCompiler {
    /// What is compiled for.
    pub target: LlvmTarget,
}

/// How to compile.
#[derive(Clone, Debug, Default)]
pub struct PlironOptions {
    /// The architecture.
    pub arch: Option<()>,
    /// The streaming multiprocessor's architecture.
    pub sm_arch: Option<SmArch>,
    /// The version of PTX.
    pub ptx_version: Option<nvptx::ptx_version::PtxVersion>,
    /// Whether parameters are grid constants.
    pub grid_constants: bool,
    /// How buffers are aligned on the host.
    pub cpu_buffer_alignment: Option<u32>,
}

/// A compiled kernel.
#[derive(Clone, Debug)]
pub struct NvptxModule {
    /// Its text.
    pub ptx: Vec<c_char>,
    /// What it was compiled from.
    pub ir: String,
    /// Bytes.
    pub shared_memory_size: usize,
    /// How it uses its buffers.
    pub io: Vec<BufferIOAttr>,
}

/// What comes out of the compiler.
pub enum PlironArtifact {
    /// For NVIDIA.
    NvptxCode(NvptxModule),
    /// For nothing else.
    Unsupported,
}

impl std::fmt::Display for PlironArtifact {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("nothing: built without LLVM")
    }
}

impl Compiler for PlironCompiler {
    type Representation = PlironArtifact;
    type CompilationOptions = PlironOptions;

    fn compile(
        &mut self,
        _kernel: KernelDefinition,
        _options: &Self::CompilationOptions,
    ) -> Result<Self::Representation, CompilationError> {
        Err(CompilationError::Generic {
            reason: "built without LLVM; cubecl-cuda's feature `cpp` must be on".to_owned(),
            backtrace: cubecl_core::environment::backtrace::BackTrace::capture(),
        })
    }

    fn extension(&self) -> &'static str {
        "ll"
    }

    fn lang_tag(&self) -> &'static str {
        "llvm"
    }
}
