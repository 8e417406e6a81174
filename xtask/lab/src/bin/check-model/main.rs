//! Checks a model's folder against golden outputs of the reference implementation.
//!
//! Prints a line for each case and `N passed, N failed`. Exits with 1 if a case fails and with 2 if
//! the model or the golden file cannot be used.

mod checker;
mod golden;

use std::error::Error;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::Parser;
use serve_model::cpu::CpuOptions;
use serve_model::decode::DeviceKind;
use serve_model::load::{LoadOptions, Source, load};
use serve_model::numbers::{Precision, Quantization};

use checker::Checker;
use golden::Case;

/// Check a model's outputs against golden ones.
#[derive(Parser)]
#[command(
    after_help = "Logits may be off by 0.001, and by 0.02 where weights are stored in 16 bits; \
    tokens are the same wherever the best logit leads by more than 0.05.\n\n\
    Of quantised weights the root mean square error of a row of logits is at most 0.12 (q8) or 0.25 (q4) \
    of the logits' own standard deviation, and after the reference's own text the reference's next token \
    is behind the best by at most twice that. Trained models keep that; of weights drawn at random, whose \
    errors nothing evens out, q4 does not.\n\n\
    Exit code 0: all cases passed; 1: a case failed; 2: the model or the golden file cannot be used."
)]
struct Arguments {
    /// The model's folder.
    dir: PathBuf,
    /// The golden file, with `prompts` or `cases`; DIR/golden.json if not given.
    golden: Option<PathBuf>,
    /// Make matrices smaller when they are loaded: q8 or q4 [default: as they are stored].
    #[arg(long)]
    quantize: Option<Quantization>,
    /// Where the model runs: auto, cpu, cuda, webgpu or flex.
    #[arg(long, default_value_t)]
    device: DeviceKind,
    /// On a GPU, the type of weights, activations and cache; on the CPU, what the factors of matrix
    /// products are rounded to: f32, bf16 or, with --quantize, int8 [default: f32; int8 with --quantize].
    #[arg(long)]
    precision: Option<Precision>,
}

#[expect(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "a command that reports to its user"
)]
fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let (mut checker, cases) = match open(&arguments) {
        Ok(opened) => opened,
        Err(error) => {
            eprintln!("error: {error}");
            return ExitCode::from(2);
        }
    };
    let (mut passed, mut failed) = (0, 0);
    for (index, case) in cases.iter().enumerate() {
        let label = case.label(index);
        match checker.check(index, case) {
            Ok(what) => {
                passed += 1;
                println!("ok      {label}: {what}");
            }
            Err(error) => {
                failed += 1;
                println!("FAILED  {label}: {error}");
            }
        }
    }
    println!("{passed} passed, {failed} failed");
    if failed == 0 {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}

fn open(arguments: &Arguments) -> Result<(Checker, Vec<Case>), Box<dyn Error>> {
    let golden = arguments.golden.clone();
    let cases = golden::read(&golden.unwrap_or_else(|| arguments.dir.join("golden.json")))?;
    let options = LoadOptions {
        device: arguments.device,
        // The references are those of f32, also where a GPU would compute in bf16.
        precision: Some(
            arguments
                .precision
                .unwrap_or(Precision::of_cpu(arguments.quantize)),
        ),
        cpu: CpuOptions {
            quantization: arguments.quantize,
            ..CpuOptions::default()
        },
        // A check meets few sizes of steps.
        warm: false,
        sequences_max: 1,
        ..LoadOptions::default()
    };
    let source = Source::Folder(arguments.dir.clone());
    let model = load(&source, &options, &mut |_| ())?;
    Ok((Checker::new(model)?, cases))
}
