//! The commands, one file each: its arguments, and what it does with the library.

pub(crate) mod analyse;
pub(crate) mod calibrate;
pub(crate) mod compare;
pub(crate) mod lab;
pub(crate) mod matrix;
pub(crate) mod pretended;
pub(crate) mod promises;
pub(crate) mod report;
pub(crate) mod run;
pub(crate) mod self_test;
pub(crate) mod simulate;
pub(crate) mod sweep;
pub(crate) mod workload;

use std::error::Error;
use std::process::ExitCode;

use clap::Args;
use serve_bench::slo::Slo;
use serve_core::Span;

/// The exit code of a command that did its work, or why it could not.
pub(crate) type CommandResult = Result<ExitCode, Box<dyn Error>>;

/// The exit code where the client was the bottleneck: of a void run, of a load that was not sustained.
pub(crate) const VOID: u8 = 3;

/// The exit code where somebody said stop, or the budget was used up, before the end.
pub(crate) const INCOMPLETE: u8 = 6;

/// What an answer must keep to be counted as goodput.
#[derive(Args, Debug)]
pub(crate) struct SloArgs {
    /// Count as goodput only answers whose first token came within this time
    #[arg(long, value_name = "MS")]
    slo_ttft_ms: Option<u64>,
    /// Count as goodput only answers whose further tokens took at most this time each
    #[arg(long, value_name = "MS")]
    slo_tpot_ms: Option<u64>,
    /// Count as goodput only answers that ended within this time
    #[arg(long, value_name = "MS")]
    slo_e2e_ms: Option<u64>,
}

impl SloArgs {
    /// The limits.
    pub(crate) fn slo(&self) -> Slo {
        Slo {
            ttft: self.slo_ttft_ms.map(Span::from_millis),
            tpot: self.slo_tpot_ms.map(Span::from_millis),
            e2e: self.slo_e2e_ms.map(Span::from_millis),
        }
    }

    /// The limits; `None` when no option was given.
    pub(crate) fn given(&self) -> Option<Slo> {
        Some(self.slo()).filter(|slo| !slo.is_empty())
    }
}
