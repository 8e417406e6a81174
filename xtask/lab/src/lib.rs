//! What this repository measures and checks of itself: its server, its decoder, its scheduler, with real
//! sockets, real time and real models.
//!
//! `cargo xtask COMMAND` builds the one binary here, with the server and the client that it starts, and hands
//! the command to it; `cli.rs` has the commands. This is no load client for other servers: that is
//! `serve-bench`, which knows no server. This crate knows ours, looks into it, and fails when a promise is broken.

#![expect(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "a command-line tool answers on its standard streams"
)]

mod agreement;
mod attack;
pub mod campaign;
mod check;
mod child;
mod cli;
mod client;
mod clients;
mod dashboards;
mod fetch;
mod fleet;
mod gpu_bench;
mod matrix_check;
mod metrics;
mod percentile;
mod place;
mod process;
mod promise;
mod provenance;
mod python;
mod server;
mod speed;
mod typed;
mod upstream;

use std::error::Error;
use std::process::{ExitCode, ExitStatus};

use clap::Parser;

use cli::{Speed, Task};

/// What this repository measures and checks of itself.
#[derive(Debug, Parser)]
#[command(name = "lab")]
struct Cli {
    #[command(subcommand)]
    task: Task,
}

/// The exit code of a command that did its work, or why it could not.
type TaskResult = Result<ExitCode, Box<dyn Error>>;

/// Does what the arguments of the process ask for. The exit codes are those of `--help`.
pub fn main() -> ExitCode {
    let task = Cli::parse().task;
    run(&task).unwrap_or_else(|error| {
        eprintln!("error: {error}");
        failure(&task)
    })
}

fn run(task: &Task) -> TaskResult {
    match task {
        Task::CheckModel(options) => check::model::run(options),
        Task::CheckTokenizer(options) => check::tokenizer::run(options),
        Task::Speed { what } => match what {
            Speed::Decode(options) => speed::decode::run(options),
            Speed::Cpu(options) => speed::cpu::run(options),
            Speed::Peers(options) => speed::peers::run(options),
            Speed::StartUp(options) => speed::start_up::run(options),
            Speed::Sched(options) => speed::sched::run_sched(options),
            Speed::Sim(options) => speed::sched::run_sim(options),
            Speed::Edge(options) => speed::edge::run(options),
            Speed::Turns(options) => speed::turns::run(options),
        },
        Task::Campaign(options) => campaign::run(options),
        Task::Attack(options) => attack::run(options),
        Task::Fleet(options) => fleet::run(options),
        Task::VerifyDashboards(options) => dashboards::run(options),
        Task::Upstream(options) => upstream::run(options),
        Task::Promise(options) => promise::run(options),
        Task::FetchModel(options) => fetch::run(options),
        Task::Clients(options) => clients::run(options),
        Task::Agreement(load) => agreement::run(load),
        Task::MatrixCheck => matrix_check::run(),
        Task::GpuBench(options) => gpu_bench::run(options),
    }
}

/// The exit code of a command that could not do its work. Where 1 is a verdict on what was checked, it is 2.
fn failure(task: &Task) -> ExitCode {
    let of_a_model = |what: &Speed| matches!(what, Speed::Decode(_) | Speed::Cpu(_));
    let of_the_scheduler = |what: &Speed| matches!(what, Speed::Sched(_) | Speed::Sim(_));
    match task {
        Task::CheckModel(_) | Task::CheckTokenizer(_) => ExitCode::from(2),
        Task::Speed { what } if of_a_model(what) || of_the_scheduler(what) => ExitCode::from(2),
        _ => ExitCode::FAILURE,
    }
}

/// The exit code of a child, to be passed on. A child that a signal ended counts as failed.
fn exit_code(status: ExitStatus) -> ExitCode {
    let code = status.code().and_then(|code| u8::try_from(code).ok());
    code.map_or(ExitCode::FAILURE, ExitCode::from)
}

/// Runs what is asynchronous in a command.
fn block_on<T>(work: impl Future<Output = T>) -> std::io::Result<T> {
    let mut builder = tokio::runtime::Builder::new_multi_thread();
    Ok(builder.enable_all().build()?.block_on(work))
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn the_command_line_is_well_formed() {
        Cli::command().debug_assert();
    }
}
