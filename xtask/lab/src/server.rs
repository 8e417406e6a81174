//! The real `serve` in a process of its own, for as long as a trial lasts.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use serve_bench::experiments::servers::{Program, Server, ServerError, ServerSettings};
use thiserror::Error;

use crate::process::cpu_time;

/// How long a server may take to start and to stop.
const PATIENCE: Duration = Duration::from_secs(20);

/// A server that cannot be tried.
#[derive(Debug, Error)]
pub(crate) enum ServedError {
    /// It does not start.
    #[error(transparent)]
    Server(#[from] ServerError),
    /// Its address is none that can be connected to.
    #[error("the server says that it is at {0}, which is no address")]
    Address(String),
}

/// A running server.
#[derive(Debug)]
pub(crate) struct Served {
    server: Server,
    address: SocketAddr,
    log: PathBuf,
}

/// The binary at `path`, or the `serve` beside this program.
///
/// # Errors
///
/// When there is none.
pub(crate) fn program(path: Option<PathBuf>) -> Result<Program, ServedError> {
    Ok(Program::find(path, PATIENCE)?)
}

impl Served {
    /// Starts one on a free port and waits until it is ready.
    ///
    /// # Errors
    ///
    /// [`ServedError`], with the server's last words where it had any.
    pub(crate) async fn start(
        program: &Program,
        settings: &ServerSettings,
    ) -> Result<Self, ServedError> {
        static NEXT: AtomicU32 = AtomicU32::new(0);

        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let log = format!("trial-{}-{number}.log", std::process::id());
        let log = std::env::temp_dir().join(log);
        let server = Server::start(program, settings, &log).await?;
        let address = server.url().trim_start_matches("http://").parse();
        let address = address.map_err(|_| ServedError::Address(server.url().to_owned()))?;
        Ok(Self {
            server,
            address,
            log,
        })
    }

    /// Where it listens.
    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    /// Processor time that it has used; `None` where the system does not say.
    pub(crate) fn cpu_time(&self) -> Option<Duration> {
        self.server.pid().and_then(cpu_time)
    }

    /// Ends it and forgets its log.
    pub(crate) async fn stop(self) {
        self.server.stop(PATIENCE).await;
        // Left behind, it does no harm.
        let _ = std::fs::remove_file(&self.log);
    }
}
