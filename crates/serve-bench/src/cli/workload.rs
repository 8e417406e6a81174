//! `serve-bench workload`: what a workload would send, without sending it.

use std::io::{self, Write};
use std::process::ExitCode;

use crate::workload::{Prompt, Workload};
use clap::Args;

use super::run::LoadArgs;
use super::{CommandResult, if_read};

/// Arguments of the command.
#[derive(Args, Debug)]
pub(crate) struct Show {
    #[command(flatten)]
    load: LoadArgs,
    /// How many conversations to print
    #[arg(long, value_name = "COUNT", default_value_t = 10)]
    print: usize,
    /// Print them whole, as JSON
    #[arg(long)]
    json: bool,
}

/// Draws and prints.
pub(crate) fn run(options: &Show) -> CommandResult {
    let workload = options.load.workload(None)?;
    if_read(print(&workload, options))?;
    Ok(ExitCode::SUCCESS)
}

fn print(workload: &Workload, options: &Show) -> io::Result<()> {
    let mut out = io::stdout().lock();
    let plan = workload.plan().take(options.print);
    if options.json {
        for conversation in plan {
            serde_json::to_writer(&mut out, &conversation)?;
            writeln!(out)?;
        }
        return Ok(());
    }
    let spec = workload.spec();
    writeln!(
        out,
        "{}: {} requests, {}, seed {}",
        spec.name,
        workload.requests(),
        spec.arrivals,
        spec.seed
    )?;
    writeln!(out, "requests' sha256 {}\n", workload.sha256())?;
    writeln!(
        out,
        "{:>7} {:>12}  {:<10} {:<10} {:<10} {:>7} {:>7}  prompt",
        "request", "due s", "set", "tenant", "class", "prompt", "output"
    )?;
    for conversation in plan {
        let due = conversation
            .due
            .map_or_else(|| "-".to_owned(), |due| format!("{:.6}", due.as_secs_f64()));
        let tenant = conversation
            .tenant
            .map_or("-", |tenant| &spec.tenants[tenant].name);
        let class = conversation
            .class
            .map_or("-", |class| &spec.classes[class].name);
        for (turn, planned) in conversation.turns.iter().enumerate() {
            writeln!(
                out,
                "{:>7} {:>12}  {:<10} {tenant:<10} {class:<10} {:>7} {:>7}  {}",
                planned.index,
                if turn == 0 { due.as_str() } else { "then" },
                conversation.prompt_set,
                planned.prompt_tokens,
                planned.output_tokens_max,
                beginning(&planned.prompt),
            )?;
        }
    }
    Ok(())
}

/// As much of a prompt as fits on a line.
fn beginning(prompt: &Prompt) -> String {
    const CHARS: usize = 40;
    let text = match prompt {
        Prompt::Text(text) => text.replace('\n', " "),
        Prompt::Ids(ids) => format!("{:?}", &ids[..ids.len().min(12)]),
    };
    match text.char_indices().nth(CHARS) {
        Some((end, _)) => format!("{}..", &text[..end]),
        None => text,
    }
}
