//! Health checks and metrics on an address of their own, served by a thread that does nothing else: they are
//! answered whatever the others are busy with.

use std::io;
use std::net::TcpListener;
use std::sync::Arc;
use std::thread;

use crate::listener::run_narrow;
use crate::router::health_paths;
use crate::service::Service;

/// Answers `/health`, `/health/live`, `/health/ready` and `/metrics` on `listener` for as long as the process
/// lives.
///
/// # Errors
///
/// Where the system refuses a thread or the listener.
pub fn serve_health(service: Arc<Service>, listener: TcpListener) -> io::Result<()> {
    listener.set_nonblocking(true)?;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    let serve = move || {
        runtime.block_on(async move {
            match tokio::net::TcpListener::from_std(listener) {
                Ok(listener) => {
                    let paths = health_paths(Arc::clone(&service));
                    run_narrow(service, listener, paths).await;
                }
                Err(error) => tracing::error!(%error, "health checks have no address of their own"),
            }
        });
    };
    thread::Builder::new()
        .name("health".to_owned())
        .spawn(serve)?;
    Ok(())
}
