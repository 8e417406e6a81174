//! `cargo xtask matrix-check`: the control matrix of serve-bench on the real server, end to end.
//!
//! It is quick and its machine may be busy, so no time in it means anything and none is looked at: what
//! is checked is that every section was measured, that its pairs were proved to differ, and that the
//! books of every run balance.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, ExitStatus, Stdio};

use serde::Deserialize;
use serve_bench::store::folder::{FolderError, RunFolder, folders_in};
use serve_bench::store::record::{Outcome, Record};
use thiserror::Error;

use crate::TaskResult;
use crate::place;

/// Exit codes of a matrix that was measured: all well; a load that the busy client sent late; a pair
/// whose times do not differ as they would on a quiet machine.
const MEASURED: [i32; 3] = [0, 3, 5];
/// Sections whose conditions differ in the request, or that read the points of another.
const WITHOUT_PAIRS: [&str; 2] = ["streaming", "steps"];
/// The section in which patience runs out, as it should.
const IMPATIENT: &str = "waves";

/// What is wrong with a matrix.
#[derive(Debug, Error)]
enum MatrixError {
    /// It was not measured to its end.
    #[error("serve-bench matrix ended with {0}; one of {MEASURED:?} was expected")]
    Ended(ExitStatus),
    /// A file cannot be read.
    #[error("{}: {source}", path.display())]
    Io {
        /// The file or folder.
        path: PathBuf,
        /// The operating system's answer.
        source: io::Error,
    },
    /// A file is not what it should be.
    #[error("{}: {source}", path.display())]
    Json {
        /// The file.
        path: PathBuf,
        /// The parser's answer.
        source: serde_json::Error,
    },
    /// A run cannot be read.
    #[error(transparent)]
    Folder(#[from] FolderError),
    /// A section is missing.
    #[error("not measured: {0}")]
    Missing(String),
    /// A pair was not proved.
    #[error("section {0} has no pair that was proved to differ")]
    NoProof(String),
    /// The books of a run do not balance.
    #[error("{run}: {wrong}")]
    Books {
        /// The folder of the run.
        run: String,
        /// What is wrong.
        wrong: String,
    },
}

#[derive(Deserialize)]
struct Matrix {
    sections: Vec<Section>,
    missing: Vec<(String, String)>,
}

#[derive(Deserialize)]
struct Section {
    name: String,
    proofs: Vec<serde_json::Value>,
}

/// Measures, checks.
pub(crate) fn run() -> TaskResult {
    let out = place::target()?.join("matrix-check");
    match fs::remove_dir_all(&out) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            return Err(io_error(&out)(error).into());
        }
        _ => {}
    }
    let program = place::beside("serve-bench")?;
    let mut matrix = Command::new(&program);
    matrix.args([
        "matrix",
        "--backend",
        "mock",
        "--smoke",
        "--with",
        "mock_speed=16",
        "--out",
    ]);
    let status = matrix.arg(&out).stdout(Stdio::null()).status();
    let status = status.map_err(io_error(&program))?;
    if !status.code().is_some_and(|code| MEASURED.contains(&code)) {
        return Err(MatrixError::Ended(status).into());
    }
    let runs = check(&out)?;
    println!("{runs} runs: every section measured, every pair proved, all books balance");
    Ok(ExitCode::SUCCESS)
}

/// Checks the folder of a matrix; gives back how many runs it holds.
fn check(out: &Path) -> Result<usize, MatrixError> {
    let path = out.join("matrix.json");
    let text = fs::read_to_string(&path).map_err(io_error(&path))?;
    let matrix = serde_json::from_str::<Matrix>(&text);
    let matrix = matrix.map_err(|source| MatrixError::Json { path, source })?;
    if let Some((section, why)) = matrix.missing.first() {
        return Err(MatrixError::Missing(format!("{section}: {why}")));
    }
    let paired = |section: &&Section| !WITHOUT_PAIRS.contains(&section.name.as_str());
    let mut paired = matrix.sections.iter().filter(paired);
    if let Some(section) = paired.find(|section| section.proofs.is_empty()) {
        return Err(MatrixError::NoProof(section.name.clone()));
    }
    let folders = folders_in(out)?;
    for folder in &folders {
        let run = RunFolder::at(folder).open()?;
        let name = folder.file_name().unwrap_or_default();
        let planned = run.manifest.workload.requests;
        balance(&name.to_string_lossy(), planned, &run.records)?;
    }
    match folders.len() {
        0 => Err(MatrixError::Missing("every run".to_owned())),
        runs => Ok(runs),
    }
}

/// Each request has one original attempt, each attempt one end, and times where it was sent.
fn balance(run: &str, planned: u64, rows: &[Record]) -> Result<(), MatrixError> {
    let originals = rows.iter().filter(|row| row.attempt == 0).count() as u64;
    let was_sent = |row: &Record| row.sent_ns.is_some() && row.end_ns.is_some();
    let mut unclear = rows
        .iter()
        .filter(|row| was_sent(row) == (row.outcome == Outcome::NotSent));
    let failed = rows.iter().filter(|row| row.outcome == Outcome::Failed);
    let failed = failed.count();
    let wrong = if originals != planned {
        format!("{originals} of {planned} requests have rows")
    } else if unclear.next().is_some() {
        "an attempt was sent and not sent at once".to_owned()
    } else if failed > 0 && !run.starts_with(IMPATIENT) {
        format!("{failed} of {} attempts failed", rows.len())
    } else {
        return Ok(());
    };
    let run = run.to_owned();
    Err(MatrixError::Books { run, wrong })
}

fn io_error(path: &Path) -> impl FnOnce(io::Error) -> MatrixError + use<> {
    let path = path.to_owned();
    move |source| MatrixError::Io { path, source }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(outcome: Outcome, times: [Option<u64>; 2]) -> Record {
        Record {
            outcome,
            sent_ns: times[0],
            end_ns: times[1],
            ..Record::not_sent(0, 0)
        }
    }

    #[test]
    fn what_is_missing_or_unproved_is_named() {
        let folder = std::env::temp_dir().join(format!("matrix-check-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        let wrong = |matrix: &str| {
            fs::write(folder.join("matrix.json"), matrix).unwrap();
            check(&folder).unwrap_err().to_string()
        };
        let missing = wrong(r#"{"sections": [], "missing": [["kv", "stopped"]]}"#);
        let bare = wrong(r#"{"sections": [{"name": "kv", "proofs": []}], "missing": []}"#);
        let empty = wrong(r#"{"sections": [{"name": "tiers", "proofs": [{}]}], "missing": []}"#);
        fs::remove_dir_all(&folder).unwrap();
        assert_eq!(missing, "not measured: kv: stopped");
        assert!(bare.contains("section kv"), "{bare}");
        assert_eq!(empty, "not measured: every run");
    }

    #[test]
    fn books_that_do_not_balance_are_named() {
        let ok = row(Outcome::Ok, [Some(1), Some(2)]);
        let not_sent = row(Outcome::NotSent, [None, None]);
        assert!(balance("tiers-flat", 2, &[ok.clone(), not_sent]).is_ok());
        let wrong = |run: &str, rows: &[Record]| balance(run, 2, rows).map_err(|e| e.to_string());
        let lost = Err("tiers-flat: 1 of 2 requests have rows".to_owned());
        assert_eq!(wrong("tiers-flat", std::slice::from_ref(&ok)), lost);
        let retry = Record {
            attempt: 1,
            ..ok.clone()
        };
        assert_eq!(wrong("tiers-flat", &[ok.clone(), retry]), lost);
        let endless = row(Outcome::Ok, [Some(1), None]);
        let found = wrong("tiers-flat", &[ok.clone(), endless]).unwrap_err();
        assert!(found.contains("at once"), "{found}");
        let failed = [ok, row(Outcome::Failed, [Some(1), Some(2)])];
        let found = wrong("tiers-flat", &failed).unwrap_err();
        assert_eq!(found, "tiers-flat: 1 of 2 attempts failed");
        assert!(wrong("waves-early", &failed).is_ok());
    }
}
