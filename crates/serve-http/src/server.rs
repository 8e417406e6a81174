//! The app on a socket, from the first connection to the drained end.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use axum::serve::ListenerExt;
use tokio::net::TcpListener;
use tokio::sync::oneshot;
use tracing::{info, warn};

use crate::app::app;
use crate::lifecycle::State;
use crate::service::Service;

/// How long finished answers may take to leave once the last request has ended.
const FLUSH_TIMEOUT: Duration = Duration::from_secs(5);

/// Serves `service` on `listener` until `shutdown` completes, then drains: new requests are refused
/// with 503, accepted ones finish within the drain timeout, the rest is called off, and the
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
    let (close, closed) = oneshot::channel::<()>();
    let listener = listener.tap_io(|socket| {
        // A token is a small packet, and it must not wait for the one after it.
        if let Err(error) = socket.set_nodelay(true) {
            warn!(%error, "TCP_NODELAY could not be set");
        }
    });
    let server = axum::serve(listener, app(Arc::clone(&service)))
        .with_graceful_shutdown(async {
            // A dropped sender closes as well.
            let _ = closed.await;
        })
        .into_future();
    let mut server = std::pin::pin!(server);
    tokio::select! {
        ended = &mut server => return ended,
        () = async {
            shutdown.await;
            service.drain().await;
        } => {}
    }
    drop(close);
    if tokio::time::timeout(FLUSH_TIMEOUT, server).await.is_err() {
        warn!("some clients did not read their answers to the end");
    }
    service.lifecycle().advance(State::Stopped);
    info!("stopped");
    Ok(())
}
