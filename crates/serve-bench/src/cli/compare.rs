//! `serve-bench compare`: whether B is better than A.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use crate::analysis::compare::comparable::Layer;
use crate::analysis::compare::{self, CompareOptions, text};
use crate::store::folder::{FolderError, Run, RunFolder};
use clap::Args;
use clap::builder::PossibleValuesParser;

use super::{CommandResult, SloArgs};

/// Arguments of the command.
#[derive(Args, Debug)]
#[command(
    after_help = "Exit code 0: a verdict was reached, whatever it is; 1: A and B cannot be compared."
)]
pub(crate) struct Compare {
    /// The control: a folder of a run, or a folder of repeats
    a: PathBuf,
    /// What is held against it
    b: PathBuf,
    /// Layers of the manifests that may differ; the runtime always may
    #[arg(long, value_name = "LAYER", value_delimiter = ',', value_parser = PossibleValuesParser::new(Layer::ALL.map(Layer::name)))]
    allow: Vec<String>,
    /// Compare runs whose client was the bottleneck, too
    #[arg(long)]
    allow_void: bool,
    /// How surely all intervals together hold the truth
    #[arg(long, value_name = "SHARE", default_value_t = 0.95, value_parser = confidence)]
    confidence: f64,
    /// Print everything as JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    slo: SloArgs,
}

fn confidence(text: &str) -> Result<f64, String> {
    let share = text.parse::<f64>().ok();
    let inside = share.filter(|share| *share > 0.0 && *share < 1.0);
    inside.ok_or_else(|| "accepted is a number between 0 and 1, such as 0.95".to_owned())
}

/// Reads, compares and prints.
pub(crate) fn run(options: &Compare) -> CommandResult {
    let allowed = Layer::ALL.into_iter();
    let allowed = allowed.filter(|layer| options.allow.iter().any(|it| it == layer.name()));
    let how = CompareOptions {
        slo: options.slo.given(),
        confidence: options.confidence,
        allowed: allowed.collect(),
        allow_void: options.allow_void,
    };
    let (a, b) = (runs(&options.a)?, runs(&options.b)?);
    let comparison = compare::compare(&a, &b, &how)?;
    match options.json {
        true => out!("{}", serde_json::to_string_pretty(&comparison)?),
        false => out_part!("{}", text::text(&comparison)),
    }
    Ok(ExitCode::SUCCESS)
}

/// The run in a folder, or the runs in its folders.
fn runs(path: &Path) -> Result<Vec<Run>, FolderError> {
    let folders = RunFolder::all_in(path)?;
    folders.iter().map(RunFolder::open).collect()
}
