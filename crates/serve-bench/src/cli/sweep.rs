//! `serve-bench sweep`: a workload over server settings and loads.

use std::io;
use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use crate::experiments::servers::ServerSettings;
use crate::experiments::sweep::search::Goal;
use crate::experiments::sweep::simulated::Pretended;
use crate::experiments::sweep::{Axis, Loads, Results, Sweep as Plan, last_passing, paths, table};
use crate::workload::slo::Slo;
use crate::workload::spec::{Arrivals, Spec};
use clap::Args;

use super::lab::LabArgs;
use super::{CommandResult, INCOMPLETE, SloArgs, VOID};

/// Arguments of the command.
#[derive(Args, Debug)]
#[command(
    after_help = "Exit code 0: everything was measured; 1: a point could not be measured; 2: bad \
    arguments; 3: a load was not delivered; 6: stopped, or out of its budget. The same command goes on where it was."
)]
pub(crate) struct Sweep {
    /// A workload in TOML; docs/serve-bench.md is its reference
    spec: PathBuf,
    #[command(flatten)]
    lab: LabArgs,
    /// Pretend the servers, in virtual time and on all cores
    #[arg(long, conflicts_with_all = ["url", "serve", "search_from", "budget_min"])]
    simulated: bool,
    /// A server setting and its values, such as max_batch=1,4,16; again for another: all combinations
    #[arg(long, value_name = "NAME=VALUES", value_parser = axis)]
    set: Vec<Axis>,
    /// Rates of an open loop, requests a second
    #[arg(long, value_name = "RATES", value_delimiter = ',', conflicts_with_all = ["clients", "search_from"])]
    rates: Vec<f64>,
    /// Numbers of clients of a closed loop
    #[arg(
        long,
        value_name = "NUMBERS",
        value_delimiter = ',',
        conflicts_with = "search_from"
    )]
    clients: Vec<u32>,
    /// Look for the last rate that passes, beginning with this one; better too high than too low
    #[arg(long, value_name = "RATE")]
    search_from: Option<f64>,
    /// No rate above this one is tried
    #[arg(
        long,
        value_name = "RATE",
        default_value_t = 10_000.0,
        requires = "search_from"
    )]
    search_to: f64,
    /// No rate below this one is tried [default: a ten-thousandth of the first]
    #[arg(long, value_name = "RATE", requires = "search_from")]
    search_down_to: Option<f64>,
    /// The search ends when a rate does not pass that is above the last passing one by at most this share
    #[arg(
        long,
        value_name = "SHARE",
        default_value_t = 0.1,
        requires = "search_from"
    )]
    resolution: f64,
    /// How often a rate is measured that is too close to call, was not delivered, or is an end of the
    /// search's answer
    #[arg(long, value_name = "N", default_value_t = 3, requires = "search_from")]
    repeats_max: u32,
    /// How often each point is measured, with another seed each time
    #[arg(long, value_name = "N", default_value_t = 1)]
    repeats: u32,
    /// The share of all requests, failed and refused ones among them, that must keep every SLO for a load
    /// to pass
    #[arg(long, value_name = "SHARE", default_value_t = 0.99)]
    pass: f64,
    #[command(flatten)]
    slo: SloArgs,
}

fn axis(text: &str) -> Result<Axis, String> {
    let wrong = || "NAME=VALUE,VALUE,.. such as max_batch=1,4,16".to_owned();
    let (name, values) = text.split_once('=').ok_or_else(wrong)?;
    let values = values
        .split(',')
        .map(|value| value.trim().to_owned())
        .collect::<Vec<_>>();
    if name.is_empty() || values.iter().any(String::is_empty) {
        return Err(wrong());
    }
    Ok(Axis {
        name: name.replace('-', "_"),
        values,
    })
}

/// Measures, prints, writes an index.
pub(crate) async fn run(options: &Sweep) -> CommandResult {
    let mut spec = Spec::read(&options.spec)?;
    if let Some(slo) = options.slo.given() {
        spec.judge_by(slo);
    }
    let plan = options.plan(spec)?;
    let files = options.spec.parent().unwrap_or(Path::new(""));
    if options.simulated {
        return simulate(&plan, options, files);
    }
    let mut series = options.lab.series(&ServerSettings::default(), files)?;
    let (out, mut written) = (options.lab.out().to_owned(), Ok(()));
    let results = plan
        .run(&mut series, |results| written = write_index(&out, results))
        .await;
    series.end_server().await;
    let results = results?;
    written?;
    report(&plan, &results, &out)?;
    Ok(match (results.whole, results.is_void()) {
        (false, _) => ExitCode::from(INCOMPLETE),
        (true, true) => ExitCode::from(VOID),
        (true, false) => ExitCode::SUCCESS,
    })
}

/// Simulates, prints, writes an index.
fn simulate(plan: &Plan, options: &Sweep, files: &Path) -> CommandResult {
    let out = options.lab.out();
    let results = plan.simulate(&Pretended {
        base: options.lab.settings()?,
        out,
        files,
        threads: std::thread::available_parallelism().unwrap_or(NonZeroUsize::MIN),
    })?;
    write_index(out, &results)?;
    report(plan, &results, out)?;
    Ok(ExitCode::SUCCESS)
}

fn report(plan: &Plan, results: &Results, out: &Path) -> io::Result<()> {
    let lines = &results.lines;
    out!("{}", table(lines, &plan.spec.slo).text());
    for path in paths(&results.searches) {
        out!("{}", path.text());
    }
    let loads = lines.iter().any(|line| line.load.is_some());
    let judged = lines.iter().any(|line| line.judged.is_some());
    if loads && judged {
        out!("{}", last_passing(results).text());
    }
    for void in lines.iter().flat_map(|line| &line.void) {
        out!("VOID: {void}");
    }
    if !results.whole {
        out!("not finished; the same command goes on where it was");
    }
    out!(
        "kept in {0}; `serve-bench report {0}` draws it",
        out.display()
    );
    Ok(())
}

fn write_index(out: &Path, results: &Results) -> Result<(), String> {
    let path = out.join("index.json");
    let text = serde_json::to_string_pretty(results).map_err(|error| error.to_string())?;
    std::fs::write(&path, text).map_err(|error| format!("{}: {error}", path.display()))
}

impl Sweep {
    fn plan(&self, spec: Spec) -> Result<Plan, String> {
        let closed = matches!(spec.arrivals, Arrivals::Closed { .. });
        let loads = match (
            self.rates.is_empty(),
            self.clients.is_empty(),
            self.search_from,
        ) {
            (false, ..) => Loads::Rates(self.rates.clone()),
            (true, false, _) => Loads::Clients(self.clients.clone()),
            (true, true, Some(from_per_s)) => Loads::Search(self.goal(from_per_s)?),
            (true, true, None) => Loads::AsGiven,
        };
        let fits = match &loads {
            Loads::AsGiven => true,
            Loads::Clients(clients) => closed && !clients.contains(&0),
            Loads::Rates(rates) => !closed && rates.iter().all(|rate| *rate > 0.0),
            Loads::Search(_) => !closed,
        };
        if !fits {
            let message = "the loads do not fit the workload: --clients takes numbers from 1 up for \
                arrivals.closed; --rates and --search-from take rates above 0 for any other arrivals";
            return Err(message.to_owned());
        }
        if !(0.0..=1.0).contains(&self.pass) {
            return Err("--pass: accepted is a share from 0 to 1".to_owned());
        }
        let slo =
            spec.slo != Slo::default() || spec.classes.iter().any(|class| class.slo.is_some());
        if matches!(loads, Loads::Search(_)) && !slo {
            let message = "a search needs an objective: give slo in the workload, or --slo-ttft-ms and the like";
            return Err(message.to_owned());
        }
        Ok(Plan {
            spec,
            axes: self.set.clone(),
            loads,
            repeats: self.repeats.max(1),
            pass_share: self.pass,
        })
    }

    fn goal(&self, from_per_s: f64) -> Result<Goal, String> {
        let goal = Goal {
            from_per_s,
            least_per_s: self.search_down_to.unwrap_or(from_per_s / 1e4),
            most_per_s: self.search_to,
            resolution: self.resolution,
            pass_share: self.pass,
            repeats: self.repeats.max(1),
            repeats_max: self.repeats_max.max(self.repeats),
        };
        let bounds = [0.0, goal.least_per_s, goal.from_per_s, goal.most_per_s];
        if bounds[0] == bounds[1] || !bounds.is_sorted() {
            let message = "the rates of a search are above 0 and in this order: --search-down-to, \
                --search-from, --search-to";
            return Err(message.to_owned());
        }
        // Loads have three digits: closer than this two of them may be neighbours.
        if !(0.02..=1.0).contains(&self.resolution) {
            return Err("--resolution: accepted is a share from 0.02 to 1".to_owned());
        }
        Ok(goal)
    }
}
