//! `cargo xtask check-model`: a model's folder against golden outputs of the reference implementation.

use serve_model::cpu::CpuOptions;
use serve_model::load::{LoadOptions, Source, load};
use serve_model::numbers::Precision;

use super::checker::Checker;
use super::golden::{self, Case};
use super::verdict;
use crate::TaskResult;
use crate::cli::CheckModel;

/// Prints a line for each case and `N passed, N failed`.
pub(crate) fn run(options: &CheckModel) -> TaskResult {
    let (mut checker, cases) = open(options)?;
    let checked = cases.iter().enumerate().map(|(index, case)| {
        let found = checker.check(index, case);
        (case.label(index), found)
    });
    Ok(verdict(checked))
}

fn open(options: &CheckModel) -> Result<(Checker, Vec<Case>), Box<dyn std::error::Error>> {
    let golden = options.golden.clone();
    let cases = golden::read(&golden.unwrap_or_else(|| options.dir.join("golden.json")))?;
    let weights = &options.weights;
    let quantization = weights.quantization()?;
    // The references are those of f32, also where a GPU would compute in bf16.
    let precision = weights.precision()?;
    let load_options = LoadOptions {
        device: weights.device()?,
        precision: Some(precision.unwrap_or(Precision::of_cpu(quantization))),
        cpu: CpuOptions {
            quantization,
            ..CpuOptions::default()
        },
        // A check meets few sizes of steps.
        warm: false,
        sequences_max: 1,
        ..LoadOptions::default()
    };
    let source = Source::Folder(options.dir.clone());
    let model = load(&source, &load_options, &mut |_| ())?;
    Ok((Checker::new(model)?, cases))
}
