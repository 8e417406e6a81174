//! `cargo xtask examples`: every example started as its readers start it. It explains itself, its tables can be read by a
//! program, another seed is taken, and a reader who has seen enough is no error.

use std::io::{BufRead as _, BufReader};
use std::path::Path;
use std::process::{Command, ExitCode, Stdio};

use cargo_metadata::{Metadata, Package};
use serde_json::Value;
use thiserror::Error;

use crate::cargo::{self, TaskResult};

/// What an example cannot be started without.
const ARGUMENTS: [(&str, &[&str]); 1] = [("policy", &["queue-cap"])];
/// What has no tables: it draws.
const DRAWS: &str = "policy-charts";

/// What an example does otherwise than all do.
#[derive(Debug, Error)]
#[error("{line}: {what}")]
struct Odd {
    line: String,
    what: &'static str,
}

pub(crate) fn run() -> TaskResult {
    let metadata = cargo_metadata::MetadataCommand::new().no_deps().exec()?;
    let examples = examples(&metadata);
    let metadata = match cargo::build(&examples)? {
        Ok(metadata) => metadata,
        Err(code) => return Ok(code),
    };
    let folder = metadata.target_directory.join("release");
    for name in &examples {
        let program = folder.join(name);
        explains(program.as_std_path(), *name != DRAWS)?;
        if *name != DRAWS {
            let of = ARGUMENTS.iter().find(|(of, _)| of == name);
            let arguments = of.map_or(&[][..], |(_, arguments)| arguments);
            is_read_by_programs(program.as_std_path(), arguments)?;
            is_read_in_part(program.as_std_path(), arguments)?;
        }
    }
    println!(
        "examples: {} explain themselves, take a seed and print JSON",
        examples.len()
    );
    Ok(ExitCode::SUCCESS)
}

/// The programs of the folder `examples`.
fn examples(metadata: &Metadata) -> Vec<&str> {
    let folder = metadata.workspace_root.join("examples");
    let is_example = |package: &&Package| package.manifest_path.starts_with(&folder);
    let packages = metadata.packages.iter().filter(is_example);
    let targets = packages.flat_map(|package| &package.targets);
    let programs = targets.filter(|target| target.is_bin());
    programs.map(|target| target.name.as_str()).collect()
}

fn explains(program: &Path, has_tables: bool) -> Result<(), Box<dyn std::error::Error>> {
    let mut command = Command::new(program);
    let output = command.arg("--help").output()?;
    let text = String::from_utf8_lossy(&output.stdout);
    let options = ["--help", "--seed", "--json"];
    let said = options.iter().take(if has_tables { 3 } else { 1 });
    let says_all = said.into_iter().all(|option| text.contains(option));
    hold(
        &command,
        output.status.success() && says_all,
        "it does not explain its options",
    )
}

fn is_read_by_programs(
    program: &Path,
    arguments: &[&str],
) -> Result<(), Box<dyn std::error::Error>> {
    let mut command = Command::new(program);
    let output = command
        .args(arguments)
        .args(["--json", "--seed", "7"])
        .output()?;
    hold(
        &command,
        output.status.success(),
        "it fails under another seed",
    )?;
    let text = String::from_utf8_lossy(&output.stdout);
    let mut tables = text.lines().map(is_table);
    let all = text.lines().next().is_some() && tables.all(|is| is);
    hold(&command, all, "a line is no table as JSON")
}

/// Whether a line is a title and rows that have something in them.
fn is_table(line: &str) -> bool {
    let table: Value = serde_json::from_str(line).unwrap_or_default();
    let rows = table["rows"].as_array();
    let is_filled = |row: &Value| row.as_object().is_some_and(|row| !row.is_empty());
    table["title"].is_string()
        && rows.is_some_and(|rows| !rows.is_empty() && rows.iter().all(is_filled))
}

/// As `head -1` does: reads a line, and closes the pipe.
fn is_read_in_part(program: &Path, arguments: &[&str]) -> Result<(), Box<dyn std::error::Error>> {
    let mut command = Command::new(program);
    let mut child = command.args(arguments).stdout(Stdio::piped()).spawn()?;
    let mut line = String::new();
    if let Some(stdout) = child.stdout.take() {
        BufReader::new(stdout).read_line(&mut line)?;
    }
    let status = child.wait()?;
    hold(
        &command,
        status.success() && !line.is_empty(),
        "it fails when its reader has seen enough",
    )
}

fn hold(
    command: &Command,
    holds: bool,
    what: &'static str,
) -> Result<(), Box<dyn std::error::Error>> {
    match holds {
        true => Ok(()),
        false => {
            let line = format!("{command:?}");
            Err(Odd { line, what }.into())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_has_a_title_and_rows_with_something_in_them() {
        assert!(is_table(
            r#"{"title": "t", "rows": [{"order": "fifo", "wait (s)": 1.5}]}"#
        ));
        for line in [
            "",
            "order  wait",
            r#"{"title": "t", "rows": []}"#,
            r#"{"title": "t", "rows": [{}]}"#,
            r#"{"rows": [{"order": "fifo"}]}"#,
        ] {
            assert!(!is_table(line), "{line}");
        }
    }

    #[test]
    fn the_examples_are_those_of_their_folder() {
        let metadata = cargo_metadata::MetadataCommand::new()
            .no_deps()
            .exec()
            .unwrap();
        let examples = examples(&metadata);
        for name in ["axum-front", "policy", DRAWS] {
            assert!(examples.contains(&name), "{examples:?}");
        }
        assert!(!examples.contains(&"serve"), "{examples:?}");
    }
}
