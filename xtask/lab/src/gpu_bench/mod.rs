//! `cargo xtask gpu-bench`: everything that is to be measured on a GPU, unattended, in one folder.
//!
//! It needs no cargo and no network where it runs: carry an archive that `--pack` made. Each stage is
//! kept when it ends; the same command resumes where an earlier one stopped. With `--device cpu` it
//! rehearses the same stages without a GPU, and says so in everything that it writes.

mod folder;
mod machine;
mod pack;
mod programs;
mod report;
mod stages;

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant, SystemTime};

use serde_json::{Value, json};

use crate::cli::GpuBench;
use crate::{TaskResult, place};
use folder::{Folder, Record, Status};
use machine::{Facts, Missing};
use programs::Programs;
use stages::{Context, STAGES, Stage};

pub(crate) use programs::{ProgramError, run as run_program};

const NO_GPU: u8 = 3;
const INCOMPLETE_MACHINE: u8 = 4;
const BUDGET_ENDED: u8 = 5;
const RESERVED: u8 = 6;
/// Weights, KV cache and workspace of the largest default model.
const MEMORY_MIB_MIN: u64 = 12_000;
/// Less than this is not worth starting a stage for.
const STAGE_MIN: Duration = Duration::from_secs(20);

/// Checks the machine, runs the stages that are not done yet, writes rows and report.
pub(crate) fn run(options: &GpuBench) -> TaskResult {
    if let Some(archive) = &options.pack {
        return pack::run(archive);
    }
    let facts = Facts::collect();
    if options.device == "cuda"
        && let Some(code) = refuse(&facts.missing(MEMORY_MIB_MIN))
    {
        return Ok(code);
    }
    let programs = options
        .programs
        .clone()
        .map_or_else(place::own_folder, Ok)?;
    let fixtures = options
        .fixtures
        .clone()
        .map_or_else(|| find_fixtures(&programs), Ok)?;
    let environment = facts.environment(std::env::var_os("LD_LIBRARY_PATH"));
    let manifest = manifest(options, &facts, &programs);
    let context = Context {
        programs: Programs::in_folder(&programs, environment)?,
        folder: Folder::open(&options.out, &manifest)?,
        fixtures,
        device: options.device.clone(),
        models: match options.smoke {
            true => options.model.iter().take(1).cloned().collect(),
            false => options.model.clone(),
        },
        smoke: options.smoke,
    };
    if let Some(label) = rehearsal(&options.device) {
        println!("{label}");
    }
    let budget = Duration::from_secs(60 * options.budget_min);
    let ended = walk(&STAGES, &context, budget)?;
    let names = STAGES.map(|stage| stage.name);
    context.folder.write_rows(&names)?;
    let records = STAGES
        .iter()
        .map(|stage| Ok((*stage, context.folder.record(stage.name)?)));
    let records = records.collect::<Result<Vec<_>, folder::FolderError>>()?;
    let path = context.folder.path("report.md");
    context.folder.write(
        &path,
        &report::report(&manifest, rehearsal(&options.device), &records),
    )?;
    println!("report: {}", path.display());
    Ok(match ended {
        Ended::Passed => ExitCode::SUCCESS,
        Ended::Failed => ExitCode::FAILURE,
        Ended::Budget => ExitCode::from(BUDGET_ENDED),
        Ended::Reserved => ExitCode::from(RESERVED),
    })
}

/// What a run without an NVIDIA GPU must say of itself.
fn rehearsal(device: &str) -> Option<String> {
    (device != "cuda").then(|| {
        format!(
            "REHEARSAL on device {device}: it proves that the script works and measures no GPU."
        )
    })
}

/// Prints what is missing; `None` when nothing is.
fn refuse(missing: &[Missing]) -> Option<ExitCode> {
    for missing in missing {
        eprintln!("missing: {missing}");
    }
    match missing.first()? {
        Missing::Gpu(_) => {
            eprintln!("nothing was measured; --device cpu rehearses the stages without a GPU");
            Some(ExitCode::from(NO_GPU))
        }
        _ => Some(ExitCode::from(INCOMPLETE_MACHINE)),
    }
}

/// How all stages together ended, the gravest last.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Ended {
    Passed,
    Reserved,
    Budget,
    Failed,
}

/// Runs the stages in order. One that others rest on ends the walk when it fails.
fn walk(
    stages: &[Stage],
    context: &Context,
    budget: Duration,
) -> Result<Ended, Box<dyn std::error::Error>> {
    let begin = Instant::now();
    let mut ended = Ended::Passed;
    for stage in stages {
        if let Some(record) = context.folder.record(stage.name)?
            && record.status.is_done()
        {
            println!("{:<12} done before", stage.name);
            if record.status == Status::Reserved {
                ended = ended.max(Ended::Reserved);
            }
            continue;
        }
        let left = budget.saturating_sub(begin.elapsed());
        if left < STAGE_MIN {
            println!(
                "{:<12} left for another run: the budget has ended",
                stage.name
            );
            ended = ended.max(Ended::Budget);
            break;
        }
        println!("{:<12} {}", stage.name, stage.what);
        let record = measure(stage, context, left);
        context.folder.keep(stage.name, &record)?;
        let cause = record.cause.as_deref().unwrap_or("");
        println!(
            "{:<12} {:?} after {:.0} s {cause}",
            "", record.status, record.seconds
        );
        ended = ended.max(match record.status {
            Status::Passed | Status::Absent => Ended::Passed,
            Status::Reserved => Ended::Reserved,
            Status::Unfinished => Ended::Budget,
            Status::Failed => Ended::Failed,
        });
        if record.status == Status::Failed && stage.others_rest_on_it {
            println!("nothing else is measured: what follows rests on it");
            break;
        }
    }
    Ok(ended)
}

fn measure(stage: &Stage, context: &Context, left: Duration) -> Record {
    let begin = Instant::now();
    let result = (stage.run)(context, left);
    let seconds = begin.elapsed().as_secs_f64();
    let (status, cause, rows) = match result {
        Ok(measured) => {
            let (status, cause) = match (measured.unfinished, measured.reservation) {
                (true, _) => (Status::Unfinished, Some("the budget ended within it")),
                (false, Some(reservation)) => (Status::Reserved, Some(reservation)),
                (false, None) => (Status::Passed, None),
            };
            (status, cause.map(str::to_owned), measured.rows)
        }
        Err(stages::StageError::Absent(cause)) => (Status::Absent, Some(cause), Vec::new()),
        // Its time is what was left of the budget.
        Err(error @ stages::StageError::Program(ProgramError::TooLong { .. })) => {
            (Status::Unfinished, Some(error.to_string()), Vec::new())
        }
        Err(error) => (Status::Failed, Some(error.to_string()), Vec::new()),
    };
    Record {
        status,
        cause,
        seconds,
        rows,
    }
}

/// What is frozen: the plan, which must be the same when a run is resumed, and what it ran on.
fn manifest(options: &GpuBench, facts: &Facts, programs: &Path) -> Value {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    json!({
        "plan": {
            "device": options.device, "models": options.model, "smoke": options.smoke,
            "commit": pack::commit(programs),
        },
        "hardware": facts.describe(),
        "budget_min": options.budget_min,
        "started_unix_s": now.map_or(0, |now| now.as_secs()),
    })
}

/// Beside the programs, as in an archive, or where this repository has them.
fn find_fixtures(programs: &Path) -> Result<PathBuf, String> {
    let carried = programs.join("fixtures");
    let repository = place::repository().join(pack::FIXTURES);
    let found = [carried, repository].into_iter().find(|path| path.is_dir());
    found.ok_or_else(|| {
        let fixtures = pack::FIXTURES;
        format!("no golden fixtures beside the programs or under {fixtures}; give --fixtures")
    })
}
