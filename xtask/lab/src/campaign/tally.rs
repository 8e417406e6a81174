//! What the server's own `GET /metrics` says of the requests that came.

use std::sync::Arc;

use axum::body::{Body, to_bytes};
use axum::http::Request;
use serve_http::{Service, router};
use tower::ServiceExt;

use crate::metrics;

/// Requests for text, by how they ended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Tally {
    pub(super) arrived: u64,
    pub(super) in_flight: u64,
    pub(super) finished: u64,
    pub(super) refused: u64,
    pub(super) cancelled: u64,
    pub(super) failed: u64,
}

impl Tally {
    /// Asks without a socket: a server that has ended has none. `None` when one of the figures is
    /// not there.
    pub(super) async fn of(service: &Arc<Service>) -> Option<Self> {
        let request = Request::get("/metrics").body(Body::empty()).ok()?;
        let response = router(Arc::clone(service)).oneshot(request).await.ok()?;
        let bytes = to_bytes(response.into_body(), usize::MAX).await.ok()?;
        Self::parse(std::str::from_utf8(&bytes).ok()?)
    }

    fn parse(text: &str) -> Option<Self> {
        let value = |series: &str| metrics::value(text, series).map(|value| value as u64);
        let ended = |end| value(&format!("serve_requests_ended_total{{end=\"{end}\"}}"));
        Some(Self {
            arrived: value("serve_requests_arrived_total")?,
            in_flight: value("serve_requests_in_flight")?,
            finished: ended("finished")?,
            refused: ended("refused")?,
            cancelled: ended("cancelled")?,
            failed: ended("failed")?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_figure_is_found_or_nothing_is() {
        let text = "# TYPE serve_requests_arrived counter\nserve_requests_arrived_total 9\n\
                    serve_requests_in_flight 1\nserve_requests_ended_total{end=\"finished\"} 2\n\
                    serve_requests_ended_total{end=\"refused\"} 3\n\
                    serve_requests_ended_total{end=\"cancelled\"} 3\n";
        assert_eq!(Tally::parse(text), None);
        let text = format!("{text}serve_requests_ended_total{{end=\"failed\"}} 0\n");
        let tally = Tally::parse(&text).unwrap();
        assert_eq!((tally.arrived, tally.refused, tally.failed), (9, 3, 0));
    }
}
