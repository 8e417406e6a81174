//! `serve-bench report`: one HTML file about one run, or about many.

use std::path::PathBuf;
use std::process::ExitCode;

use crate::report::tree;
use clap::Args;

use super::CommandResult;
use super::analyse::AnalysisArgs;

/// Arguments of the command.
#[derive(Args, Debug)]
pub(crate) struct Report {
    /// Folders of runs, or folders of such folders
    #[arg(required = true, value_name = "DIR")]
    folders: Vec<PathBuf>,
    /// Where to write it [default: report.html in the first folder]
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
    #[command(flatten)]
    how: AnalysisArgs,
}

/// Reads, draws and writes.
pub(crate) fn run(options: &Report) -> CommandResult {
    let report = tree::report(&options.folders, &options.how.options())?;
    let out = match (&options.out, options.folders.first()) {
        (Some(out), _) => out.clone(),
        (None, Some(first)) => first.join("report.html"),
        (None, None) => PathBuf::from("report.html"),
    };
    std::fs::write(&out, report.html()?).map_err(|error| format!("{}: {error}", out.display()))?;
    out!("{}", out.display());
    Ok(ExitCode::SUCCESS)
}
