//! The app on a socket, from the first connection to the drained end.

use std::fs::File;
use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use hyper_util::server::graceful::GracefulShutdown;
use socket2::{SockRef, TcpKeepalive};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{sleep, timeout};
use tracing::{info, warn};

use crate::access::Peer;
use crate::app::App;
use crate::connection;
use crate::hangup::Socket;
use crate::lifecycle::State;
use crate::metrics::Metrics;
use crate::router::{crowded, served};
use crate::service::Service;
use crate::settings::ConnectionSettings;

/// A host that has vanished without a word is noticed after 90 s.
const KEEP_ALIVE_AFTER: Duration = Duration::from_secs(60);
const KEEP_ALIVE_EVERY: Duration = Duration::from_secs(10);
const KEEP_ALIVE_TRIES: u32 = 3;

/// The want of file descriptors is logged at most so often.
const TELL_EVERY: Duration = Duration::from_secs(10);

/// Between two tries to accept where not even one descriptor is spare.
const PAUSE: Duration = Duration::from_millis(50);

/// How long finished answers may take to leave once the last request has ended.
const FLUSH_TIMEOUT: Duration = Duration::from_secs(5);

/// How long a connection beyond those that may be may take for its headers, and for the answer.
const SURPLUS_TIMEOUT: Duration = Duration::from_secs(2);

/// Serves `service` on `listener` until `shutdown` completes, then drains: new requests are refused
/// with 503, accepted ones finish within the drain timeout, the rest is cancelled, and the
/// connections are closed.
///
/// # Errors
///
/// When the listener breaks.
pub async fn run(
    service: Arc<Service>,
    listener: TcpListener,
    shutdown: impl Future<Output = ()>,
) -> io::Result<()> {
    let doors = Doors::of(&service);
    let connections = GracefulShutdown::new();
    let drained = async {
        shutdown.await;
        service.drain().await;
    };
    let mut drained = std::pin::pin!(drained);
    let mut gate = Gate::new();
    loop {
        let socket = tokio::select! {
            socket = gate.accept(&listener, service.metrics()) => socket,
            () = &mut drained => break,
        };
        let Some(door) = doors.open() else {
            service.metrics().connection_dropped();
            continue;
        };
        begin(socket, door, &service, &connections);
    }
    drop(listener);
    if tokio::time::timeout(FLUSH_TIMEOUT, connections.shutdown())
        .await
        .is_err()
    {
        warn!("some clients did not read their answers to the end");
    }
    service.lifecycle().advance(State::Stopped);
    info!("stopped");
    Ok(())
}

/// Serves a few connections of `app` at once, each with little time, for as long as the process lives.
pub(crate) async fn run_narrow(service: Arc<Service>, listener: TcpListener, app: App) {
    let door = Door::narrow(app, service.settings().connections);
    let connections = GracefulShutdown::new();
    let mut gate = Gate::new();
    loop {
        let socket = gate.accept(&listener, service.metrics()).await;
        match door.open() {
            Some(door) => begin(socket, door, &service, &connections),
            None => service.metrics().connection_dropped(),
        }
    }
}

/// Serves a connection that has come in, in a task of its own.
fn begin(
    socket: TcpStream,
    door: Door<OwnedSemaphorePermit>,
    service: &Service,
    connections: &GracefulShutdown,
) {
    if let Err(error) = prepare(&socket) {
        warn!(%error, "a connection's options could not be set");
    }
    let app = door.app.for_peer(socket.peer_addr().map(Peer).ok());
    let socket = Socket::new(socket);
    let hung_up = socket.clone().hung_up();
    let settings = door.settings;
    let served = connection::serve(socket, hung_up, app, settings, connections.watcher());
    let counted = service.metrics().connected();
    tokio::spawn(async move {
        served.await;
        drop((door.place, counted));
    });
}

fn prepare(socket: &TcpStream) -> io::Result<()> {
    // A token is a small packet, and it must not wait for the one after it.
    socket.set_nodelay(true)?;
    let probes = TcpKeepalive::new()
        .with_time(KEEP_ALIVE_AFTER)
        .with_interval(KEEP_ALIVE_EVERY)
        .with_retries(KEEP_ALIVE_TRIES);
    SockRef::from(socket).set_tcp_keepalive(&probes)
}

/// Accepts connections, also when there are no file descriptors left.
struct Gate {
    /// A descriptor to accept a connection with that is closed at once, so that its client knows.
    spare: Option<File>,
    /// When the want of descriptors was last logged.
    told: Option<Instant>,
}

impl Gate {
    fn new() -> Self {
        Self {
            spare: spare(),
            told: None,
        }
    }

    /// The next connection. Errors are those of single connections, or pass.
    async fn accept(&mut self, listener: &TcpListener, metrics: &Metrics) -> TcpStream {
        loop {
            match listener.accept().await {
                Ok((socket, _)) => return socket,
                Err(error) if is_of_the_client(&error) => {}
                Err(error) => {
                    if self.told.is_none_or(|told| told.elapsed() >= TELL_EVERY) {
                        self.told = Some(Instant::now());
                        warn!(%error, "connections are closed unserved; more open files would help");
                    }
                    if self.spare.take().is_some() {
                        // The descriptor that has just been freed; what waits is closed with it.
                        // Where nobody waits, the system says that there are none left all the same.
                        match timeout(PAUSE, listener.accept()).await {
                            Ok(Ok(unserved)) => {
                                drop(unserved);
                                metrics.connection_dropped();
                            }
                            Ok(Err(_)) => sleep(PAUSE).await,
                            Err(_) => {}
                        }
                    } else {
                        sleep(PAUSE).await;
                    }
                    self.spare = spare();
                }
            }
        }
    }
}

fn spare() -> Option<File> {
    File::open("/dev/null").ok()
}

/// The connection was gone before it was accepted.
fn is_of_the_client(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::ConnectionAborted
            | io::ErrorKind::ConnectionReset
            | io::ErrorKind::ConnectionRefused
    )
}

/// The ways in: one for as many connections as may be, and a narrow one beside it, so that one too
/// many gets 429, and health checks are answered.
struct Doors {
    wide: Door<Arc<Semaphore>>,
    narrow: Door<Arc<Semaphore>>,
}

struct Door<P> {
    app: App,
    settings: ConnectionSettings,
    place: P,
}

impl Doors {
    fn of(service: &Arc<Service>) -> Self {
        let settings = service.settings().connections;
        let max = match settings.connections_max {
            0 => Semaphore::MAX_PERMITS,
            max => max as usize,
        };
        Self {
            wide: Door {
                app: served(Arc::clone(service)),
                settings,
                place: Arc::new(Semaphore::new(max)),
            },
            narrow: Door::narrow(crowded(Arc::clone(service)), settings),
        }
    }

    /// The way in of one more connection.
    fn open(&self) -> Option<Door<OwnedSemaphorePermit>> {
        [&self.wide, &self.narrow].into_iter().find_map(Door::open)
    }
}

impl Door<Arc<Semaphore>> {
    /// A way in for few connections, each of which has little time.
    fn narrow(app: App, settings: ConnectionSettings) -> Self {
        let at_most = |limit: Option<Duration>| {
            Some(limit.map_or(SURPLUS_TIMEOUT, |limit| limit.min(SURPLUS_TIMEOUT)))
        };
        Self {
            app,
            settings: ConnectionSettings {
                header_timeout: at_most(settings.header_timeout),
                keep_alive_timeout: at_most(settings.keep_alive_timeout),
                write_timeout: at_most(settings.write_timeout),
                ..settings
            },
            place: Arc::new(Semaphore::new(settings.surplus_max as usize)),
        }
    }

    fn open(&self) -> Option<Door<OwnedSemaphorePermit>> {
        let place = Arc::clone(&self.place).try_acquire_owned().ok()?;
        Some(Door {
            app: self.app.clone(),
            settings: self.settings,
            place,
        })
    }
}
