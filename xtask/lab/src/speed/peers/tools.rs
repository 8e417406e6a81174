//! The engines' programs: building them, and running one.

use std::io;
use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus};
use std::time::Duration;

use thiserror::Error;

use super::entrants::{Engine, Entrant};
use crate::gpu_bench::{ProgramError, run_program};
use crate::python::{self, PythonError};
use crate::{place, provenance};
use serve_bench::figure::Figure;

/// The version of llama.cpp's Python package that this was written against.
const LLAMA: &str = "llama-cpp-python==0.3.36";
/// Built from its source for this very CPU, and no more of it than the library.
const CMAKE_ARGS: &str = "-DGGML_NATIVE=ON -DLLAVA_BUILD=OFF";
/// As candle's own documentation builds it.
const CANDLE_RUSTFLAGS: &str = "-C target-cpu=native";
/// Steps of each kind in a process; the median counts. One more comes first and does not.
pub(super) const SAMPLES: &str = "5";
/// For one process.
const PATIENCE: Duration = Duration::from_secs(600);
/// The root mean square by which logits may differ from candle's in f32, as a share of theirs. A layer
/// that was left out, or a tensor in a wrong place, makes it about 1.4; q4 makes it about 0.2.
const DEVIATION_MAX: f64 = 0.4;

/// Why a program cannot be built or run.
#[derive(Debug, Error)]
pub(super) enum ToolError {
    /// This program does not lie where cargo builds it.
    #[error(transparent)]
    Place(#[from] place::NoPlace),
    /// cargo is missing.
    #[error("cannot start cargo: {0}")]
    NoCargo(io::Error),
    /// cargo cannot build something.
    #[error("cargo could not build {what} ({status})")]
    Build {
        /// What.
        what: &'static str,
        /// How cargo ended.
        status: ExitStatus,
    },
    /// The Python package cannot be built.
    #[error("{LLAMA} cannot be built from its source: {0}")]
    Python(#[from] PythonError),
    /// It was not built.
    #[error("{0}")]
    Absent(String),
    /// A program failed.
    #[error(transparent)]
    Program(#[from] ProgramError),
    /// A file cannot be written.
    #[error("{}: {source}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// The operating system's answer.
        source: io::Error,
    },
    /// What an engine computes is not the model.
    #[error("its logits are not those of the weights: {0}")]
    Wrong(String),
}

/// The programs, built.
pub(super) struct Tools {
    root: PathBuf,
    /// This program, whose `speed decode` is ours.
    lab: PathBuf,
    /// What is kept between runs.
    home: PathBuf,
    candle: PathBuf,
    /// The interpreter that llama.cpp is a module of.
    python: Result<PathBuf, String>,
    /// Of every engine.
    pub(super) threads: usize,
    /// Of this workspace.
    pub(super) version: String,
}

impl Tools {
    /// Builds what is not built yet. Without llama.cpp the others can still be measured.
    pub(super) fn build() -> Result<Self, ToolError> {
        let root = place::repository();
        let home = place::target()?.join("peers");
        std::fs::create_dir_all(&home).map_err(file_error(&home))?;
        eprintln!("candle: building, some minutes if it is the first time");
        let mut candle = Command::new("cargo");
        candle.args(["build", "--release", "--locked"]);
        candle.arg("--manifest-path");
        candle.arg(root.join("xtask/peers/Cargo.toml"));
        candle.arg("--target-dir").arg(home.join("candle"));
        candle.env("RUSTFLAGS", CANDLE_RUSTFLAGS);
        build("xtask/peers, the side of candle", &mut candle)?;
        eprintln!("llama.cpp: building, a quarter of an hour if it is the first time");
        let python = python::environment(
            &home.join("venv"),
            &["--no-binary", "llama-cpp-python", LLAMA],
            &[("CMAKE_ARGS", CMAKE_ARGS)],
        );
        Ok(Self {
            lab: place::own()?,
            candle: home.join("candle/release/peers"),
            python: python.map_err(|error| ToolError::from(error).to_string()),
            threads: std::thread::available_parallelism().map_or(1, NonZeroUsize::get),
            version: match provenance::commit() {
                Some(commit) => format!("{} ({commit})", env!("CARGO_PKG_VERSION")),
                None => env!("CARGO_PKG_VERSION").to_owned(),
            },
            root,
            home,
        })
    }

    /// The folder of the weights, written where it is missing.
    pub(super) fn weights(&self, shape: &str) -> Result<PathBuf, ToolError> {
        let folder = self.home.join(shape);
        if folder.exists() {
            return Ok(folder);
        }
        eprintln!("random weights in the shape of {shape}: writing them for every engine");
        let config = self.run(
            self.speed_decode()
                .arg(format!("random:{shape}"))
                .arg("--print-config"),
        )?;
        // A folder without its whole content has another name.
        let partial = self.home.join(format!("{shape}.part"));
        std::fs::create_dir_all(&partial).map_err(file_error(&partial))?;
        let path = partial.join("config.json");
        std::fs::write(&path, config).map_err(file_error(&path))?;
        // Any tokenizer will do: no text is measured.
        let from = self
            .root
            .join("crates/serve-model/models/austen-2m/tokenizer.json");
        std::fs::copy(&from, partial.join("tokenizer.json")).map_err(file_error(&from))?;
        self.run(Command::new(&self.candle).arg("prepare").arg(&partial))?;
        std::fs::rename(&partial, &folder).map_err(file_error(&folder))?;
        Ok(folder)
    }

    /// Whether the decoder computes what candle computes in f32.
    pub(super) fn check(&self, folder: &Path, weights: &str) -> Result<(), ToolError> {
        eprintln!("serve in {weights}: comparing its logits with candle's");
        let mut command = Command::new(&self.lab);
        command
            .arg("check-model")
            .arg(folder)
            .args(quantize(weights));
        self.run(&mut command)?;
        Ok(())
    }

    /// Runs an engine once.
    pub(super) fn measure(
        &self,
        entrant: &Entrant,
        folder: &Path,
    ) -> Result<Vec<Figure>, ToolError> {
        let mut command = match entrant.engine {
            Engine::Serve | Engine::ServeBf16 | Engine::ServeF32 => self.speed_decode(),
            Engine::Candle => Command::new(&self.candle),
            Engine::LlamaCpp => match &self.python {
                Ok(python) => Command::new(python),
                Err(why) => return Err(ToolError::Absent(why.clone())),
            },
        };
        match entrant.engine {
            Engine::Serve | Engine::ServeBf16 | Engine::ServeF32 => {
                command.arg(folder).args(["--device", "cpu", "--json"]);
                command.args(quantize(entrant.weights));
                if let Some(precision) = entrant.engine.precision() {
                    command.args(["--precision", precision]);
                }
            }
            Engine::Candle => {
                command.arg("run").arg(folder);
                command.args(["--weights", entrant.weights]);
            }
            Engine::LlamaCpp => {
                command
                    .arg(self.root.join("xtask/peers/llama.py"))
                    .arg(folder);
                command.args(["--weights", entrant.weights, "--threads"]);
                command.arg(self.threads.to_string());
            }
        }
        command.args(["--samples", SAMPLES]);
        let rows = Figure::parse(&self.run(&mut command)?);
        if !entrant.engine.is_ours() {
            let deviation = rows.iter().find(|row| row.name == "deviation");
            let deviation = deviation.and_then(Figure::number).unwrap_or(f64::NAN);
            if deviation.is_nan() || deviation > DEVIATION_MAX {
                return Err(ToolError::Wrong(format!(
                    "they are {deviation:.2} of the reference off, {DEVIATION_MAX} is accepted"
                )));
            }
        }
        Ok(rows)
    }

    fn speed_decode(&self) -> Command {
        let mut command = Command::new(&self.lab);
        command.args(["speed", "decode"]);
        command
    }

    fn run(&self, command: &mut Command) -> Result<String, ProgramError> {
        // Ours and candle take the number from there.
        command.env("RAYON_NUM_THREADS", self.threads.to_string());
        run_program(command, &self.home.join("log.txt"), PATIENCE)
    }
}

/// The option of our programs that makes weights of this type from bf16.
fn quantize(weights: &str) -> Option<String> {
    (weights != "bf16").then(|| format!("--quantize={weights}"))
}

fn build(what: &'static str, command: &mut Command) -> Result<(), ToolError> {
    let status = command.status().map_err(ToolError::NoCargo)?;
    match status.success() {
        true => Ok(()),
        false => Err(ToolError::Build { what, status }),
    }
}

fn file_error(path: &Path) -> impl FnOnce(io::Error) -> ToolError + use<> {
    let path = path.to_owned();
    move |source| ToolError::File { path, source }
}
