//! `serve`: an OpenAI-compatible server for one model on one machine.

mod assemble;
mod cli;
mod console;
mod failure;
#[cfg(feature = "model")]
mod model;
#[cfg(feature = "model")]
mod progress;
mod signals;

use std::process::ExitCode;
use std::sync::Arc;
use std::thread;

use clap::Parser;
use serve_http::{Service, Settings, run};
use tokio::net::TcpListener;
use tokio::sync::oneshot;

use assemble::Assembled;
use cli::Cli;
use console::Console;
use failure::Failure;
use signals::Signals;

fn main() -> ExitCode {
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        // Help and version are no failures, and clap knows where each of these is printed.
        Err(message) => {
            let _ = message.print();
            return ExitCode::from(message.exit_code() as u8);
        }
    };
    let console = Console;
    match prepare(&cli).and_then(|runtime| runtime.block_on(serve(cli, console))) {
        // Not by returning: a loader that is still at work must not keep the process.
        Ok(()) => std::process::exit(failure::OK),
        Err(failure) => {
            console.error(&failure);
            std::process::exit(failure.exit_code());
        }
    }
}

/// What has to be right before anything is started.
fn prepare(cli: &Cli) -> Result<tokio::runtime::Runtime, Failure> {
    cli.validate()?;
    console::log_to_stderr(&cli.log)?;
    tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .map_err(Failure::Runtime)
}

async fn serve(cli: Cli, console: Console) -> Result<(), Failure> {
    // Signals first: a signal between the open port and its handler would end the process unsaid.
    let mut signals = Signals::listen().map_err(Failure::Runtime)?;
    let listener = listen(&cli).await?;
    let address = listener.local_addr().map_err(Failure::Runtime)?;
    let service = Service::new(Settings {
        queue_cap: cli.queue_cap,
        drain_timeout: cli.drain_timeout,
        ..Settings::default()
    });

    let stop = async move {
        let name = signals.next().await;
        console.line(&format!(
            "{name}: finishing accepted requests, a second signal ends at once"
        ));
        tokio::spawn(async move {
            signals.next().await;
            std::process::exit(failure::SECOND_SIGNAL);
        });
    };
    let (running, mut server) = {
        let service = Arc::clone(&service);
        let (ended, running) = oneshot::channel::<()>();
        let server = tokio::spawn(async move {
            let result = run(service, listener, stop).await;
            drop(ended);
            result
        });
        (running, server)
    };

    let loading = load(cli.clone(), console);
    tokio::select! {
        // A signal while the model loads: the server has drained, and the model is not waited for.
        _ = running => {}
        loaded = loading => {
            let Assembled { loaded, description } = loaded?;
            let name = loaded.name.clone();
            match service.launch(loaded).await {
                Ok(()) => console.banner(&cli, &name, &description, address),
                Err(serve_http::LaunchError::TooLate(_)) => {}
                Err(error) => return Err(Failure::Launch(error)),
            }
        }
    }
    match (&mut server).await {
        Ok(result) => result.map_err(Failure::Runtime),
        Err(error) => Err(Failure::Runtime(std::io::Error::other(error))),
    }
}

async fn listen(cli: &Cli) -> Result<TcpListener, Failure> {
    let bound = TcpListener::bind((cli.host.as_str(), cli.port)).await;
    bound.map_err(|cause| Failure::Listen {
        host: cli.host.clone(),
        port: cli.port,
        cause,
    })
}

/// Puts the model together on a thread of its own: reading weights blocks for as long as it takes.
async fn load(cli: Cli, console: Console) -> Result<Assembled, Failure> {
    let (done, loaded) = oneshot::channel();
    let loader = move || {
        // Nobody waits any more when a signal has come in the meantime.
        let _ = done.send(assemble::assemble(&cli, &console));
    };
    thread::Builder::new()
        .name("loader".to_owned())
        .spawn(loader)
        .map_err(Failure::Runtime)?;
    match loaded.await {
        Ok(result) => result,
        Err(_) => Err(Failure::LoaderPanicked),
    }
}
