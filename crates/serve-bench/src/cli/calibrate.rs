//! `serve-bench calibrate`: a server's step times, the mock's cost model from them, and whether that
//! predicts a load that was not measured.

use std::io::{self, Write};
use std::path::Path;
use std::process::ExitCode;

use crate::analysis::table::Table;
use crate::experiments::calibrate::{
    Fit, Observation, Range, Term, Verdict, observe, settings_file,
};
use crate::experiments::series::{PointError, Series};
use crate::experiments::servers::{Effective, ServerSettings, ours};
use crate::experiments::simulate::{self, ServerModel, Simulation};
use crate::figure::Figure;
use crate::workload::Workload;
use crate::workload::spec::Vocabulary;
use clap::{Args, ValueEnum};
use serde_json::json;
use serve_core::mock::CostModel;
use serve_core::{Span, StepLoad};

use super::lab::LabArgs;
use super::{CommandResult, INCOMPLETE};

/// The exit code of a calibration that does not predict.
const DOES_NOT_PREDICT: u8 = 4;

/// Arguments of the command.
#[derive(Args, Debug)]
#[command(
    after_help = "Exit code 0: the unseen load was predicted; 1: a point could not be measured; 2: bad \
    arguments; 4: measured, and not predicted within 5% (p50) and 10% (p99); 6: stopped, or out of its budget. \
    The same command goes on where it was."
)]
pub(crate) struct Calibrate {
    #[command(flatten)]
    lab: LabArgs,
    /// Batch sizes to measure [default: 1, 2, 4, .. up to the server's own]
    #[arg(long, value_name = "N", value_delimiter = ',')]
    batches: Vec<u32>,
    /// Answers for each client and batch size
    #[arg(long, value_name = "N", default_value_t = 3)]
    rounds: u32,
    /// One answer for each, and a short check: enough to see that everything works
    #[arg(long)]
    smoke: bool,
    /// Print the numbers alone, one JSON object a line: name, value, unit
    #[arg(long)]
    json: bool,
    /// Where step times come from
    #[arg(long, value_enum, default_value_t = Times::Tokens)]
    times: Times,
    /// Tokens of a prompt and its answer at most; never more than the model takes
    #[arg(long, value_name = "N", default_value_t = 640)]
    context: u32,
    /// The token ids that prompts are made of, from this one
    #[arg(long, value_name = "ID", default_value_t = 256)]
    id_min: u32,
    /// to this one
    #[arg(long, value_name = "ID", default_value_t = 1_000)]
    id_max: u32,
    /// The load to predict, as a share of what the fit says the server can do
    #[arg(long, value_name = "SHARE", default_value_t = 0.6)]
    check_load: f64,
    /// Requests of the load to predict
    #[arg(long, value_name = "N", default_value_t = 300)]
    check_requests: u64,
    /// Fixes the prompts
    #[arg(long, default_value_t = 0)]
    seed: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Times {
    /// From the gaps between tokens, as a client sees them: all that a step costs who waits for it
    Tokens,
    /// From the server's own counters: the device alone
    Steps,
}

/// Measures, fits, writes, predicts and compares, unless it is stopped before.
pub(crate) async fn run(options: &Calibrate) -> CommandResult {
    match calibrate(options).await {
        Err(error) if matches!(error.downcast_ref(), Some(PointError::Stopped)) => {
            let _ = writeln!(
                io::stderr(),
                "not finished; the same command goes on where it was"
            );
            Ok(ExitCode::from(INCOMPLETE))
        }
        ended => ended,
    }
}

async fn calibrate(options: &Calibrate) -> CommandResult {
    let nothing = ServerSettings::default();
    let uncached = ServerSettings::default().with(ours::UNCACHED.0, ours::UNCACHED.1);
    let mut series = options.lab.series(&uncached, Path::new(""))?;
    let effective = series.effective(&nothing).await?;
    let context_max = series.context_max(&nothing).await?;
    let range = options.range(effective.as_ref(), context_max)?;
    let observations = observe_all(&mut series, &range, options.times).await?;
    let fit = Fit::of(&observations, &range.batches)?;
    for term in &fit.undetermined {
        let observed = observations.len();
        let line = format!("UNKNOWN    {observed} observations do not determine {term}");
        series.live().line(&line);
    }
    let say = |text: String| -> io::Result<()> {
        if !options.json {
            out!("{text}");
        }
        Ok(())
    };
    say(table(&fit, options.times).text())?;
    let max_batch = range.batches.last().copied().unwrap_or(1);
    let file = options.lab.out().join("calibrated.toml");
    let about = format!(
        "Step times of {}, fitted by `serve-bench calibrate`.",
        described(&series)
    );
    std::fs::write(&file, settings_file(&fit, max_batch, &about))
        .map_err(|error| format!("{}: {error}", file.display()))?;
    say(format!(
        "written to {0}; `serve --config {0}` and `serve-bench simulate --config {0}` take it\n",
        file.display()
    ))?;

    let verdict = check(options, &mut series, &range, &fit, effective.as_ref()).await?;
    series.end_server().await;
    say(verdict.table().text())?;
    if options.json {
        for (name, value, unit) in numbers(&fit, &verdict) {
            out!("{}", Figure::new(name, value, unit).line(true));
        }
    }
    let all = json!({
        "observations": observations,
        "edge_us": fit.edge.as_nanos() as f64 / 1e3,
        "undetermined": fit.undetermined,
        "error_median": fit.error_median,
        "error_max": fit.error_max,
        "check": verdict,
    });
    let path = options.lab.out().join("calibration.json");
    std::fs::write(&path, serde_json::to_string_pretty(&all)?)
        .map_err(|error| format!("{}: {error}", path.display()))?;
    Ok(match verdict.holds() {
        true => ExitCode::SUCCESS,
        false => {
            say("the calibration does not predict within these bounds".to_owned())?;
            ExitCode::from(DOES_NOT_PREDICT)
        }
    })
}

impl Calibrate {
    fn range(
        &self,
        effective: Option<&Effective>,
        context_max: Option<u32>,
    ) -> Result<Range, String> {
        let number = |name: &str| effective?.get(name)?.parse::<u32>().ok();
        let batches = match (self.batches.is_empty(), number(ours::MAX_BATCH)) {
            (false, _) => self.batches.clone(),
            (true, Some(max)) => {
                let mut powers = (0..31)
                    .map(|n| 1 << n)
                    .take_while(|&n| n < max)
                    .collect::<Vec<_>>();
                powers.push(max);
                powers
            }
            (true, None) => {
                let message = "the server does not say its largest batch; give --batches 1,2,4,..";
                return Err(message.to_owned());
            }
        };
        if batches.first() == Some(&0) || !batches.is_sorted_by(|a, b| a < b) {
            return Err("--batches: accepted are increasing numbers from 1 up".to_owned());
        }
        if self.id_min > self.id_max {
            return Err("--id-max: it must not be below --id-min".to_owned());
        }
        Ok(Range {
            batches,
            context_max: context_max.map_or(self.context, |own| own.min(self.context)),
            step_tokens: number(ours::STEP_TOKENS).unwrap_or(512),
            vocabulary: Vocabulary {
                min: self.id_min,
                max: self.id_max,
            },
            rounds: if self.smoke { 1 } else { self.rounds.max(1) },
            seed: self.seed,
        })
    }
}

async fn observe_all(
    series: &mut Series,
    range: &Range,
    times: Times,
) -> Result<Vec<Observation>, Box<dyn std::error::Error>> {
    let mut observations = Vec::new();
    for load in range.loads() {
        let point = series
            .point(&load.id, &ServerSettings::default(), load.spec.clone())
            .await?;
        let rows = &point.run.records;
        let of_load = match times {
            Times::Tokens if load.id.starts_with("prefill") => {
                observe::from_first_tokens(rows, range.step_tokens)
            }
            Times::Tokens => observe::from_tokens(rows, load.batch),
            Times::Steps => {
                let steps = observe::from_steps(&point.timeline, rows, range.step_tokens);
                let missing = "the server does not count its steps; use --times tokens";
                vec![steps.ok_or(missing)?]
            }
        };
        observations.extend(of_load);
    }
    Ok(observations)
}

/// Name, value and unit of what was found.
fn numbers(fit: &Fit, verdict: &Verdict) -> Vec<(String, f64, &'static str)> {
    let us = |span: Span| span.as_nanos() as f64 / 1e3;
    let steps = fit.decode.iter();
    let steps = steps.map(|(batch, time)| (format!("decode step, batch {batch}"), us(*time), "us"));
    let others = [
        (
            Term::Prefill,
            "prefill",
            us(fit.prefill_per_token),
            "us/token",
        ),
        (
            Term::Context,
            "context",
            us(fit.context_per_token),
            "us/position",
        ),
        (Term::Edge, "edge", us(fit.edge), "us"),
    ];
    let others = others
        .into_iter()
        .filter(|(term, ..)| !fit.undetermined.contains(term))
        .map(|(_, name, value, unit)| (name.to_owned(), value, unit));
    let errors = verdict.lines.iter();
    let errors = errors.map(|line| {
        (
            format!("{} predicted, error", line.metric),
            line.error,
            "share",
        )
    });
    steps.chain(others).chain(errors).collect()
}

fn described(series: &Series) -> String {
    match series.base() {
        base if base == ServerSettings::default() => "a server".to_owned(),
        base => format!("a server with {base}"),
    }
}

fn table(fit: &Fit, times: Times) -> Table {
    let title = match times {
        Times::Tokens => "step times, as a client sees them",
        Times::Steps => "step times of the device, as the server counts them",
    };
    let mut table = Table::new(title, &["sequences in a step", "ms", "of one"]);
    let first = fit
        .decode
        .first()
        .map_or(0.0, |(_, time)| time.as_millis_f64());
    for (batch, time) in &fit.decode {
        let ms = time.as_millis_f64();
        table.row([
            batch.to_string(),
            format!("{ms:.3}"),
            format!("{:.2}x", ms / first),
        ]);
    }
    let us = |span: Span| span.as_nanos() as f64 / 1e3;
    table.note(format!(
        "and {:.2} us for each prompt token, {:.3} us for each position of context; the way through the \
         edge takes {:.0} us",
        us(fit.prefill_per_token),
        us(fit.context_per_token),
        us(fit.edge),
    ));
    for term in &fit.undetermined {
        table.note(format!(
            "not determined by what was observed: {term}; measure more with --rounds, or where the client is not held up"
        ));
    }
    table.note(format!(
        "relative error of the fit: median {:.1}%, largest {:.1}%",
        fit.error_median * 100.0,
        fit.error_max * 100.0
    ));
    table
}

/// Measures a load that was not part of the fit, and simulates the same requests.
async fn check(
    options: &Calibrate,
    series: &mut Series,
    range: &Range,
    fit: &Fit,
    effective: Option<&Effective>,
) -> Result<Verdict, Box<dyn std::error::Error>> {
    let rate = options.check_load * capacity_per_s(&fit.cost_model()?, range);
    let requests = if options.smoke {
        40
    } else {
        options.check_requests
    };
    let spec = range.unseen((rate * 100.0).round().max(1.0) / 100.0, requests)?;
    let point = series
        .point("unseen", &ServerSettings::default(), spec.clone())
        .await?;
    for void in &point.void {
        series.live().line(&format!("VOID       {void}"));
    }
    let own = effective.map(ServerSettings::of).unwrap_or_default();
    let max_batch = range.batches.last().copied().unwrap_or(1);
    let fitted = ServerSettings::from_toml(&settings_file(fit, max_batch, ""))?;
    let fitted = own.and(&fitted).with(ours::AS_TOLD.0, ours::AS_TOLD.1);
    let model = ServerModel::of_server(&fitted)?;
    let workload = Workload::new(spec, Path::new(""))?;
    let how = Simulation {
        edge: fit.edge,
        folder: None,
    };
    let (simulated, _) = simulate::run(&workload, &model, &how)?;
    Ok(Verdict::of(&point.run.records, &simulated.records))
}

/// Requests of the unseen load that the device can do in a second, at its largest batch.
fn capacity_per_s(cost: &CostModel, range: &Range) -> f64 {
    let (prompt, answer) = range.unseen_means();
    let batch = range.batches.last().copied().unwrap_or(1);
    let load = StepLoad {
        segments: batch,
        prefill_tokens: 0,
        context_tokens: u64::from(batch) * (prompt + answer / 2.0) as u64,
    };
    let decode_s = answer * cost.step(&load).as_secs_f64() / f64::from(batch);
    let prefill_s = prompt * cost.prefill_per_token().as_secs_f64();
    1.0 / (decode_s + prefill_s).max(1e-9)
}
