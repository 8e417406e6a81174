//! A request with an `Idempotency-Key` at the edge: its key, and its work as the one that the key stands for.

use axum::body::Bytes;
use axum::extract::Request;
use axum::response::Response;
use serve_core::Span;
use tracing::Instrument;

use crate::api::Endpoint;
use crate::error::Problem;
use crate::idempotency::{self, BodyHash};
use crate::service::Service;
use crate::settings::EdgeSettings;
use crate::terms::Terms;

/// The request's key, if keys mean anything here.
pub(crate) fn idempotency_key(
    request: &Request,
    settings: &EdgeSettings,
) -> Result<Option<String>, Problem> {
    if settings.idempotency_ttl.is_zero() {
        return Ok(None);
    }
    idempotency::key(request.headers())
}

/// A request whose work is done once, however often it is sent.
pub(crate) struct Once {
    key: idempotency::Key,
    patience: Option<Span>,
}

impl Once {
    pub(crate) fn new(
        endpoint: Endpoint,
        text: String,
        terms: &Terms,
        stream: bool,
    ) -> Result<Self, Problem> {
        if stream {
            return Err(Problem::Conflict {
                param: "stream",
                other: "Idempotency-Key",
                cause: "only an answer in one piece can be given again; leave one of the two out",
            });
        }
        let key = idempotency::Key {
            tenant: terms.tenant,
            endpoint,
            text,
        };
        let patience = terms.timeout;
        Ok(Self { key, patience })
    }

    pub(crate) async fn answer(
        self,
        service: &Service,
        body: BodyHash,
        work: impl Future<Output = Result<Bytes, Problem>> + Send + 'static,
    ) -> Result<Response, Problem> {
        // Its log lines belong to the request that began it, whichever waits for it in the end.
        let work = work.in_current_span();
        let answers = service.answers();
        answers.answer(self.key, body, self.patience, work).await
    }
}
