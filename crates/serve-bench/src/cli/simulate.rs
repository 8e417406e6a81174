//! `serve-bench simulate`: the workload of a run through the scheduler in virtual time.

use std::path::PathBuf;
use std::time::Instant;

use crate::analysis::bootstrap::Bootstrap;
use crate::analysis::summary;
use crate::analysis::{Analysis, AnalysisOptions};
use crate::experiments::simulate::{self, Simulation};
use crate::store::folder::RunFolder;
use clap::Args;

use super::analyse::exit_code;
use super::pretended::PretendedArgs;
use super::run::LoadArgs;
use super::{CommandResult, SloArgs};

/// Arguments of the command.
#[derive(Args, Debug)]
pub(crate) struct Simulate {
    #[command(flatten)]
    load: LoadArgs,
    #[command(flatten)]
    server: PretendedArgs,
    /// Microseconds that the way through a server's edge adds to whatever comes back
    #[arg(long, value_name = "US", default_value_t = 0.0)]
    edge_us: f64,
    /// Where to keep the run: a folder with its rows and its manifest
    #[arg(long, value_name = "DIR")]
    dir: Option<PathBuf>,
    #[command(flatten)]
    slo: SloArgs,
}

/// Beyond so many requests, intervals by resampling would take longer than the simulation.
const RESAMPLED_MAX: u64 = 100_000;

/// Simulates, writes and prints.
pub(crate) fn run(options: &Simulate) -> CommandResult {
    let workload = options.load.workload(options.slo.given())?;
    let server = options.server.model()?;
    let began = Instant::now();
    let simulation = Simulation {
        edge: serve_core::Span::from_secs_f64(options.edge_us.max(0.0) / 1e6),
        folder: options.dir.as_ref().map(RunFolder::at),
    };
    let (run, simulated) = simulate::run(&workload, &server, &simulation)?;
    let took = began.elapsed();
    let mut how = AnalysisOptions::default();
    if workload.requests() > RESAMPLED_MAX {
        how.bootstrap = Bootstrap {
            resamples: 0,
            ..how.bootstrap
        };
    }
    let analysis = Analysis::of(&[run], &how);
    out_part!("{}", summary::text(&analysis));
    out!(
        "\nsimulated  {} of {} requests in {:.1} s; the device was busy {:.1}% of the time, {} \
         preemptions",
        simulated.end,
        workload.requests(),
        took.as_secs_f64(),
        100.0 * simulated.busy.as_secs_f64() / simulated.end.as_secs_f64().max(1e-9),
        simulated.preemptions,
    );
    if let Some(dir) = &options.dir {
        out!(
            "kept in    {}; `serve-bench analyse` reads it again",
            dir.display()
        );
    }
    Ok(exit_code(&analysis))
}
