//! NVIDIA's compilers, from PyPI: NVRTC for programs to load, and ptxas, which says what registers a kernel needs.

use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// What compiles: of CUDA 13.0, for which the programs are built.
const PACKAGES: [&str; 5] = [
    "nvidia-cuda-nvrtc==13.0.*",
    "nvidia-cuda-runtime==13.0.*",
    "nvidia-cuda-crt==13.0.*",
    "nvidia-cuda-cccl==13.0.*",
    "nvidia-cuda-nvcc==13.0.*",
];

/// What ptxas made of a kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Assembled {
    pub(super) registers: u32,
    pub(super) spilled_bytes: u32,
}

/// A folder laid out as a CUDA toolkit's.
#[derive(Debug)]
pub(super) struct Toolkit {
    pub(super) home: PathBuf,
}

type Result<T> = std::result::Result<T, Box<dyn std::error::Error>>;

impl Toolkit {
    /// Installs it into a virtual environment, unless it is there.
    pub(super) fn install(venv: &Path) -> Result<Self> {
        let python = venv.join("bin/python");
        if !python.exists() {
            let named = std::env::var("PYTHON").ok().filter(|name| !name.is_empty());
            let system = named.unwrap_or_else(|| "python3".to_owned());
            done(Command::new(system).args(["-m", "venv"]).arg(venv))?;
        }
        if let Some(home) = find(venv) {
            return Ok(Self { home });
        }
        let mut pip = Command::new(&python);
        pip.args(["-m", "pip", "install", "--quiet", "--no-deps"]);
        done(pip.args(PACKAGES))?;
        let home = find(venv);
        let home = home.ok_or_else(|| format!("{} has no ptxas", venv.display()))?;
        Ok(Self { home })
    }

    /// A file of PTX for the architecture that it names.
    pub(super) fn assemble(&self, path: &Path) -> Result<Assembled> {
        let text = fs::read_to_string(path)?;
        let target = text.lines().find_map(|line| line.strip_prefix(".target "));
        let target = target.and_then(|rest| rest.split([',', ' ']).next());
        let target = target.ok_or_else(|| format!("{} names no target", path.display()))?;
        let mut ptxas = Command::new(self.home.join("bin/ptxas"));
        ptxas.args(["-v", "-o", "/dev/null", "-arch", target]);
        let output = ptxas.arg(path).output()?;
        let said = String::from_utf8_lossy(&output.stderr);
        let assembled = read(&said).filter(|_| output.status.success());
        assembled.ok_or_else(|| format!("{}: {said}", path.display()).into())
    }

    /// Faults made on purpose: a kernel that spills, and one that does not assemble. What went unnoticed.
    pub(super) fn check(&self, folder: &Path) -> Result<Vec<&'static str>> {
        fs::create_dir_all(folder)?;
        let mut unnoticed = Vec::new();
        let path = folder.join("fault.ptx");
        fs::write(&path, spilling(300))?;
        if self.assemble(&path)?.spilled_bytes == 0 {
            unnoticed.push("a kernel that spills registers");
        }
        fs::write(&path, spilling(4))?;
        if self.assemble(&path)?.spilled_bytes > 0 {
            unnoticed.push("that a kernel spills no registers");
        }
        fs::write(&path, spilling(4).replace("add.f32", "ad.f32"))?;
        if self.assemble(&path).is_ok() {
            unnoticed.push("a kernel that does not assemble");
        }
        Ok(unnoticed)
    }
}

fn find(venv: &Path) -> Option<PathBuf> {
    let folders = fs::read_dir(venv.join("lib")).ok()?;
    let mut homes =
        folders.filter_map(|entry| Some(entry.ok()?.path().join("site-packages/nvidia/cu13")));
    homes.find(|home| home.join("bin/ptxas").exists())
}

fn done(command: &mut Command) -> Result<()> {
    let status = command.status();
    let status = status.map_err(|error| format!("cannot start {command:?}: {error}"))?;
    match status.success() {
        true => Ok(()),
        false => Err(format!("{command:?} failed").into()),
    }
}

/// A kernel with so many numbers that are all needed until its end.
fn spilling(numbers: u32) -> String {
    let mut text = format!(
        ".version 8.0\n.target sm_90\n.address_size 64\n.visible .entry k(.param .u64 p)\n{{\n.reg .b64 %d<2>;\n\
         .reg .f32 %f<{}>;\nld.param.u64 %d1, [p];\n",
        numbers + 2
    );
    for number in 1..=numbers {
        // Volatile, so that none is read when it is needed.
        let _ = writeln!(
            text,
            "ld.volatile.global.f32 %f{number}, [%d1+{}];",
            4 * number
        );
    }
    for number in 1..=numbers {
        let next = number % numbers + 1;
        let _ = writeln!(text, "add.f32 %f{number}, %f{number}, %f{next};");
    }
    for number in 1..=numbers {
        let _ = writeln!(
            text,
            "st.volatile.global.f32 [%d1+{}], %f{number};",
            4 * number
        );
    }
    text + "ret;\n}\n"
}

/// Reads what `ptxas -v` says of a file with one kernel.
fn read(said: &str) -> Option<Assembled> {
    let before = |what: &str| {
        let (before, _) = said.split_once(what)?;
        before.rsplit([' ', ',']).next()?.parse().ok()
    };
    Some(Assembled {
        registers: before(" registers")?,
        spilled_bytes: before(" bytes spill stores")?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn registers_and_spills_are_read() {
        let said = "ptxas info    : 0 bytes gmem\n\
            ptxas info    : Compiling entry function 'k' for 'sm_90a'\n\
            ptxas info    : Function properties for k\n    16 bytes stack frame, 24 bytes spill stores, 8 bytes spill loads\n\
            ptxas info    : Used 128 registers, used 1 barriers, 16 bytes cumulative stack size\n";
        let expected = Assembled {
            registers: 128,
            spilled_bytes: 24,
        };
        assert_eq!(read(said), Some(expected));
        assert_eq!(read("ptxas fatal: Unresolved extern function"), None);
    }
}
