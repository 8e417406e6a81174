//! `serve-bench matrix`: the control matrix, unattended, into one folder with one report.

use std::io;
use std::path::Path;
use std::process::ExitCode;

use crate::experiments::matrix::{self, Effort, Measured, Plan, Section};
use crate::experiments::servers::ServerSettings;
use clap::Args;

use super::lab::LabArgs;
use super::{CommandResult, INCOMPLETE, VOID};

/// Exit codes beside 0 (all measured) and 1 (a point could not be measured, a pair is no pair).
const NOT_SHOWN: u8 = 5;

/// Arguments of the command.
#[derive(Args, Debug)]
#[command(
    after_help = "Exit code 0: everything was measured; 1: a point could not be measured, or a pair is \
    not one setting apart; 2: bad arguments; 3: a load was not delivered; 5: a pair did not differ in what it \
    must (a limit that refused nobody); 6: stopped, or out of its budget. The report is written with 3, 5 and 6 \
    too, and the same command goes on where it was."
)]
pub(crate) struct Matrix {
    #[command(flatten)]
    lab: LabArgs,
    /// The backend of every server that is started: mock or model
    #[arg(long, value_name = "NAME", conflicts_with = "url")]
    backend: Option<String>,
    /// A minute or two on the mock: enough to see that everything works
    #[arg(long)]
    smoke: bool,
    /// Sections to measure [default: all]
    #[arg(long, value_name = "NAMES", value_delimiter = ',', value_parser = matrix::named)]
    only: Vec<String>,
    /// Print our numbers alone, one JSON object a line: name, value, unit
    #[arg(long)]
    json: bool,
    /// What the hardware costs, to say what a million output tokens cost
    #[arg(long, value_name = "DOLLARS")]
    price_per_hour: Option<f64>,
}

/// Measures, writes, prints.
pub(crate) async fn run(options: &Matrix) -> CommandResult {
    let mut series = options.lab.series(&options.base(), Path::new(""))?;
    let plan = Plan {
        effort: if options.smoke {
            Effort::Smoke
        } else {
            Effort::Full
        },
        only: options.only.clone(),
        budget: options.lab.budget(),
        price_per_hour: options.price_per_hour,
    };
    let measured = matrix::measure(&mut series, &plan).await;
    let base = series.base();
    series.end_server().await;
    let outcome = measured?;
    let out = options.lab.out();
    let written = [
        ("matrix.json", serde_json::to_string_pretty(&outcome)?),
        ("report.html", matrix::report(&outcome, &base)?.html()?),
    ];
    for (name, text) in written {
        let path = out.join(name);
        std::fs::write(&path, text).map_err(|error| format!("{}: {error}", path.display()))?;
    }
    match options.json {
        true => {
            for number in outcome.numbers() {
                out!("{}", number.line(true));
            }
        }
        false => print(&outcome, &out.join("report.html"))?,
    }
    Ok(exit_code(&outcome))
}

fn print(outcome: &Measured, report: &Path) -> io::Result<()> {
    out!("{}", matrix::headlines(outcome).text());
    for section in &outcome.sections {
        for table in matrix::tables(section) {
            out!("{}", table.text());
        }
    }
    for (word, text) in matrix::labels(outcome) {
        out!("{word}: {text}");
    }
    out!("written to {}", report.display());
    Ok(())
}

impl Matrix {
    /// Settings of every server, below those that were asked for one by one.
    fn base(&self) -> ServerSettings {
        let base = ServerSettings::default();
        match self.backend.as_deref() {
            // The mock has the pace of a real GPU, at which nothing takes a minute.
            Some("mock") if self.smoke => base.with("backend", "mock").with("mock_speed", "8"),
            Some(backend) => base.with("backend", backend),
            None => base,
        }
    }
}

fn exit_code(outcome: &Measured) -> ExitCode {
    let any = |of: fn(&Section) -> bool| outcome.sections.iter().any(of);
    if outcome.stopped || !outcome.missing.is_empty() {
        ExitCode::from(INCOMPLETE)
    } else if any(|section| !section.not_shown.is_empty()) {
        ExitCode::from(NOT_SHOWN)
    } else if any(|section| !section.void.is_empty()) {
        ExitCode::from(VOID)
    } else {
        ExitCode::SUCCESS
    }
}
