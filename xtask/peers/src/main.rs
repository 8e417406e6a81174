//! The side of candle in `cargo xtask speed peers`: makes the random weights that every engine is
//! measured with, in each engine's format, and measures candle's own Qwen2 models on them.
//!
//! It knows nothing of this workspace, so that what it measures is candle as anybody would use it.

#![expect(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "a command-line tool answers on its standard streams"
)]

mod bench;
mod engine;
mod files;
mod shape;

use std::error::Error;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// What a task comes to.
type Outcome<T = ()> = Result<T, Box<dyn Error>>;

/// Random weights for a comparison of engines, and candle measured on them.
#[derive(Parser)]
struct Arguments {
    #[command(subcommand)]
    task: Task,
}

#[derive(Subcommand)]
enum Task {
    /// Write random weights of the shape in FOLDER/config.json: model.safetensors, a GGUF file of each
    /// type, and golden.json with what candle computes from them in f32.
    Prepare {
        /// The folder.
        folder: PathBuf,
    },
    /// Measure prefill and decode; one JSON object a line.
    Run(bench::Options),
}

fn main() -> ExitCode {
    let result = match Arguments::parse().task {
        Task::Prepare { folder } => files::prepare(&folder),
        Task::Run(options) => bench::run(&options),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::from(2)
        }
    }
}
