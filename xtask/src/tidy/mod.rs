//! `cargo xtask tidy`: the house rules as a check.
//!
//! A rule is a small function from text (or from the dependency graph) to findings; each names a
//! place and the remedy. What a lint of rustc or clippy can say is said there and not here.

mod api;
mod circles;
mod docs;
mod edges;
mod manifests;
mod sources;

use std::fmt;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use thiserror::Error;

use crate::cargo::TaskResult;

/// A rule that is broken: where, and what to do.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Finding {
    path: String,
    line: usize,
    remedy: String,
}

impl Finding {
    /// `line` counts from 1.
    fn new(file: &File, line: usize, remedy: impl Into<String>) -> Self {
        Self {
            path: file.path.clone(),
            line,
            remedy: remedy.into(),
        }
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}: {}", self.path, self.line, self.remedy)
    }
}

/// A text file of the repository.
#[derive(Clone, Debug)]
struct File {
    /// Its path from the root of the workspace, with forward slashes.
    path: String,
    /// What it says.
    text: String,
}

impl File {
    /// The lines with their numbers, from 1.
    fn lines(&self) -> impl Iterator<Item = (usize, &str)> {
        self.text
            .lines()
            .enumerate()
            .map(|(index, line)| (index + 1, line))
    }

    fn is_rust(&self) -> bool {
        self.path.ends_with(".rs")
    }

    /// Of the stand-ins for a driver, which no Rust can be.
    fn is_cpp(&self) -> bool {
        self.path.ends_with(".cc") || self.path.ends_with(".h")
    }

    fn is_markdown(&self) -> bool {
        self.path.ends_with(".md")
    }

    /// Whether the whole file is test code.
    fn is_test(&self) -> bool {
        let in_test_folder = |part: &str| matches!(part, "tests" | "benches" | "tests.rs");
        self.path.split('/').any(in_test_folder)
    }
}

/// A file that cannot be read.
#[derive(Debug, Error)]
#[error("cannot read {}: {source}", path.display())]
struct ReadError {
    path: PathBuf,
    source: io::Error,
}

/// Where the rules look; the rest of the root (a target folder, an environment) is not ours.
const ROOTS: [&str; 6] = ["crates", "examples", "xtask", "docs", ".ci", ".cargo"];
/// Which files are text that a person wrote.
const KINDS: [&str; 8] = ["rs", "md", "toml", "sh", "py", "yml", "cc", "h"];

/// Applies every rule and prints what is broken.
pub(crate) fn run(cli: &clap::Command) -> TaskResult {
    let metadata = cargo_metadata::MetadataCommand::new().exec()?;
    let root = metadata.workspace_root.as_std_path();
    let files = read(root)?;
    let mut findings = edges::check()?;
    findings.extend(files.iter().flat_map(sources::check));
    findings.extend(circles::check(&files));
    findings.extend(manifests::check(&files));
    findings.extend(api::check(&files, |path| {
        fs::read_to_string(root.join(path)).ok()
    }));
    let binaries = metadata.workspace_packages().into_iter();
    let binaries = binaries
        .flat_map(|package| &package.targets)
        .filter(|target| target.is_bin());
    let binaries = binaries
        .map(|target| target.name.as_str())
        .collect::<Vec<_>>();
    findings.extend(docs::check(&files, cli, &binaries, |path| {
        root.join(path).exists()
    }));
    findings.sort();
    for finding in &findings {
        println!("{finding}");
    }
    let plural = if findings.len() == 1 { "" } else { "s" };
    println!(
        "tidy: {} files, {} finding{plural}",
        files.len(),
        findings.len()
    );
    Ok(if findings.is_empty() {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

/// Writes what others can name of the crates that they depend on, where [`run`] looks for it.
pub(crate) fn write_api() -> TaskResult {
    let metadata = cargo_metadata::MetadataCommand::new().no_deps().exec()?;
    let root = metadata.workspace_root.as_std_path();
    let files = read(root)?;
    for krate in api::CRATES {
        fs::write(root.join(api::path(krate)), api::listing(&files, krate))?;
    }
    Ok(ExitCode::SUCCESS)
}

/// The text files below [`ROOTS`] and directly in the root, sorted.
fn read(root: &Path) -> Result<Vec<File>, ReadError> {
    let mut files = Vec::new();
    for entry in list(root)? {
        let is_ours = entry.is_dir() && ROOTS.iter().any(|ours| entry.ends_with(ours));
        if is_ours || entry.is_file() {
            collect(root, &entry, &mut files)?;
        }
    }
    files.sort_by(|a, b| a.path.cmp(&b.path));
    Ok(files)
}

fn collect(root: &Path, path: &Path, files: &mut Vec<File>) -> Result<(), ReadError> {
    if path.is_dir() {
        for entry in list(path)? {
            collect(root, &entry, files)?;
        }
        return Ok(());
    }
    let kind = path.extension().and_then(|kind| kind.to_str());
    let is_script = path.ends_with(".ci/run");
    if !is_script && !kind.is_some_and(|kind| KINDS.contains(&kind)) {
        return Ok(());
    }
    let text = fs::read_to_string(path).map_err(|source| ReadError {
        path: path.to_owned(),
        source,
    })?;
    let relative = path.strip_prefix(root).unwrap_or(path);
    files.push(File {
        path: relative.to_string_lossy().replace('\\', "/"),
        text,
    });
    Ok(())
}

fn list(dir: &Path) -> Result<Vec<PathBuf>, ReadError> {
    let failed = |source| ReadError {
        path: dir.to_owned(),
        source,
    };
    let entries = fs::read_dir(dir).map_err(failed)?;
    let paths = entries.map(|entry| entry.map(|entry| entry.path()));
    paths.collect::<Result<_, _>>().map_err(failed)
}

#[cfg(test)]
fn file(path: &str, text: &str) -> File {
    File {
        path: path.to_owned(),
        text: text.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_finding_reads_like_a_compiler_error() {
        let finding = Finding::new(&file("crates/a/src/lib.rs", ""), 3, "open the window");
        assert_eq!(
            finding.to_string(),
            "crates/a/src/lib.rs:3: open the window"
        );
    }

    #[test]
    fn test_code_is_known_by_its_folder() {
        for path in [
            "crates/a/tests/it/main.rs",
            "crates/a/benches/b.rs",
            "crates/a/src/x/tests.rs",
        ] {
            assert!(file(path, "").is_test(), "{path}");
        }
        assert!(!file("crates/a/src/latests.rs", "").is_test());
    }
}
