//! A trial kernel, compiled as kernels will be: with the same headers, for this very GPU, and loaded. It says in a second
//! what a model that is loaded first would say after minutes.

use std::path::Path;

use cudarc::driver::CudaContext;
use cudarc::nvrtc::{CompileError, CompileOptions, compile_ptx_with_opts};

/// bf16 on tensor cores where there are such, and the headers that products of any kind may include.
const SOURCE: &str = r#"
#include <cuda_fp16.h>
#include <cuda_bf16.h>
#include <mma.h>
#include <cuda/barrier>
#include <cooperative_groups.h>

extern "C" __global__ void trial(const __nv_bfloat16* a, const __nv_bfloat16* b, float* out) {
#if __CUDA_ARCH__ >= 800
    using namespace nvcuda::wmma;
    fragment<matrix_a, 16, 16, 16, __nv_bfloat16, row_major> left;
    fragment<matrix_b, 16, 16, 16, __nv_bfloat16, col_major> right;
    fragment<accumulator, 16, 16, 16, float> sum;
    fill_fragment(sum, 0.0f);
    load_matrix_sync(left, a, 16);
    load_matrix_sync(right, b, 16);
    mma_sync(sum, left, right, sum);
    store_matrix_sync(out, sum, 16, mem_row_major);
#else
    out[threadIdx.x] = __bfloat162float(a[threadIdx.x]) * __bfloat162float(b[threadIdx.x]);
#endif
}
"#;

/// Compiles it with the headers below `include`, and has the driver load it.
///
/// # Errors
///
/// What NVRTC or the driver said.
pub(super) fn run(include: &Path) -> Result<(), String> {
    let context = CudaContext::new(0).map_err(|error| error.to_string())?;
    let (major, minor) = context
        .compute_capability()
        .map_err(|error| error.to_string())?;
    // The instructions of one generation alone have a name of their own from 9.0 on.
    let only = if major >= 9 { "a" } else { "" };
    let folders = [include.to_owned(), include.join("cccl")];
    let options = CompileOptions {
        options: vec![format!("--gpu-architecture=sm_{major}{minor}{only}")],
        include_paths: folders.map(|path| path.display().to_string()).to_vec(),
        ..CompileOptions::default()
    };
    let image = compile_ptx_with_opts(SOURCE, options).map_err(|error| match error {
        CompileError::CompileError { log, .. } => log.to_string_lossy().trim().to_owned(),
        other => other.to_string(),
    })?;
    let loaded = context.load_module(image);
    loaded.map(drop).map_err(|error| error.to_string())
}
