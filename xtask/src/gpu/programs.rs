//! serve-model's own tests, built for CUDA, as programs that are started without cargo.
//!
//! Without cargo, because its build scripts watch CUDA_PATH, which has to say where a stand-in's headers are.

use std::io::BufReader;
use std::path::{Path, PathBuf};
use std::process::{ExitCode, Stdio};

use cargo_metadata::Message;

use crate::cargo;

/// The decoder alone, as everything else has nothing to do with a GPU.
const BUILD: [&str; 11] = [
    "test",
    "--profile",
    "emulate",
    "--package",
    "serve-model",
    "--features",
    "cuda",
    "--lib",
    "--test",
    "it",
    "--no-run",
];

/// The test programs.
#[derive(Debug)]
pub(super) struct Programs {
    /// The crate's own tests, those of the kernels among them.
    pub(super) lib: PathBuf,
    /// Its integration tests.
    pub(super) it: PathBuf,
}

impl Programs {
    /// Which of their tests run on CUDA.
    pub(super) fn of_cuda(&self) -> [(&Path, &'static [&'static str]); 2] {
        [
            (&self.lib, &["gpu::"]),
            (&self.it, &["devices::cuda", "rounding::cuda"]),
        ]
    }

    /// Builds them into `target`, which takes a quarter of an hour the first time. If they do not build, cargo has said
    /// why, and its exit code is what is left.
    pub(super) fn build(
        target: &Path,
    ) -> Result<Result<Self, ExitCode>, Box<dyn std::error::Error>> {
        let mut build = cargo::command(&BUILD);
        build.args(["--message-format", "json-render-diagnostics"]);
        build.arg("--target-dir").arg(target);
        let mut child = build.stdout(Stdio::piped()).spawn()?;
        let messages = child.stdout.take().map(BufReader::new);
        let mut programs = Vec::new();
        for message in messages.into_iter().flat_map(Message::parse_stream) {
            if let Message::CompilerArtifact(artifact) = message?
                && let Some(program) = artifact.executable
            {
                programs.push((artifact.target.name, program.into_std_path_buf()));
            }
        }
        let status = child.wait()?;
        if !status.success() {
            return Ok(Err(cargo::exit_code(status)));
        }
        let find = |name: &str| {
            let found = programs.iter().find(|(target, _)| target == name);
            let missing = || format!("cargo named no test program {name}");
            found
                .map(|(_, program)| program.clone())
                .ok_or_else(missing)
        };
        Ok(Ok(Self {
            lib: find("serve_model")?,
            it: find("it")?,
        }))
    }
}
