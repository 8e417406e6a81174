//! Building the stand-ins for driver and NVRTC from their C++, and what a program needs to be told to find it.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus};

use thiserror::Error;

/// Where the sources are, from the root of the workspace.
const SOURCES: &str = "xtask/cuda-stand-in";
/// What every version of the driver's library is made of.
const DRIVER: [&str; 3] = ["driver.cc", "device.cc", "memory.cc"];
/// Headers of CUDA that kernels or the search for them name. Of the emulator's they are empty: each kernel is compiled
/// with one header of its own before them.
const HEADERS: [&str; 10] = [
    "cuda_runtime.h",
    "cuda_fp16.h",
    "cuda_bf16.h",
    "cuda_fp8.h",
    "cuComplex.h",
    "mma.h",
    "cooperative_groups.h",
    "crt/host_config.h",
    "crt/mma.h",
    "cuda/barrier",
];

/// They cannot be built.
#[derive(Debug, Error)]
pub(super) enum StandInError {
    /// The compiler is missing.
    #[error("cannot start {program}: {source}; install a C++ compiler (g++)")]
    NoCompiler {
        /// It.
        program: &'static str,
        /// The operating system's answer.
        source: io::Error,
    },
    /// It objects to the source.
    #[error("`{command}` failed ({status})")]
    Compile {
        /// The command line.
        command: String,
        /// How it ended.
        status: ExitStatus,
    },
    /// The folder cannot be written.
    #[error("{}: {source}", path.display())]
    Folder {
        /// What was to be written.
        path: PathBuf,
        /// The operating system's answer.
        source: io::Error,
    },
}

/// The stand-ins: a folder with their libraries.
#[derive(Debug)]
pub(super) struct StandIn {
    sources: PathBuf,
    /// Where the libraries are.
    pub(super) home: PathBuf,
}

impl StandIn {
    /// The driver that runs kernels, and its own NVRTC, built into `home`.
    pub(super) fn emulator(root: &Path, home: PathBuf) -> Result<Self, StandInError> {
        let stand_in = Self {
            sources: root.join(SOURCES),
            home,
        };
        let include = stand_in.home.join("include");
        for header in HEADERS {
            let path = include.join(header);
            let folder = path.parent().unwrap_or(&include);
            fs::create_dir_all(folder).map_err(failed(folder))?;
            fs::write(&path, "").map_err(failed(&path))?;
        }
        let kernels = stand_in.kernels();
        fs::create_dir_all(&kernels).map_err(failed(&kernels))?;
        let own = ["emulate.cc", "block.cc", "access.cc"];
        stand_in.library("libcuda.so", &[&DRIVER[..], &own].concat())?;
        stand_in.library("libnvrtc.so", &["nvrtc.cc"])?;
        Ok(stand_in)
    }

    /// The driver that runs nothing and keeps what it is given to run; NVRTC is the real one.
    pub(super) fn recorder(root: &Path, home: PathBuf) -> Result<Self, StandInError> {
        let stand_in = Self {
            sources: root.join(SOURCES),
            home,
        };
        fs::create_dir_all(&stand_in.home).map_err(failed(&stand_in.home))?;
        stand_in.library("libcuda.so", &[&DRIVER[..], &["record.cc"]].concat())?;
        Ok(stand_in)
    }

    /// The emulator's tests of itself.
    pub(super) fn selftest(&self) -> Result<PathBuf, StandInError> {
        let program = self.home.join("selftest");
        let mut compile = self.compiler();
        compile.arg("-o").arg(&program);
        compile.arg(self.sources.join("selftest.cc"));
        compile.arg("-L").arg(&self.home);
        done(compile.args(["-l:libcuda.so", "-l:libnvrtc.so"]))?;
        Ok(program)
    }

    /// A command with everything that a program of ours needs to find them where it looks for CUDA.
    pub(super) fn command(&self, program: &Path) -> Command {
        let mut command = Command::new(program);
        command.env("LD_LIBRARY_PATH", &self.home);
        command.env("CUDA_PATH", &self.home);
        command.env("CUDA_STAND_IN_HOME", &self.home);
        command.env("CUDA_STAND_IN_KERNELS", self.kernels());
        command.env_remove("CUDA_STAND_IN_SEED");
        // Candidates that a tuner tries may panic, which it catches, and a trace of each takes long.
        command.env("RUST_BACKTRACE", "0");
        command
    }

    fn kernels(&self) -> PathBuf {
        self.home.join("kernels")
    }

    fn library(&self, name: &str, sources: &[&str]) -> Result<(), StandInError> {
        let library = self.home.join(name);
        let mut compile = self.compiler();
        compile.args(["-shared", "-fPIC"]);
        compile.arg(format!(
            "-DINCLUDE_DIR=\"{}\"",
            self.sources.join("include").display()
        ));
        compile.arg("-o").arg(&library);
        done(compile.args(sources.iter().map(|source| self.sources.join(source))))
    }

    fn compiler(&self) -> Command {
        let mut compile = Command::new("g++");
        compile.args(["-std=c++20", "-O2", "-Wall", "-Wextra", "-Werror"]);
        compile
    }
}

fn failed(path: &Path) -> impl FnOnce(io::Error) -> StandInError + use<> {
    let path = path.to_owned();
    move |source| StandInError::Folder { path, source }
}

fn done(compile: &mut Command) -> Result<(), StandInError> {
    let status = compile.status();
    let status = status.map_err(|source| StandInError::NoCompiler {
        program: "g++",
        source,
    })?;
    match status.success() {
        true => Ok(()),
        false => Err(StandInError::Compile {
            command: format!("{compile:?}"),
            status,
        }),
    }
}
