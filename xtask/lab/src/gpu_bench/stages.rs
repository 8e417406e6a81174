//! The stages, in the order in which one rests on another.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use thiserror::Error;

use super::folder::{Folder, FolderError};
use super::programs::{ProgramError, Programs, run};
use crate::child::{Server, ServerError};
use crate::python::python;
use serve_bench::figure::Figure;

/// What every stage may use.
#[derive(Debug)]
pub(crate) struct Context {
    /// The binaries that are measured with.
    pub(super) programs: Programs,
    /// Where results go.
    pub(super) folder: Folder,
    /// Folders of tiny models with golden outputs.
    pub(super) fixtures: PathBuf,
    /// As `--device` of the programs.
    pub(super) device: String,
    /// As their model argument.
    pub(super) models: Vec<String>,
    /// Few repeats, small matrix.
    pub(super) smoke: bool,
}

/// Why a stage has no rows.
#[derive(Debug, Error)]
pub(crate) enum StageError {
    /// A program failed.
    #[error(transparent)]
    Program(#[from] ProgramError),
    /// The server failed.
    #[error(transparent)]
    Server(#[from] ServerError),
    /// The server was killed or failed after it had answered.
    #[error("the server ended with {0} after SIGTERM; 0 was expected")]
    Stopped(std::process::ExitStatus),
    /// The folder failed.
    #[error(transparent)]
    Folder(#[from] FolderError),
    /// There are no golden models where they should be.
    #[error("{}: {source}", path.display())]
    Fixtures {
        /// The folder.
        path: PathBuf,
        /// The operating system's answer.
        source: std::io::Error,
    },
    /// A program said nothing that could be kept.
    #[error("{0} printed no rows")]
    NoRows(&'static str),
    /// It cannot be done here, and that is no fault.
    #[error("{0}")]
    Absent(String),
}

/// One part of the benchmark.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Stage {
    /// The name of its files.
    pub(super) name: &'static str,
    /// What a reader of the log is told.
    pub(super) what: &'static str,
    /// Whether nothing after it is worth measuring when it fails.
    pub(super) others_rest_on_it: bool,
    /// Does it, within the time left.
    pub(super) run: fn(&Context, Duration) -> Result<Measured, StageError>,
}

/// What a stage measured.
#[derive(Debug)]
pub(crate) struct Measured {
    pub(super) rows: Vec<Figure>,
    /// What must be said beside it.
    pub(super) reservation: Option<&'static str>,
    /// Whether the budget ended first.
    pub(super) unfinished: bool,
}

impl From<Vec<Figure>> for Measured {
    fn from(rows: Vec<Figure>) -> Self {
        Self {
            rows,
            reservation: None,
            unfinished: false,
        }
    }
}

/// All of them.
pub(super) const STAGES: [Stage; 6] = [
    Stage {
        name: "request",
        what: "one real request through the real server, which must answer",
        others_rest_on_it: true,
        run: request,
    },
    Stage {
        name: "correctness",
        what: "golden tokens and logits of every fixture on this device",
        others_rest_on_it: true,
        run: correctness,
    },
    Stage {
        name: "steps",
        what: "step times against batch and context, and the memory's own speed",
        others_rest_on_it: false,
        run: steps,
    },
    Stage {
        name: "calibrate",
        what: "the mock's cost model, fitted to this device and checked",
        others_rest_on_it: false,
        run: calibrate,
    },
    Stage {
        name: "matrix",
        what: "the control matrix",
        others_rest_on_it: false,
        run: matrix,
    },
    Stage {
        name: "peer",
        what: "Hugging Face transformers on the same shape",
        others_rest_on_it: false,
        run: peer,
    },
];

/// The peer's exit code when it is not installed.
const PEER_ABSENT: i32 = 5;

impl Context {
    fn log(&self, stage: &str) -> PathBuf {
        self.folder.path(&format!("stages/{stage}.log"))
    }

    /// The settings that make a program use the device and model that are measured.
    fn server_args(&self, model: &str) -> [OsString; 6] {
        let device = self.device.as_str();
        ["--device", device, "--model", model, "--log", "off"].map(OsString::from)
    }
}

fn request(context: &Context, patience: Duration) -> Result<Measured, StageError> {
    let mut rows = Vec::new();
    let log = context.log("request");
    for model in &context.models {
        let begin = Instant::now();
        let mut serve = context
            .programs
            .command(context.programs.path("serve").as_os_str());
        let server = Server::start(serve.args(context.server_args(model)))?;
        let address = server.address(patience)?;
        rows.push(
            Figure::new("ready", begin.elapsed().as_secs_f64(), "s").with("model", model.as_str()),
        );
        // Its exit code is 0 only when an answer came whole.
        let client = [
            "run",
            "--url",
            &address,
            "--clients",
            "1",
            "--requests",
            "1",
            "--max-tokens",
            "16",
        ];
        let begin = Instant::now();
        context
            .programs
            .run("serve-bench", client, &log, patience)?;
        rows.push(
            Figure::new("first_request", begin.elapsed().as_secs_f64(), "s")
                .with("model", model.as_str()),
        );
        let status = server.stop()?;
        if !status.success() {
            return Err(StageError::Stopped(status));
        }
    }
    Ok(rows.into())
}

fn correctness(context: &Context, patience: Duration) -> Result<Measured, StageError> {
    let fixtures_error = |source| StageError::Fixtures {
        path: context.fixtures.clone(),
        source,
    };
    let entries = context.fixtures.read_dir().map_err(fixtures_error)?;
    let paths = entries.map(|entry| entry.map(|entry| entry.path()));
    let mut paths = paths
        .collect::<Result<Vec<_>, _>>()
        .map_err(fixtures_error)?;
    paths.retain(|path| path.join("golden.json").exists());
    paths.sort_unstable();
    // What is served on a GPU is bf16; in f32 a fault stands out from rounding more clearly.
    let precisions: &[&str] = match context.device.as_str() {
        "cuda" => &["f32", "bf16"],
        _ => &["f32"],
    };
    let mut rows = Vec::new();
    let passes = paths
        .iter()
        .flat_map(|path| precisions.iter().map(move |it| (path, *it)));
    for (path, precision) in passes {
        let args = [
            "check-model".as_ref(),
            path.as_os_str(),
            "--device".as_ref(),
            context.device.as_ref(),
            "--precision".as_ref(),
            precision.as_ref(),
        ];
        let log = context.log("correctness");
        let printed = context.programs.run("lab", args, &log, patience)?;
        let passed = printed
            .lines()
            .filter(|line| line.starts_with("ok "))
            .count();
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        let row = Figure::new("golden_cases_passed", passed as f64, "cases");
        rows.push(
            row.with("model", name.as_ref())
                .with("precision", precision),
        );
    }
    match rows.is_empty() {
        true => Err(fixtures_error(std::io::Error::other(
            "no folder with a golden.json",
        ))),
        false => Ok(rows.into()),
    }
}

fn steps(context: &Context, patience: Duration) -> Result<Measured, StageError> {
    let (batches, contexts) = match context.smoke {
        true => ("1,16", "192"),
        false => ("1,2,4,8,16,32,64", "192,1024,4096"),
    };
    let mut rows = Vec::new();
    for model in &context.models {
        let args = [
            "speed",
            "decode",
            model,
            "--device",
            &context.device,
            "--json",
            "--batches",
            batches,
            "--contexts",
            contexts,
        ];
        let log = context.log("steps");
        let printed = context.programs.run("lab", args, &log, patience)?;
        rows.extend(Figure::parse(&printed));
    }
    some("speed decode", rows).map(Measured::from)
}

fn calibrate(context: &Context, patience: Duration) -> Result<Measured, StageError> {
    const RESERVATIONS: &[(i32, &str)] = &[(
        4,
        "measured; the fitted model does not predict an unseen load within its bounds",
    )];
    lab("calibrate", RESERVATIONS, context, patience)
}

fn matrix(context: &Context, patience: Duration) -> Result<Measured, StageError> {
    const RESERVATIONS: &[(i32, &str)] = &[
        (
            3,
            "measured, with loads that were not delivered (VOID in matrix/report.html)",
        ),
        (
            5,
            "measured, with pairs that did not differ (NOT SHOWN in matrix/report.html)",
        ),
    ];
    lab("matrix", RESERVATIONS, context, patience)
}

/// The exit code of a lab command whose budget ended first.
const BUDGET_ENDED: i32 = 6;
/// What a lab command may need, after its budget, to end its server and to write its report.
const TO_END: Duration = Duration::from_secs(15);

/// A command of serve-bench on servers of the first model, which keeps its own budget.
fn lab(
    command: &'static str,
    reservations: &'static [(i32, &'static str)],
    context: &Context,
    patience: Duration,
) -> Result<Measured, StageError> {
    let Some(model) = context.models.first() else {
        return Err(StageError::NoRows(command));
    };
    let mut args: Vec<OsString> = vec![command.into(), "--json".into(), "--out".into()];
    args.push(context.folder.path(command).into());
    args.push("--serve".into());
    args.push(context.programs.path("serve").into());
    args.extend(context.smoke.then(|| "--smoke".into()));
    let minutes = patience.saturating_sub(TO_END).as_secs_f64() / 60.0;
    args.extend(["--budget-min".into(), format!("{minutes:.2}").into()]);
    args.push("--".into());
    args.extend(context.server_args(model));
    let accepted = reservations.iter().map(|(code, _)| *code);
    let accepted = accepted.chain([BUDGET_ENDED]).collect::<Vec<_>>();
    let log = context.log(command);
    let programs = &context.programs;
    let (printed, code) = programs.run_accepting("serve-bench", args, &log, patience, &accepted)?;
    let rows = Figure::parse(&printed);
    let unfinished = code == BUDGET_ENDED;
    let reservation = reservations.iter().find(|(it, _)| *it == code);
    Ok(Measured {
        rows: if unfinished {
            rows
        } else {
            some(command, rows)?
        },
        reservation: reservation.map(|(_, words)| *words),
        unfinished,
    })
}

/// Writes the peer's script and runs it where Python, torch and transformers are installed.
fn peer(context: &Context, patience: Duration) -> Result<Measured, StageError> {
    const SCRIPT: &str = include_str!("peer_transformers.py");
    let shapes = context
        .models
        .iter()
        .filter(|model| model.starts_with("random:"));
    let mut rows = Vec::new();
    for model in shapes {
        let log = context.log("peer");
        let args = ["speed", "decode", model.as_str(), "--print-config"];
        let config = context.programs.run("lab", args, &log, patience)?;
        let config_path = context.folder.path("stages/peer-config.json");
        context.folder.write(&config_path, &config)?;
        let script = context.folder.path("stages/peer_transformers.py");
        context.folder.write(&script, SCRIPT)?;
        let mut command = context.programs.command(python().as_ref());
        command.arg(&script).arg("--config").arg(&config_path);
        command.args([
            "--device",
            if context.device == "cuda" {
                "cuda"
            } else {
                "cpu"
            },
        ]);
        if context.smoke {
            command.args(["--repeats", "1", "--output-tokens", "16"]);
        }
        let printed = match run(&mut command, &log, patience) {
            Err(ProgramError::Failed { status, last, .. })
                if status.code() == Some(PEER_ABSENT) =>
            {
                return Err(StageError::Absent(last));
            }
            Err(ProgramError::Start { program, source }) => {
                return Err(StageError::Absent(format!("{program}: {source}")));
            }
            other => other?,
        };
        rows.extend(
            Figure::parse(&printed)
                .into_iter()
                .map(|figure| figure.with("model", model.as_str())),
        );
    }
    match rows.is_empty() {
        true => Err(StageError::Absent(
            "no model with random weights was asked for".to_owned(),
        )),
        false => Ok(rows.into()),
    }
}

fn some(program: &'static str, rows: Vec<Figure>) -> Result<Vec<Figure>, StageError> {
    match rows.is_empty() {
        true => Err(StageError::NoRows(program)),
        false => Ok(rows),
    }
}

#[cfg(test)]
mod tests {
    use super::super::folder::Status;
    use super::super::folder::tests::Scratch;
    use super::super::{Ended, walk};
    use super::*;
    use serde_json::json;
    use std::fs;
    use std::os::unix::fs::PermissionsExt;
    use std::path::Path;

    /// Programs that do what theirs names do, as far as the stages can tell.
    fn stand_ins(folder: &Path, check_model: &str) {
        let lab = format!(
            "#!/bin/sh\nif [ $1 = speed ]; then echo '{{\"name\":\"decode_1\",\"value\":1,\"unit\":\"ms\"}}'; exit; fi\n{check_model}"
        );
        let scripts = [
            (
                "serve",
                "#!/bin/sh\ntrap 'exit 0' TERM\necho listening on http://127.0.0.1:1\nwhile :; do sleep 0.01; done\n",
            ),
            ("lab", &lab),
            (
                "serve-bench",
                "#!/bin/sh\necho '{\"name\":\"ok\",\"value\":1,\"unit\":\"runs\"}'\n",
            ),
        ];
        fs::create_dir_all(folder.join("fixtures/tiny")).unwrap();
        fs::write(folder.join("fixtures/tiny/golden.json"), "{}").unwrap();
        for (name, script) in scripts {
            let path = folder.join(name);
            fs::write(&path, script).unwrap();
            fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
        }
    }

    fn context(scratch: &Scratch) -> Context {
        let out = scratch.0.join("out");
        Context {
            programs: Programs::in_folder(&scratch.0, Vec::new()).unwrap(),
            folder: Folder::open(&out, &json!({"plan": {}})).unwrap(),
            fixtures: scratch.0.join("fixtures"),
            device: "cpu".to_owned(),
            models: vec!["austen-2m".to_owned()],
            smoke: true,
        }
    }

    const BUDGET: Duration = Duration::from_secs(600);

    #[test]
    fn every_stage_runs_once_and_a_second_walk_runs_none_again() {
        let scratch = Scratch::new("walk");
        stand_ins(&scratch.0, "echo 'ok      a'\necho 'ok      b'\n");
        let context = context(&scratch);
        assert_eq!(walk(&STAGES, &context, BUDGET).unwrap(), Ended::Passed);
        let record = context.folder.record("correctness").unwrap().unwrap();
        assert_eq!(record.status, Status::Passed);
        assert_eq!(record.rows[0].number(), Some(2.0));
        let peer = context.folder.record("peer").unwrap().unwrap();
        assert_eq!(peer.status, Status::Absent);
        let log = || fs::metadata(context.log("matrix")).unwrap().len();
        let before = log();
        assert_eq!(walk(&STAGES, &context, BUDGET).unwrap(), Ended::Passed);
        assert_eq!(log(), before);
    }

    #[test]
    fn wrong_tokens_end_the_walk_before_anything_is_measured_and_the_stage_is_tried_again() {
        let scratch = Scratch::new("wrong");
        stand_ins(&scratch.0, "echo 'FAILED  a'\nexit 1\n");
        let context = context(&scratch);
        assert_eq!(walk(&STAGES, &context, BUDGET).unwrap(), Ended::Failed);
        let record = context.folder.record("correctness").unwrap().unwrap();
        assert_eq!(record.status, Status::Failed);
        assert!(record.cause.unwrap().contains("FAILED  a"));
        assert_eq!(context.folder.record("steps").unwrap(), None);
        stand_ins(&scratch.0, "echo 'ok      a'\n");
        assert_eq!(walk(&STAGES, &context, BUDGET).unwrap(), Ended::Passed);
    }

    #[test]
    fn what_serve_bench_says_of_its_measurement_is_no_failure() {
        for (code, status, again) in [
            (5, Status::Reserved, false),
            (6, Status::Unfinished, true),
            (1, Status::Failed, true),
        ] {
            let scratch = Scratch::new(&format!("code-{code}"));
            stand_ins(&scratch.0, "echo 'ok      a'\n");
            let script = format!(
                "#!/bin/sh\necho '{{\"name\":\"a\",\"value\":1,\"unit\":\"ms\"}}'\n[ $1 = matrix ] && exit {code}\nexit 0\n"
            );
            fs::write(scratch.0.join("serve-bench"), script).unwrap();
            let context = context(&scratch);
            let ended = walk(&STAGES, &context, BUDGET).unwrap();
            let record = context.folder.record("matrix").unwrap().unwrap();
            assert_eq!(record.status, status);
            assert_eq!(record.rows.len(), usize::from(code != 1));
            assert_eq!(record.status.is_done(), !again);
            let expected = match code {
                5 => Ended::Reserved,
                6 => Ended::Budget,
                _ => Ended::Failed,
            };
            assert_eq!(ended, expected);
            // Nothing but the matrix is measured again, if that.
            assert_eq!(walk(&STAGES, &context, BUDGET).unwrap(), expected);
        }
    }

    #[test]
    fn without_budget_nothing_starts() {
        let scratch = Scratch::new("budget");
        stand_ins(&scratch.0, "");
        let context = context(&scratch);
        assert_eq!(
            walk(&STAGES, &context, Duration::ZERO).unwrap(),
            Ended::Budget
        );
        assert_eq!(context.folder.record("request").unwrap(), None);
    }
}
