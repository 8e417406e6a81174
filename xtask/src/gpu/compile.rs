//! `cargo xtask gpu-compile`: every kernel of a step through the real NVRTC, for each generation of GPUs, on a driver that
//! runs nothing and refuses during a recording what the real one does; then ptxas for registers and spills.
//!
//! What a decode step launches is held against a file that is in the repository.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{ExitCode, Stdio};

use clap::Args;

use super::launches::Recorded;
use super::programs::Programs;
use super::ptxas::{Assembled, Toolkit};
use super::stand_in::StandIn;
use super::steps::{FILE, PAGE, ROWS, Steps, page};
use crate::cargo::TaskResult;

pub(crate) const EXIT_CODES: &str = "It needs g++ on an x86-64 Linux, and fetches NVRTC, its headers and ptxas from PyPI \
                                     once (python3, 300 MB). Exit code 0: every kernel compiles with hardly a spill, every \
                                     decode step is recorded, and docs/gpu-launches.md is what is launched; 1: not so; \
                                     2: bad arguments.";

/// Compute capabilities: of an A100, an L4, an H200 and a B200.
const GENERATIONS: [u32; 4] = [80, 89, 90, 100];
/// The shapes, the ends of their tests' names, and how many layers they have.
const SHAPES: [(&str, &str, u32); 3] = [
    ("qwen2.5-0.5b", "qwen2_5_0_5b", 24),
    ("qwen2.5-1.5b", "qwen2_5_1_5b", 28),
    ("qwen2.5-7b", "qwen2_5_7b", 28),
];
/// Bytes that a thread may spill: for sm_100 ptxas would rather spill three registers than let fewer blocks run, twice.
const SPILLED_MAX: u32 = 12;
/// The generation for which launches are written down; blocks are the same for all.
const WRITTEN: u32 = 90;

#[derive(Args, Debug)]
pub(crate) struct Options {
    /// Only this compute capability: 80, 89, 90 or 100
    #[arg(long, value_name = "SM", value_parser = generation)]
    only: Option<u32>,
    /// Write docs/gpu-launches.md and its file anew instead of comparing them
    #[arg(long, conflicts_with = "only")]
    write: bool,
}

fn generation(text: &str) -> std::result::Result<u32, String> {
    let known = GENERATIONS.into_iter().find(|it| it.to_string() == text);
    known.ok_or_else(|| format!("accepted are {GENERATIONS:?}"))
}

/// Compiles for every generation, and compares or writes the table.
pub(crate) fn run(options: &Options) -> TaskResult {
    let metadata = cargo_metadata::MetadataCommand::new().no_deps().exec()?;
    let root = metadata.workspace_root.as_std_path();
    let target = metadata.target_directory.as_std_path();
    let home = target.join("gpu-compile");
    let recorder = StandIn::recorder(root, home.clone())?;
    let toolkit = Toolkit::install(&target.join("cuda-packages"))?;
    let unnoticed = toolkit.check(&home)?;
    let mut wrong: Vec<String> = unnoticed
        .iter()
        .map(|fault| format!("not noticed: {fault}"))
        .collect();
    let programs = match Programs::build(&target.join("cuda"))? {
        Ok(programs) => programs,
        Err(code) => return Ok(code),
    };
    let mut written = Vec::new();
    for generation in GENERATIONS {
        if options.only.is_some_and(|only| only != generation) {
            continue;
        }
        // Kernels of other widths are the same but for their numbers.
        let shapes = match generation == WRITTEN {
            true => &SHAPES[..],
            false => &SHAPES[..1],
        };
        for &(shape, test, layers) in shapes {
            let run = Run {
                recorder: &recorder,
                toolkit: &toolkit,
                folder: home.join(format!("{shape}-sm{generation}")),
                generation,
            };
            let (recorded, said) = run.record(&programs.it, test)?;
            let kernels = run.assemble(&recorded)?;
            println!("{}", summary(shape, generation, &recorded, &kernels));
            wrong.extend(faults(shape, generation, &recorded, &kernels));
            if generation == WRITTEN {
                written.push(steps(shape, layers, &recorded, &said)?);
            }
        }
    }
    wrong.extend(compare(root, &written, options)?);
    wrong.iter().for_each(|what| println!("FAILED  {what}"));
    Ok(match wrong.is_empty() {
        true => ExitCode::SUCCESS,
        false => ExitCode::FAILURE,
    })
}

/// One shape on one generation.
struct Run<'a> {
    recorder: &'a StandIn,
    toolkit: &'a Toolkit,
    /// Where the log and the kernels' PTX go.
    folder: PathBuf,
    generation: u32,
}

type Result<T> = std::result::Result<T, Box<dyn std::error::Error>>;

impl Run<'_> {
    /// Has every decode step recorded. What was, and what the test said.
    fn record(&self, program: &Path, test: &str) -> Result<(Recorded, String)> {
        if self.folder.exists() {
            fs::remove_dir_all(&self.folder)?;
        }
        fs::create_dir_all(&self.folder)?;
        let log = self.folder.join("driver.log");
        let home = &self.toolkit.home;
        let libraries = std::env::join_paths([&self.recorder.home, &home.join("lib")])?;
        let mut command = self.recorder.command(program);
        command.env("LD_LIBRARY_PATH", libraries);
        command.env("CUDA_PATH", home);
        command.env("CUDA_STAND_IN_SM", self.generation.to_string());
        command.env("CUDA_STAND_IN_LOG", &log);
        command.env("CUDA_STAND_IN_PTX", &self.folder);
        command.arg(format!("launches::cuda_records_{test}"));
        command.args(["--exact", "--ignored", "--nocapture"]);
        let output = command.stderr(Stdio::inherit()).output()?;
        let said = String::from_utf8_lossy(&output.stdout).into_owned();
        if !output.status.success() || said.contains("skipped: ") {
            return Err(format!("launches::cuda_records_{test} failed: {said}").into());
        }
        Ok((Recorded::read(&fs::read_to_string(log)?), said))
    }

    /// Each kernel through ptxas, by its file.
    fn assemble(&self, recorded: &Recorded) -> Result<BTreeMap<String, Assembled>> {
        let assemble = |module: &String| {
            let assembled = self.toolkit.assemble(&self.folder.join(module))?;
            Ok((module.clone(), assembled))
        };
        recorded.modules.iter().map(assemble).collect()
    }
}

fn summary(
    shape: &str,
    generation: u32,
    recorded: &Recorded,
    kernels: &BTreeMap<String, Assembled>,
) -> String {
    let steps = recorded.steps.len();
    let most = kernels.values().map(|kernel| kernel.registers).max();
    let spilling = kernels.values().filter(|kernel| kernel.spilled_bytes > 0);
    format!(
        "{shape} on sm_{generation}: {steps} steps recorded; {} kernels of at most {} registers, {} of which spill",
        kernels.len(),
        most.unwrap_or_default(),
        spilling.count(),
    )
}

/// What must not be.
fn faults(
    shape: &str,
    generation: u32,
    recorded: &Recorded,
    kernels: &BTreeMap<String, Assembled>,
) -> Vec<String> {
    let of = |what: String| format!("{shape} on sm_{generation}: {what}");
    let mut faults: Vec<String> = recorded.refused.iter().cloned().map(of).collect();
    if recorded.steps.is_empty() {
        faults.push(of("no step was recorded".to_owned()));
    }
    for (module, assembled) in kernels {
        let spilled = assembled.spilled_bytes;
        if spilled > SPILLED_MAX {
            faults.push(of(format!("the kernel in {module} spills {spilled} bytes")));
        }
    }
    faults
}

/// What is written of a shape, of which one layer was recorded and then two.
fn steps(shape: &str, layers: u32, recorded: &Recorded, said: &str) -> Result<Steps> {
    let (one, two) = recorded.steps.split_at(recorded.steps.len() / 2);
    let mut steps = Vec::new();
    for rows in ROWS {
        for (layers, recorded) in [(1, one), (2, two)] {
            // One block of the first kernel looks up one row. The longest contexts have the most blocks.
            let of_rows = recorded
                .iter()
                .filter(|step| step.first().is_some_and(|embed| embed.blocks == rows));
            let blocks = |step: &&Vec<_>| step.iter().map(blocks).sum::<u32>();
            let longest = of_rows.max_by_key(blocks);
            let longest = longest.ok_or_else(|| format!("{shape}: no step of {rows} rows"))?;
            steps.push((rows, layers, longest.clone()));
        }
    }
    let reads = |layers: u32| -> Option<[u64; 2]> {
        let start = format!("reads {layers} ");
        let (_, numbers) = said.lines().find_map(|line| line.split_once(&start))?;
        let (weights, position) = numbers.split_once(' ')?;
        Some([weights.parse().ok()?, position.parse().ok()?])
    };
    let [one, two] = [1, 2].map(|layers| reads(layers).ok_or("the test says not what it reads"));
    Ok(Steps {
        shape: shape.to_owned(),
        layers,
        reads: [one?, two?],
        steps,
    })
}

fn blocks(launch: &super::launches::Launch) -> u32 {
    launch.blocks
}

/// Writes the file and its page, or says which is not what was launched.
fn compare(root: &Path, written: &[Steps], options: &Options) -> Result<Vec<String>> {
    let file: String = written.iter().map(Steps::write).collect();
    let mut wrong = Vec::new();
    // Of one generation alone there may be nothing.
    if written.is_empty() {
        return Ok(wrong);
    }
    for (name, text) in [(FILE, file), (PAGE, page(written))] {
        let path = root.join(name);
        if options.write {
            fs::write(&path, text)?;
        } else if fs::read_to_string(&path)? != text {
            wrong.push(format!(
                "{name} is not what is launched; see what `cargo xtask gpu-compile --write` changes"
            ));
        }
    }
    Ok(wrong)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spills_and_refusals_are_faults_and_so_is_no_step_at_all() {
        let kernels = |spilled_bytes| {
            let assembled = Assembled {
                registers: 40,
                spilled_bytes,
            };
            BTreeMap::from([("a.ptx".to_owned(), assembled)])
        };
        let recorded = Recorded {
            steps: vec![Vec::new()],
            ..Recorded::default()
        };
        assert!(faults("s", 90, &recorded, &kernels(SPILLED_MAX)).is_empty());
        assert_eq!(
            faults("s", 90, &recorded, &kernels(16)),
            ["s on sm_90: the kernel in a.ptx spills 16 bytes"]
        );
        let refused = Recorded {
            refused: vec!["refused: x".to_owned()],
            ..recorded
        };
        assert_eq!(
            faults("s", 90, &refused, &kernels(0)),
            ["s on sm_90: refused: x"]
        );
        assert_eq!(faults("s", 90, &Recorded::default(), &kernels(0)).len(), 1);
    }
}
