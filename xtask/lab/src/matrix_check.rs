//! `cargo xtask matrix-check`: the control matrix of serve-bench on the real server, end to end.
//!
//! It is quick and its machine may be busy, so no time in it means anything and none is looked at: what
//! is checked is that every section was measured, that its pairs were proved to differ, and that the
//! books of every run balance.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, ExitStatus, Stdio};

use serde::Deserialize;
use serde::de::DeserializeOwned;
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

#[derive(Deserialize)]
struct Manifest {
    workload: Workload,
}

#[derive(Deserialize)]
struct Workload {
    requests: u64,
}

#[derive(Deserialize)]
struct Row {
    /// Left out of a row where it is 0.
    #[serde(default)]
    attempt: u32,
    outcome: String,
    sent_ns: Option<u64>,
    end_ns: Option<u64>,
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
    let matrix: Matrix = read(&out.join("matrix.json"))?;
    if let Some((section, why)) = matrix.missing.first() {
        return Err(MatrixError::Missing(format!("{section}: {why}")));
    }
    let paired = |section: &&Section| !WITHOUT_PAIRS.contains(&section.name.as_str());
    let mut paired = matrix.sections.iter().filter(paired);
    if let Some(section) = paired.find(|section| section.proofs.is_empty()) {
        return Err(MatrixError::NoProof(section.name.clone()));
    }
    let mut runs = 0;
    for entry in out.read_dir().map_err(io_error(out))? {
        let folder = entry.map_err(io_error(out))?.path();
        if folder.is_dir() {
            balance(&folder)?;
            runs += 1;
        }
    }
    match runs {
        0 => Err(MatrixError::Missing("every run".to_owned())),
        _ => Ok(runs),
    }
}

/// Each request has one original attempt, each attempt one end, and times where it was sent.
fn balance(folder: &Path) -> Result<(), MatrixError> {
    let manifest: Manifest = read(&folder.join("manifest.json"))?;
    let path = folder.join("rows.jsonl");
    let text = fs::read_to_string(&path).map_err(io_error(&path))?;
    let rows = text.lines().skip(1).map(serde_json::from_str::<Row>);
    let rows = rows.collect::<Result<Vec<_>, _>>();
    let rows = rows.map_err(|source| MatrixError::Json { path, source })?;
    let run = folder
        .file_name()
        .unwrap_or_default()
        .to_string_lossy()
        .into_owned();
    let mut ends = BTreeMap::<&str, usize>::new();
    for row in &rows {
        *ends.entry(&row.outcome).or_default() += 1;
    }
    let originals = rows.iter().filter(|row| row.attempt == 0).count() as u64;
    let known = ["ok", "refused", "failed", "cancelled", "not_sent"];
    let was_sent = |row: &Row| row.sent_ns.is_some() && row.end_ns.is_some();
    let unclear = rows
        .iter()
        .filter(|row| was_sent(row) == (row.outcome == "not_sent"));
    let wrong = if originals != manifest.workload.requests {
        format!(
            "{originals} of {} requests have rows",
            manifest.workload.requests
        )
    } else if let Some(end) = ends.keys().find(|end| !known.contains(*end)) {
        format!("an attempt ended as {end}")
    } else if unclear.count() > 0 {
        "an attempt was sent and not sent at once".to_owned()
    } else if ends.contains_key("failed") && !run.starts_with(IMPATIENT) {
        format!("attempts failed: {ends:?}")
    } else {
        return Ok(());
    };
    Err(MatrixError::Books { run, wrong })
}

fn read<T: DeserializeOwned>(path: &Path) -> Result<T, MatrixError> {
    let text = fs::read_to_string(path).map_err(io_error(path))?;
    serde_json::from_str(&text).map_err(|source| MatrixError::Json {
        path: path.to_owned(),
        source,
    })
}

fn io_error(path: &Path) -> impl FnOnce(io::Error) -> MatrixError + use<> {
    let path = path.to_owned();
    move |source| MatrixError::Io { path, source }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A matrix of one section and one run with these rows, gone at the end of the test.
    struct Scratch(PathBuf);

    impl Scratch {
        fn new(name: &str, matrix: &str, rows: &[&str]) -> Self {
            let name = format!("matrix-check-{name}-{}", std::process::id());
            let path = std::env::temp_dir().join(name);
            let run = path.join("tiers-flat");
            fs::create_dir_all(&run).unwrap();
            fs::write(path.join("matrix.json"), matrix).unwrap();
            fs::write(
                run.join("manifest.json"),
                "{\"workload\": {\"requests\": 2}}",
            )
            .unwrap();
            let rows = rows.iter().map(|row| format!("{row}\n"));
            fs::write(
                run.join("rows.jsonl"),
                format!("{{}}\n{}", rows.collect::<String>()),
            )
            .unwrap();
            Self(path)
        }
    }

    impl Drop for Scratch {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    const PROVED: &str = r#"{"sections": [{"name": "tiers", "proofs": [{}]}], "missing": []}"#;
    const OK: &str = r#"{"outcome": "ok", "sent_ns": 1, "end_ns": 2}"#;

    fn wrong(name: &str, matrix: &str, rows: &[&str]) -> String {
        let scratch = Scratch::new(name, matrix, rows);
        check(&scratch.0).unwrap_err().to_string()
    }

    #[test]
    fn a_matrix_that_was_measured_and_proved_passes() {
        let not_sent = r#"{"outcome": "not_sent"}"#;
        let scratch = Scratch::new("whole", PROVED, &[OK, not_sent]);
        assert_eq!(check(&scratch.0).unwrap(), 1);
    }

    #[test]
    fn what_is_missing_unproved_or_unbalanced_is_named() {
        let missing = r#"{"sections": [], "missing": [["kv", "stopped"]]}"#;
        assert_eq!(
            wrong("missing", missing, &[OK, OK]),
            "not measured: kv: stopped"
        );
        let bare = r#"{"sections": [{"name": "kv", "proofs": []}], "missing": []}"#;
        assert!(wrong("unproved", bare, &[OK, OK]).contains("section kv"));
        let lost = wrong("lost", PROVED, &[OK]);
        assert_eq!(lost, "tiers-flat: 1 of 2 requests have rows");
        let endless = r#"{"outcome": "ok", "sent_ns": 1}"#;
        let retry = r#"{"attempt": 1, "outcome": "ok", "sent_ns": 1, "end_ns": 2}"#;
        let lost = wrong("retried", PROVED, &[OK, retry]);
        assert_eq!(lost, "tiers-flat: 1 of 2 requests have rows");
        assert!(wrong("endless", PROVED, &[OK, endless]).contains("at once"));
        let failed = r#"{"outcome": "failed", "sent_ns": 1, "end_ns": 2}"#;
        assert!(wrong("failed", PROVED, &[OK, failed]).contains("\"failed\": 1"));
    }
}
