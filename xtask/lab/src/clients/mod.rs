//! `cargo xtask clients`: the real server, and the clients that people use.
//!
//! The server is started on a free port with the embedded model, each client's script talks to it, and a SIGTERM
//! ends it; its own exit code counts too.

mod node;

use std::error::Error;
use std::process::{Command, ExitCode};
use std::time::Duration;

use clap::ValueEnum;

use crate::child::Server;
use crate::cli::{Client, Clients};
use crate::python::{self, PythonError};
use crate::{TaskResult, place};

/// Where the scripts lie, relative to the workspace. Each takes the base URL, and exits with 1 when an answer is
/// not what its client expects.
const SCRIPTS: &str = "xtask/lab/src/clients";
/// How long the server may take to print its address.
const PATIENCE: Duration = Duration::from_secs(120);

/// Under what a client runs, with the packages that its script was written against.
enum Runtime {
    Python(&'static [&'static str]),
    Node(&'static [&'static str]),
}

impl Client {
    fn name(self) -> String {
        let value = self.to_possible_value();
        value.map_or_else(String::new, |value| value.get_name().to_owned())
    }

    fn script(self) -> (&'static str, Runtime) {
        use Runtime::{Node, Python};
        match self {
            Self::Openai => ("openai_client.py", Python(&["openai==3.57.0"])),
            Self::OpenaiNode => ("openai_client.mjs", Node(&["openai@6.49.0"])),
            Self::AiSdk => (
                "ai_sdk_client.mjs",
                Node(&["ai@6.0.326", "@ai-sdk/openai-compatible@2.0.92"]),
            ),
            Self::Langchain => ("langchain_client.py", Python(&["langchain-openai==1.7.4"])),
            Self::Litellm => ("litellm_client.py", Python(&["litellm==1.110.2"])),
            Self::PydanticAi => (
                "pydantic_ai_client.py",
                Python(&["pydantic-ai-slim[openai]==2.68.0"]),
            ),
            Self::Llm => ("llm_client.py", Python(&["llm==0.36"])),
        }
    }
}

/// Starts, has each client talk, stops.
pub(crate) fn run(options: &Clients) -> TaskResult {
    let serve = match &options.serve {
        Some(path) => path.clone(),
        None => place::beside("serve")?,
    };
    let mut commands = Vec::new();
    let all = options.only.is_empty();
    let chosen = match all {
        true => Client::value_variants(),
        false => &options.only,
    };
    let without_node = all && !node::is_there();
    for &client in chosen {
        let (script, runtime) = client.script();
        match runtime {
            Runtime::Node(_) if without_node => println!("skipped: {script} needs Node"),
            _ => commands.push((script, command(client)?)),
        }
    }
    let asked = commands.len();
    let server = Server::start(&mut Command::new(serve))?;
    let base = format!("{}/v1", server.address(PATIENCE)?);
    let mut failed = Vec::new();
    for (script, mut command) in commands {
        println!("=== {SCRIPTS}/{script} {base}");
        let status = command.arg(&base).status();
        let status = status.map_err(|source| PythonError::Start {
            program: command.get_program().display().to_string(),
            source,
        })?;
        if !status.success() {
            failed.push(script);
        }
    }
    let ended = server.stop()?;
    if !ended.success() {
        eprintln!("the server ended with {ended} after SIGTERM; 0 was expected");
        return Ok(ExitCode::FAILURE);
    }
    if failed.is_empty() {
        println!("{asked} clients got what they expect");
        return Ok(ExitCode::SUCCESS);
    }
    eprintln!("not what the client expects: {}", failed.join(", "));
    Ok(ExitCode::FAILURE)
}

/// How a client's script is started, where its packages are.
fn command(client: Client) -> Result<Command, Box<dyn Error>> {
    let (script, runtime) = client.script();
    let script = place::repository().join(SCRIPTS).join(script);
    match runtime {
        Runtime::Python(packages) => {
            // One for each client: what they ask for of one another contradicts itself.
            let venv = place::target()?.join(format!("{}-venv", client.name()));
            let mut command = Command::new(python::with_packages(&venv, packages)?);
            command.arg(script);
            Ok(command)
        }
        Runtime::Node(packages) => {
            let folder = place::target()?.join("clients-node");
            Ok(node::command(&folder, packages, &script)?)
        }
    }
}
