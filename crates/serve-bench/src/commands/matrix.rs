//! `serve-bench matrix`: the control matrix, unattended, into one folder with one report.

use std::path::Path;
use std::process::ExitCode;
use std::time::{Duration, SystemTime};

use clap::Args;
use serve_bench::hardware::Hardware;
use serve_bench::matrix::{self, Effort, Outcome, Plan, Section};
use serve_bench::progress::interrupted;
use serve_bench::report::html;
use serve_bench::servers::Settings;
use serve_bench::table::Table;

use super::lab::LabArgs;
use super::{CommandResult, VOID};

/// Exit codes beside 0 (all measured) and 1 (a point could not be measured, a pair is no pair).
const NOT_SHOWN: u8 = 5;
const INCOMPLETE: u8 = 6;

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
    /// Minutes after which no further section is begun
    #[arg(long, value_name = "MINUTES")]
    budget_min: Option<f64>,
    /// Print our numbers alone, one JSON object a line: name, value, unit
    #[arg(long)]
    json: bool,
    /// What the hardware costs, to say what a million output tokens cost
    #[arg(long, value_name = "DOLLARS")]
    price_per_hour: Option<f64>,
}

/// Measures, writes, prints.
pub(crate) async fn run(options: &Matrix) -> CommandResult {
    let mut series = options
        .lab
        .series(&options.base(), Path::new(""), interrupted())?;
    let plan = Plan {
        effort: if options.smoke {
            Effort::Smoke
        } else {
            Effort::Full
        },
        only: options.only.clone(),
        budget: options
            .budget_min
            .map(|minutes| Duration::from_secs_f64(minutes.max(0.0) * 60.0)),
        price_per_hour: options.price_per_hour,
    };
    let measured = matrix::measure(&mut series, &plan).await;
    let base = series.base();
    series.end_server().await;
    let outcome = measured?;
    let out = options.lab.out();
    let written = [
        ("matrix.json", serde_json::to_string_pretty(&outcome)?),
        ("report.html", report(&outcome, &base).html()?),
    ];
    for (name, text) in written {
        let path = out.join(name);
        std::fs::write(&path, text).map_err(|error| format!("{}: {error}", path.display()))?;
    }
    match options.json {
        true => {
            for number in outcome.numbers() {
                println!("{}", serde_json::to_string(&number)?);
            }
        }
        false => print(&outcome, &out.join("report.html")),
    }
    Ok(exit_code(&outcome))
}

fn print(outcome: &Outcome, report: &Path) {
    for section in &outcome.sections {
        for table in section.tables.iter().chain(&proofs(section)) {
            println!("{}", table.text());
        }
    }
    for (word, text) in labels(outcome) {
        println!("{word}: {text}");
    }
    println!("written to {}", report.display());
}

impl Matrix {
    /// Settings of every server, below those that were asked for one by one.
    fn base(&self) -> Settings {
        let base = Settings::default();
        match self.backend.as_deref() {
            // The mock has the pace of a real GPU, at which nothing takes a minute.
            Some("mock") if self.smoke => base.with("backend", "mock").with("mock_speed", "8"),
            Some(backend) => base.with("backend", backend),
            None => base,
        }
    }
}

fn exit_code(outcome: &Outcome) -> ExitCode {
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

/// What must be said before any number.
fn labels(outcome: &Outcome) -> Vec<(&'static str, String)> {
    let missing = outcome.missing.iter();
    let missing = missing.map(|(name, why)| ("NOT MEASURED", format!("{name}: {why}")));
    let not_shown = outcome.sections.iter().flat_map(|section| {
        let of = section.not_shown.iter();
        of.map(|it| {
            (
                "NOT SHOWN",
                format!("{}: {}; seen: {}", section.name, it.what, it.seen),
            )
        })
    });
    let void = outcome.sections.iter().flat_map(|section| &section.void);
    let void = void.map(|why| ("VOID", why.clone()));
    missing.chain(not_shown).chain(void).collect()
}

fn report(outcome: &Outcome, base: &Settings) -> html::Report {
    let scale = &outcome.scale;
    let hardware = Hardware::of_this_machine(true);
    let facts = vec![
        ("server", format!("{base}")),
        (
            "machine",
            serde_json::to_string(&hardware).unwrap_or_default(),
        ),
        (
            "scale",
            format!(
                "a request alone: first token {:.1} ms, answer {:.1} ms; all places taken: {:.2} answers/s",
                scale.first_token_s * 1e3,
                scale.answer_s * 1e3,
                scale.capacity_per_s
            ),
        ),
        ("program", program()),
        ("command", std::env::args().collect::<Vec<_>>().join(" ")),
        (
            "written",
            humantime::format_rfc3339_seconds(SystemTime::now()).to_string(),
        ),
    ];
    let sections = outcome.sections.iter().map(|section| html::Section {
        title: section.name.clone(),
        text: section.question.clone(),
        tables: section
            .tables
            .iter()
            .cloned()
            .chain(proofs(section))
            .collect(),
        ..html::Section::default()
    });
    html::Report {
        title: "Control matrix: one setting apart, beside what others have published".to_owned(),
        labels: labels(outcome),
        facts,
        sections: sections.collect(),
    }
}

fn program() -> String {
    let commit = option_env!("SERVE_BENCH_COMMIT").unwrap_or("of no known commit");
    format!("serve-bench {}, {commit}", env!("CARGO_PKG_VERSION"))
}

/// How the conditions of a section differ, by the servers' own words.
fn proofs(section: &Section) -> Option<Table> {
    let columns = ["pair", "the one setting", "off", "on"];
    let mut table = Table::new("proved before measuring, from GET /v1/config", &columns);
    for proof in &section.proofs {
        let difference = &proof.difference;
        let cells = [
            &proof.pair,
            &difference.name,
            &difference.off,
            &difference.on,
        ];
        table.row(cells.map(String::as_str));
    }
    (!section.proofs.is_empty()).then_some(table)
}
