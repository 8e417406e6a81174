//! The `serve-bench` binary.

use std::process::ExitCode;

#[tokio::main]
async fn main() -> ExitCode {
    serve_bench::cli::main().await
}
