//! The app on a socket, from the first connection to the drained end.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::serve::Listener;
use hyper_util::server::graceful::GracefulShutdown;
use tokio::net::TcpListener;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tracing::{info, warn};

use crate::connection;
use crate::lifecycle::State;
use crate::router::{crowded, router};
use crate::service::Service;
use crate::settings::ConnectionSettings;

/// How long finished answers may take to leave once the last request has ended.
const FLUSH_TIMEOUT: Duration = Duration::from_secs(5);

/// Connections beyond those that may be, which get 503; still more are closed without a response.
const SURPLUS_MAX: usize = 64;

/// How long one of them may take for its headers, and for the answer.
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
    mut listener: TcpListener,
    shutdown: impl Future<Output = ()>,
) -> io::Result<()> {
    let doors = Doors::of(&service);
    let connections = GracefulShutdown::new();
    let drained = async {
        shutdown.await;
        service.drain().await;
    };
    let mut drained = std::pin::pin!(drained);
    loop {
        // It goes on after errors, which are those of single connections or pass.
        let (socket, _) = tokio::select! {
            accepted = Listener::accept(&mut listener) => accepted,
            () = &mut drained => break,
        };
        let Some(door) = doors.open() else {
            service.metrics().connection_dropped();
            continue;
        };
        // A token is a small packet, and it must not wait for the one after it.
        if let Err(error) = socket.set_nodelay(true) {
            warn!(%error, "TCP_NODELAY could not be set");
        }
        let served = connection::serve(socket, door.app, door.settings, connections.watcher());
        let counted = service.metrics().connected();
        tokio::spawn(async move {
            served.await;
            drop((door.place, counted));
        });
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

/// The ways in: one for as many connections as may be, and a narrow one beside it, so that one too
/// many gets 503, and health checks are answered.
struct Doors {
    wide: Door<Arc<Semaphore>>,
    narrow: Door<Arc<Semaphore>>,
}

struct Door<P> {
    app: Router,
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
        let at_most = |limit: Option<Duration>| {
            Some(limit.map_or(SURPLUS_TIMEOUT, |limit| limit.min(SURPLUS_TIMEOUT)))
        };
        Self {
            wide: Door {
                app: router(Arc::clone(service)),
                settings,
                place: Arc::new(Semaphore::new(max)),
            },
            narrow: Door {
                app: crowded(Arc::clone(service)),
                settings: ConnectionSettings {
                    header_timeout: at_most(settings.header_timeout),
                    keep_alive_timeout: at_most(settings.keep_alive_timeout),
                    write_timeout: at_most(settings.write_timeout),
                    ..settings
                },
                place: Arc::new(Semaphore::new(SURPLUS_MAX)),
            },
        }
    }

    /// The way in of one more connection.
    fn open(&self) -> Option<Door<OwnedSemaphorePermit>> {
        [&self.wide, &self.narrow].into_iter().find_map(|door| {
            let place = Arc::clone(&door.place).try_acquire_owned().ok()?;
            Some(Door {
                app: door.app.clone(),
                settings: door.settings,
                place,
            })
        })
    }
}
