//! `serve`: an OpenAI-compatible server for one model on one machine.

mod address_space;
mod assemble;
mod banner;
mod console;
mod failure;
mod front;
mod hash_key;
mod log;
mod nearest;
mod reload;
mod settings;
mod signals;
mod version;

use std::io::{self, Write as _};
use std::net::SocketAddr;
use std::num::NonZeroU32;
use std::process::ExitCode;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use serve_core::Span;
use serve_http::auth::Keys;
use serve_http::{CapacityStatus, EdgeSettings, MetricsSettings, Service, run, serve_health};
use serve_sched::admit::QUEUE_CAP;
use serve_sched::settings::{CLASSES, QUEUE_TIMEOUT, REQUEST_TIMEOUT, Setting};
use tokio::net::{TcpListener, TcpSocket, lookup_host};
use tokio::runtime::Runtime;
use tokio::sync::oneshot;

use assemble::{Assembled, Current};
use console::Console;
use failure::Failure;
use log::Log;
use reload::Reload;
use settings::{Cli, Command, Tenants};
use signals::Signals;

/// How long a server may take to end beyond its drain timeout, cancelled requests and unread answers
/// included, before the process is ended from outside of it.
const END_TIMEOUT: Duration = Duration::from_secs(15);

fn main() -> ExitCode {
    if let Some(code) = serve_http::engine_role(std::env::args_os()) {
        std::process::exit(code);
    }
    address_space::share_an_arena();
    if let Err(failure) = address_space::check_for_words() {
        // Nobody else writes yet.
        let _ = writeln!(io::stderr(), "serve: error: {failure}");
        std::process::exit(failure.exit_code());
    }
    let (console, flush) = match Console::start() {
        Ok(started) => started,
        // There is nowhere to say why.
        Err(_) => return ExitCode::FAILURE,
    };
    console.report_panics();
    let code = ended(&console);
    drop(flush);
    // Not by returning: a loader that is still at work must not keep the process.
    std::process::exit(code)
}

/// Does what the command line asks for, and returns the exit code.
fn ended(console: &Console) -> i32 {
    let cli = match settings::read(std::env::args_os().collect(), |path| {
        std::fs::read_to_string(path)
    }) {
        Ok(cli) => cli,
        // Help and version are no failures, and clap knows where each of these is printed.
        Err(Failure::Message(message)) => {
            let _ = message.print();
            return message.exit_code();
        }
        Err(failure) => return failed(console, &failure),
    };
    let done = match cli.command {
        Some(Command::HashKey { generate }) => hash_key::run(generate),
        None => start(cli, console),
    };
    match done {
        Ok(()) => failure::OK,
        Err(failure) => failed(console, &failure),
    }
}

fn start(mut cli: Cli, console: &Console) -> Result<(), Failure> {
    let (runtime, log) = prepare(&mut cli, console)?;
    runtime.block_on(serve(cli, log, console.clone()))
}

fn failed(console: &Console, failure: &Failure) -> i32 {
    console.error(failure);
    failure.exit_code()
}

/// What has to be right before anything is started.
fn prepare(cli: &mut Cli, console: &Console) -> Result<(Runtime, Log), Failure> {
    address_space::check()?;
    let log = Log::start(&cli.log, cli.log_format, console)?;
    // Each connection is an open file, and the usual limit is lower than that on connections.
    match rlimit::increase_nofile_limit(u64::MAX) {
        Ok(files_max) => {
            if let Some(asked) = cli.network.fit_files(files_max) {
                let connections = cli.network.connections_max;
                tracing::warn!(
                    "{files_max} files may be open, so {connections} connections at most and not {asked}"
                );
            }
        }
        Err(error) => tracing::warn!(%error, "the limit on open files could not be raised"),
    }
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build();
    Ok((runtime.map_err(Failure::Runtime)?, log))
}

async fn serve(cli: Cli, log: Log, console: Console) -> Result<(), Failure> {
    // Signals first: a signal between the open port and its handler would end the process unsaid.
    let requests = &cli.requests;
    let patience =
        requests.drain_delay.duration() + requests.drain_timeout.duration() + END_TIMEOUT;
    let Signals { stop, told } =
        Signals::listen(console.clone(), patience).map_err(Failure::Runtime)?;
    let listener = listen(&cli).await?;
    let address = listener.local_addr().map_err(Failure::Runtime)?;
    let tenants = Tenants::of(&cli)?;
    let current = Current::new(tenants.settings(&cli));
    let keys = tenants.keys.clone();
    let service = Service::new(edge(&cli, keys, &console, address)?);
    let health = match cli.network.health_address {
        Some(address) => Some(listen_for_health(&service, address)?),
        None => None,
    };

    let stop = async move {
        // The thread that sends does so before it ends.
        let _ = stop.await;
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

    let reloading = Reload {
        cli: cli.clone(),
        tenants,
        current: current.clone(),
        service: Arc::clone(&service),
        log,
        console: console.clone(),
    };
    thread::Builder::new()
        .name("reload".to_owned())
        .spawn(move || reloading.run(&told))
        .map_err(Failure::Runtime)?;

    let upstream = front::upstream(&cli, &current)?;
    match &upstream {
        Some(upstream) => {
            if front::attach(upstream, &service, &console).await? {
                service.describe(front::running(&cli, upstream));
                console.print(&banner::of_front(&cli, upstream, address, health));
            }
        }
        None => {
            let loading = load(cli.clone(), current, console.clone());
            tokio::select! {
                // A signal while the model loads: the server has drained, and the model is not waited for.
                _ = running => {}
                loaded = loading => {
                    if let Some(banner) = launch(&service, loaded?, &cli, (address, health)).await? {
                        console.print(&banner);
                    }
                }
            }
        }
    }
    let ended = (&mut server).await;
    if let Some(upstream) = upstream {
        // Nobody is with it any more.
        upstream.end().await;
    }
    match ended {
        Ok(result) => result.map_err(Failure::Runtime),
        Err(error) => Err(Failure::Runtime(std::io::Error::other(error))),
    }
}

/// Serves a model that has been put together. Returns what a person reads then, unless the server was told to stop.
async fn launch(
    service: &Service,
    Assembled {
        loaded,
        description,
    }: Assembled,
    cli: &Cli,
    (address, health): (SocketAddr, Option<SocketAddr>),
) -> Result<Option<String>, Failure> {
    service.describe(description.running.clone());
    let name = loaded.name.clone();
    match service.launch(loaded).await {
        Ok(()) => Ok(Some(banner::banner(
            cli,
            &name,
            &description,
            address,
            health,
        ))),
        Err(serve_http::LaunchError::TooLate(_)) => Ok(None),
        Err(error) => Err(Failure::Launch(error)),
    }
}

/// What the edge is told.
fn edge(
    cli: &Cli,
    keys: Keys,
    console: &Console,
    address: SocketAddr,
) -> Result<EdgeSettings, Failure> {
    let requests = &cli.requests;
    let settings = cli.settings();
    let limit = |time: &Setting<Span>| {
        let time = settings.get(time);
        (!time.is_zero()).then(|| time.into())
    };
    Ok(EdgeSettings {
        queue_cap: settings.get(&QUEUE_CAP),
        connections: cli.network.connections(),
        request_timeout: limit(&REQUEST_TIMEOUT),
        queue_timeout: limit(&QUEUE_TIMEOUT),
        drain_timeout: requests.drain_timeout.duration(),
        drain_delay: requests.drain_delay.duration(),
        stalled_after: requests.stalled_after.duration(),
        idempotency_ttl: requests.idempotency_ttl.duration(),
        idempotency_bytes_max: requests.idempotency_bytes_max.get(),
        capacity_status: match requests.capacity_status {
            settings::CapacityStatus::Unavailable => CapacityStatus::Unavailable,
            settings::CapacityStatus::TooMany => CapacityStatus::TooManyRequests,
        },
        allowed_hosts: cli
            .network
            .hosts(cli.keys.is_empty() && address.ip().is_loopback()),
        cors_origins: cli.network.cors_origins.clone(),
        classes: settings.get(&CLASSES),
        keys,
        log_lines_lost: console.lines_lost(),
        log_prompt_blocks: NonZeroU32::new(cli.log_prompt_blocks),
        metrics: metrics(cli)?,
        shown: cli.shown()?,
    })
}

/// Limits of which it is asked how many requests kept them.
const PROMISES: [&str; 3] = ["first_token_budget", "inter_token_target", "latency_budget"];

fn metrics(cli: &Cli) -> Result<MetricsSettings, Failure> {
    let shown = cli.shown()?;
    let seconds = PROMISES.iter().filter_map(|name| shown[name].as_f64());
    let bounds = seconds.filter(|seconds| *seconds > 0.0);
    Ok(MetricsSettings {
        vllm_names: cli.network.vllm_metrics,
        bounds: bounds.map(Duration::from_secs_f64).collect(),
        build: version::labels(),
    })
}

/// Connections that may wait to be accepted, where the system allows as many. A client for whom there is no
/// place tries again after a second, and 128, as many libraries have it, are less than a burst.
const BACKLOG: u32 = 4_096;

async fn listen(cli: &Cli) -> Result<TcpListener, Failure> {
    let failed = |cause| Failure::Listen {
        host: cli.network.host.clone(),
        port: cli.network.port,
        cause,
    };
    let addresses = lookup_host((cli.network.host.as_str(), cli.network.port)).await;
    let addresses: Vec<SocketAddr> = addresses.map_err(failed)?.collect();
    let outside = addresses.iter().any(|address| !address.ip().is_loopback());
    if outside && cli.keys.is_empty() && !cli.network.allow_anonymous {
        return Err(Failure::Usage {
            setting: "--host".to_owned(),
            cause: format!(
                "{} can be reached from other machines, and there are no API keys; list [[keys]] in \
                 the settings file, or give --allow-anonymous to serve everybody",
                cli.network.host
            ),
        });
    }
    let mut last = io::Error::from(io::ErrorKind::NotFound);
    for &address in &addresses {
        match bind(address) {
            Ok(listener) => return Ok(listener),
            Err(cause) => last = cause,
        }
    }
    Err(failed(last))
}

fn bind(address: SocketAddr) -> io::Result<TcpListener> {
    let socket = match address {
        SocketAddr::V4(_) => TcpSocket::new_v4()?,
        SocketAddr::V6(_) => TcpSocket::new_v6()?,
    };
    // The port of a server that has just ended.
    socket.set_reuseaddr(true)?;
    socket.bind(address)?;
    socket.listen(BACKLOG)
}

/// Answers health checks on `address`, and returns it with the port that it has.
fn listen_for_health(service: &Arc<Service>, address: SocketAddr) -> Result<SocketAddr, Failure> {
    let listener = std::net::TcpListener::bind(address).map_err(|cause| Failure::Listen {
        host: address.ip().to_string(),
        port: address.port(),
        cause,
    })?;
    let address = listener.local_addr().map_err(Failure::Runtime)?;
    serve_health(Arc::clone(service), listener).map_err(Failure::Runtime)?;
    Ok(address)
}

/// Puts the model together on a thread of its own: reading weights blocks for as long as it takes.
async fn load(cli: Cli, current: Current, console: Console) -> Result<Assembled, Failure> {
    let (done, loaded) = oneshot::channel();
    let loader = move || {
        // Nobody waits any more when a signal has come in the meantime.
        let _ = done.send(assemble::assemble(&cli, &current, &console));
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
