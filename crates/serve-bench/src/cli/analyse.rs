//! `serve-bench analyse`: the tables of a run, computed again from its rows and its manifest.

use std::io;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use crate::analysis::bootstrap::Bootstrap;
use crate::analysis::compare::comparable::odd_one_out;
use crate::analysis::strata::Cuts;
use crate::analysis::summary;
use crate::analysis::{Analysis, AnalysisOptions};
use crate::store::folder::{FolderError, Run, RunFolder};
use crate::store::record::{self, Outcome};
use clap::Args;
use serve_core::Span;

use super::{CommandResult, SloArgs, VOID};

/// Arguments of the command.
#[derive(Args, Debug)]
pub(crate) struct Analyse {
    /// Folders of runs, or of repeats, or files of rows; several are repeats of the same thing
    #[arg(required = true, value_name = "DIR")]
    runs: Vec<PathBuf>,
    /// Print everything as JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    how: AnalysisArgs,
}

/// How runs are analysed.
#[derive(Args, Debug)]
pub(crate) struct AnalysisArgs {
    #[command(flatten)]
    slo: SloArgs,
    /// What the hardware costs, to say what a million output tokens cost
    #[arg(long, value_name = "DOLLARS")]
    price_per_hour: Option<f64>,
    /// A prompt of more tokens is long [default: the median of the run]
    #[arg(long, value_name = "TOKENS")]
    long_prompt: Option<u32>,
    /// An answer that may have more tokens is long [default: the median of the run]
    #[arg(long, value_name = "TOKENS")]
    long_output: Option<u32>,
    /// A request without a first token for longer is starved [default: ten times
    /// the limit on TTFT, or the median TTFT without one]
    #[arg(long, value_name = "MS")]
    starved_after_ms: Option<u64>,
    /// How often requests are drawn again for the intervals; 0 leaves these out
    #[arg(long, value_name = "COUNT", default_value_t = Bootstrap::default().resamples)]
    resamples: u32,
    /// Fixes these draws
    #[arg(long, value_name = "SEED", default_value_t = Bootstrap::default().seed)]
    bootstrap_seed: u64,
}

impl AnalysisArgs {
    /// As the library takes them.
    pub(crate) fn options(&self) -> AnalysisOptions {
        AnalysisOptions {
            slo: self.slo.given(),
            price_per_hour: self.price_per_hour,
            cuts: Cuts {
                prompt_tokens: self.long_prompt,
                output_tokens: self.long_output,
            },
            starved_after: self.starved_after_ms.map(Span::from_millis),
            bootstrap: Bootstrap {
                resamples: self.resamples,
                seed: self.bootstrap_seed,
                ..Bootstrap::default()
            },
        }
    }
}

/// Reads and prints.
pub(crate) fn run(options: &Analyse) -> CommandResult {
    let runs = options.runs.iter().map(|path| open(path));
    let runs = runs.collect::<Result<Vec<_>, _>>()?.concat();
    if let Some(difference) = odd_one_out(runs.iter().map(|run| &run.manifest)) {
        let hint = "analyse them one by one, or see compare and report";
        return Err(
            format!("these runs are no repeats of each other: {difference}; {hint}").into(),
        );
    }
    let analysis = Analysis::of(&runs, &options.how.options());
    if options.json {
        out!("{}", serde_json::to_string_pretty(&analysis)?);
        return Ok(exit_code(&analysis));
    }
    print(&runs, &analysis)?;
    Ok(exit_code(&analysis))
}

/// The run in a folder, or those in its folders; or rows alone, of which nothing else is known.
fn open(path: &Path) -> Result<Vec<Run>, FolderError> {
    if path.is_file() {
        return Ok(vec![Run::of_rows(record::read(path)?)]);
    }
    let folders = RunFolder::all_in(path)?;
    folders.iter().map(RunFolder::open).collect()
}

/// Prints the tables of runs.
pub(crate) fn print(runs: &[Run], analysis: &Analysis) -> io::Result<()> {
    out_part!("{}", summary::text(analysis));
    let records = runs.iter().flat_map(|run| &run.records);
    let wrong = |outcome| matches!(outcome, Outcome::Refused | Outcome::Failed);
    if let Some(first) = records.into_iter().find(|row| wrong(row.outcome)) {
        let cause = first.error.as_deref().unwrap_or("no cause was given");
        out!(
            "\nfirst that went wrong: request {}: {cause}",
            first.request
        );
    }
    Ok(())
}

/// Fails when no answer came whole, and when the run is void.
pub(crate) fn exit_code(analysis: &Analysis) -> ExitCode {
    match (analysis.is_void(), analysis.all().requests.ok) {
        (true, _) => ExitCode::from(VOID),
        (false, 0) => ExitCode::FAILURE,
        (false, _) => ExitCode::SUCCESS,
    }
}
