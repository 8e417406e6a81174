//! A server in front of somebody else's engine: the gate from the settings, the engine behind it, and what a
//! person reads once it serves.

use std::sync::Arc;

use serde_json::{Value, json};
use serve_http::{LaunchError, Service, Upstream};
use serve_sched::Dispatcher;

use crate::assemble::Current;
use crate::console::Console;
use crate::failure::Failure;
use crate::settings::Cli;

/// The engine that the settings name, not asked yet. Must be called inside a tokio runtime.
///
/// # Errors
///
/// Where the policies cannot be, or the system has no port.
pub(crate) fn upstream(cli: &Cli, current: &Current) -> Result<Option<Arc<Upstream>>, Failure> {
    let settings = &cli.upstream;
    let Some(place) = settings.place() else {
        return Ok(None);
    };
    let policies = current.get().policies()?;
    let dispatcher = Dispatcher::new(policies.admit, policies.order, settings.concurrency());
    let attached = settings.attached(place, cli.served_model_name.clone());
    let upstream = Upstream::new(attached, dispatcher).map_err(Failure::Runtime)?;
    Ok(Some(Arc::new(upstream)))
}

/// Waits until the engine serves. Returns whether it does: a server that is told to stop waits no longer.
///
/// # Errors
///
/// [`Failure::Launch`].
pub(crate) async fn attach(
    upstream: &Arc<Upstream>,
    service: &Service,
    console: &Console,
) -> Result<bool, Failure> {
    console.line(&format!("waiting for the engine at {}", upstream.url()));
    match service.attach(Arc::clone(upstream)).await {
        Ok(()) => Ok(true),
        Err(LaunchError::TooLate(_)) => Ok(false),
        Err(error) => Err(Failure::Launch(error)),
    }
}

/// What settings and engine come to, for `GET /v1/config`.
pub(crate) fn running(cli: &Cli, upstream: &Upstream) -> Value {
    json!({
        "served_model_name": upstream.name(),
        "engine": upstream.url().to_string(),
        "engine_model": upstream.model(),
        "limit": cli.upstream.limit().to_string(),
    })
}
