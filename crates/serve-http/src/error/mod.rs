//! Everything that can go wrong for a client, and the one place that says which status, code and
//! `Retry-After` it becomes.
//!
//! Every failing answer of the server, on every path, has the same body:
//!
//! ```json
//! {"error": {"message": "...", "type": "...", "param": "...", "code": "..."}}
//! ```

mod response;

use axum::body::Bytes;
use axum::http::StatusCode;
use serve_core::{Blame, CancelReason, Code, InvalidRequest, InvalidSampling, Refusal, Span};
use thiserror::Error;

use crate::lifecycle::State;
pub use response::ErrorBody;
pub(crate) use response::Told;

/// What a client is told instead of an answer.
#[derive(Clone, Debug, Error, PartialEq)]
pub enum Problem {
    /// The body is not JSON.
    #[error("the body is not valid JSON: {cause} (line {line}, column {column})")]
    Syntax {
        /// What the parser met.
        cause: String,
        /// Counted from 1.
        line: usize,
        /// Counted from 1.
        column: usize,
    },
    /// A value of another JSON type than the parameter takes.
    #[error("{param} must be {accepted}, not {given}")]
    Type {
        /// The parameter, as a path: `messages[0].role`.
        param: String,
        /// What it takes.
        accepted: String,
        /// What came.
        given: String,
    },
    /// A value outside what the parameter accepts.
    #[error("{param} must be {accepted}, not {given}")]
    Value {
        /// The parameter, as a path.
        param: String,
        /// What it takes.
        accepted: String,
        /// What came.
        given: String,
    },
    /// A sampling parameter out of range.
    #[error(transparent)]
    Sampling(#[from] InvalidSampling),
    /// A parameter without which the request means nothing.
    #[error("{param} is missing; it must be {accepted}")]
    Missing {
        /// The parameter, as a path.
        param: String,
        /// What it takes.
        accepted: &'static str,
    },
    /// A parameter of the OpenAI API that this server knows and does not do.
    #[error("{param} is not supported here: leave it out or give {accepted}")]
    Unsupported {
        /// The parameter, as a path.
        param: String,
        /// The values under which it changes nothing.
        accepted: &'static str,
    },
    /// A parameter that nobody knows.
    #[error("{param} is not a known parameter")]
    UnknownParameter {
        /// The parameter, as a path.
        param: String,
    },
    /// Two parameters that contradict each other.
    #[error("{param} contradicts {other}: {cause}")]
    Conflict {
        /// The parameter to change.
        param: &'static str,
        /// The one that it contradicts.
        other: &'static str,
        /// In what.
        cause: &'static str,
    },
    /// The text cannot be turned into tokens.
    #[error("{param} cannot be encoded: {cause}")]
    Encoding {
        /// `prompt` or `messages`.
        param: &'static str,
        /// The tokenizer's or the chat template's own words.
        cause: String,
    },
    /// The prompt leaves no room for an answer, or the limit asked for does not fit. Clients know the kind of error
    /// by these words: some of them ask a model with a longer context then.
    #[error(
        "{param}: this model's maximum context length is {max} tokens in all, but the prompt holds {prompt} \
         tokens and {output} more are asked for"
    )]
    ContextLength {
        /// The parameter to make smaller.
        param: &'static str,
        /// Tokens in the prompt.
        prompt: u64,
        /// Tokens asked for.
        output: u64,
        /// Tokens that fit.
        max: u64,
    },
    /// The text is longer than any text that fits.
    #[error(
        "{param}: this model's maximum context length is {tokens} tokens in all, which are {max} bytes at most, \
         but the text has {bytes} bytes"
    )]
    TextLength {
        /// The parameter to make smaller.
        param: &'static str,
        /// Bytes of the text.
        bytes: usize,
        /// Bytes that could fit.
        max: usize,
        /// Tokens that fit, prompt and answer together.
        tokens: u32,
    },
    /// Another model than the one that is served.
    #[error("the model {asked:?} does not exist here; this server serves {served:?}")]
    ModelNotFound {
        /// The name asked for.
        asked: String,
        /// The name that would have been right.
        served: String,
    },
    /// No such path.
    #[error("no such path: {method} {path}; GET / shows what there is")]
    NotFound {
        /// The method.
        method: String,
        /// The path.
        path: String,
    },
    /// The path exists, the method does not.
    #[error("{path} does not take {method}")]
    MethodNotAllowed {
        /// The method.
        method: String,
        /// The path.
        path: String,
    },
    /// The body is not declared as JSON.
    #[error("the Content-Type must be application/json, not {given}")]
    MediaType {
        /// What the client declared.
        given: String,
    },
    /// A header without which, or with which, a request could be read in two ways.
    #[error("the header {name}: {cause}")]
    Header {
        /// The header.
        name: &'static str,
        /// What is wrong with it.
        cause: &'static str,
    },
    /// A path that is no text.
    #[error("the path is not percent-encoded UTF-8")]
    Path,
    /// A `Host` that this server does not go by.
    #[error("this server is not called {host:?}; `allowed_hosts` lists the names that it goes by")]
    HostForbidden {
        /// What the client called it.
        host: String,
    },
    /// A body that would have to be decoded.
    #[error("a body with a Content-Encoding is not read here; send it as it is")]
    ContentCoding,
    /// A transfer coding beside `chunked`.
    #[error("the only Transfer-Encoding is chunked")]
    TransferCoding,
    /// An expectation that nobody knows.
    #[error("the only expectation that is met is 100-continue")]
    Expectation,
    /// The body is longer than the server reads.
    #[error("the body is longer than {max} bytes")]
    TooLarge {
        /// The most that is read.
        max: usize,
    },
    /// The body did not come in time.
    #[error("the body took longer than {seconds} s")]
    SlowBody {
        /// What it may take.
        seconds: f64,
    },
    /// The bodies that are being read take all the memory that they may.
    #[error("the bodies of other requests take the {max} bytes that there are for them")]
    BodiesFull {
        /// The most that they may take.
        max: usize,
    },
    /// As many connections are open as may be.
    #[error("{max} connections are open, which is the most")]
    TooManyConnections {
        /// The most that may be.
        max: u32,
    },
    /// The body broke off.
    #[error("the body could not be read to its end")]
    Body,
    /// An `Idempotency-Key` that came with another body before.
    #[error(
        "this Idempotency-Key was used with another body; send exactly that body again, or a new key"
    )]
    KeyReused,
    /// The request holds no API key that is known, and one is needed.
    #[error("{0}; send `Authorization: Bearer KEY`")]
    Unauthorized(&'static str),
    /// The API key is none of those that are let in.
    #[error("the API key is not known here; send `Authorization: Bearer KEY`")]
    WrongKey,
    /// A class above the caller's own.
    #[error("{param} is {asked:?}, and the highest class of this API key is {highest:?}")]
    ClassForbidden {
        /// The header or the parameter that asked.
        param: &'static str,
        /// The class asked for.
        asked: String,
        /// The caller's own.
        highest: String,
    },
    /// No live request of this name is the caller's.
    #[error("there is no live request {id:?} of yours")]
    RequestNotFound {
        /// The name asked for.
        id: String,
    },
    /// The scheduler did not take the request.
    #[error(transparent)]
    Refused(#[from] Refusal),
    /// The request means nothing to the scheduler.
    #[error(transparent)]
    Request(#[from] InvalidRequest),
    /// The server does not take requests in its present state.
    #[error("the server is {0} and takes no requests")]
    NotReady(State),
    /// The backend failed under the request.
    #[error("the model failed while it worked on this request: {cause}")]
    Backend {
        /// The backend's own words.
        cause: String,
    },
    /// The inference thread is gone.
    #[error("the inference thread has stopped")]
    EngineStopped,
    /// The engine behind the gate cannot be reached, and the request has not reached it.
    #[error("the engine behind this server cannot be reached")]
    Unreachable,
    /// The engine behind the gate has too much to do.
    #[error("the engine behind this server has too much to do: {said}")]
    UpstreamBusy {
        /// The engine's own words.
        said: String,
        /// When it wants to be asked again: its own `Retry-After`.
        retry_after: Option<String>,
    },
    /// The engine behind the gate refused the request for a reason that is the request's own. The client gets the engine's
    /// answer as it is.
    #[error("the engine behind this server refused the request: {status}")]
    UpstreamRefused {
        /// The engine's status.
        status: StatusCode,
        /// What its body is written in.
        content_type: Option<String>,
        /// The engine's words.
        body: Bytes,
    },
    /// The request was cancelled.
    #[error("the request was cancelled: {0}")]
    Cancelled(CancelReason),
    /// The client reads more slowly than the model writes, by more than the server keeps.
    #[error("the request was cancelled: the client fell more than {buffered} tokens behind")]
    SlowReader {
        /// Tokens that the server keeps for a client.
        buffered: usize,
    },
}

/// The things about a problem that do not depend on its numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Kind {
    /// The HTTP status.
    pub status: StatusCode,
    /// Whose fault it is.
    pub blame: Blame,
    /// The machine-readable code.
    pub code: &'static str,
}

impl Kind {
    /// The OpenAI error type.
    pub const fn family(&self) -> &'static str {
        match self.blame {
            Blame::Client => "invalid_request_error",
            Blame::Tenant => "rate_limit_error",
            Blame::Capacity | Blame::Server => "server_error",
        }
    }
}

impl Problem {
    /// Status, type and code; what the scheduler says has those of serve-core.
    pub fn kind(&self) -> Kind {
        match self {
            Self::Syntax { .. } => bad_request("invalid_json"),
            Self::Type { .. } => bad_request("invalid_type"),
            Self::Value { .. } | Self::Sampling(_) => Code::INVALID_VALUE.into(),
            Self::Request(invalid) => invalid.code().into(),
            Self::Missing { .. } => bad_request("missing_required_parameter"),
            Self::Unsupported { .. } => bad_request("unsupported_parameter"),
            Self::UnknownParameter { .. } => bad_request("unknown_parameter"),
            Self::Conflict { .. } => bad_request("conflicting_parameters"),
            Self::Encoding { .. } => bad_request("invalid_text"),
            Self::ContextLength { .. } | Self::TextLength { .. } => {
                bad_request("context_length_exceeded")
            }
            Self::Body => bad_request("incomplete_body"),
            Self::ModelNotFound { .. } => invalid(StatusCode::NOT_FOUND, "model_not_found"),
            Self::NotFound { .. } => invalid(StatusCode::NOT_FOUND, "not_found"),
            Self::MethodNotAllowed { .. } => {
                invalid(StatusCode::METHOD_NOT_ALLOWED, "method_not_allowed")
            }
            Self::MediaType { .. } => {
                invalid(StatusCode::UNSUPPORTED_MEDIA_TYPE, "unsupported_media_type")
            }
            Self::Header { .. } => bad_request("invalid_header"),
            Self::Path => bad_request("invalid_path"),
            Self::HostForbidden { .. } => invalid(StatusCode::FORBIDDEN, "host_not_allowed"),
            Self::ContentCoding => invalid(
                StatusCode::UNSUPPORTED_MEDIA_TYPE,
                "unsupported_content_encoding",
            ),
            Self::TransferCoding => {
                invalid(StatusCode::NOT_IMPLEMENTED, "unsupported_transfer_encoding")
            }
            Self::Expectation => invalid(StatusCode::EXPECTATION_FAILED, "expectation_failed"),
            Self::SlowBody { .. } => invalid(StatusCode::REQUEST_TIMEOUT, "body_timeout"),
            Self::BodiesFull { .. } => full("overloaded"),
            Self::TooManyConnections { .. } => full("too_many_connections"),
            Self::TooLarge { .. } => invalid(StatusCode::PAYLOAD_TOO_LARGE, "body_too_large"),
            Self::Unauthorized(_) | Self::WrongKey => {
                invalid(StatusCode::UNAUTHORIZED, "invalid_api_key")
            }
            Self::ClassForbidden { .. } => invalid(StatusCode::FORBIDDEN, "class_forbidden"),
            Self::KeyReused => invalid(StatusCode::UNPROCESSABLE_ENTITY, "idempotency_key_reused"),
            Self::RequestNotFound { .. } => invalid(StatusCode::NOT_FOUND, "request_not_found"),
            Self::Refused(refusal) => refusal.code().into(),
            Self::NotReady(State::Draining | State::Stopped) => unavailable("shutting_down"),
            Self::NotReady(State::Failed) | Self::EngineStopped => unavailable("engine_stopped"),
            Self::NotReady(_) => unavailable("not_ready"),
            Self::Unreachable => unavailable("engine_unreachable"),
            Self::UpstreamBusy { .. } => full("overloaded"),
            Self::UpstreamRefused { status, .. } => invalid(*status, "engine_refused"),
            Self::Backend { .. } => Code::BACKEND_ERROR.into(),
            Self::Cancelled(reason) => reason.code().into(),
            Self::SlowReader { .. } => bad_request("slow_reader"),
        }
    }

    /// The parameter that is to blame, as a path into the body.
    pub fn param(&self) -> Option<&str> {
        match self {
            Self::Type { param, .. }
            | Self::Value { param, .. }
            | Self::Missing { param, .. }
            | Self::Unsupported { param, .. }
            | Self::UnknownParameter { param } => Some(param),
            Self::Conflict { param, .. }
            | Self::Encoding { param, .. }
            | Self::ContextLength { param, .. }
            | Self::TextLength { param, .. } => Some(param),
            Self::Sampling(InvalidSampling::Temperature(_)) => Some("temperature"),
            Self::Sampling(InvalidSampling::TopP(_)) => Some("top_p"),
            Self::Sampling(InvalidSampling::MinP(_)) => Some("min_p"),
            Self::Sampling(InvalidSampling::PresencePenalty(_)) => Some("presence_penalty"),
            Self::Sampling(InvalidSampling::FrequencyPenalty(_)) => Some("frequency_penalty"),
            Self::Sampling(InvalidSampling::RepetitionPenalty(_)) => Some("repetition_penalty"),
            Self::ClassForbidden { param, .. } => Some(param),
            Self::ModelNotFound { .. } => Some("model"),
            _ => None,
        }
    }

    /// When it is worth trying again, if that is known.
    pub fn retry_after(&self) -> Option<Span> {
        match self {
            Self::Refused(refusal) => refusal.retry_after(),
            _ => None,
        }
    }

    /// Whether the server lacks the capacity now and may have it later; the settings say which
    /// status that has.
    pub fn is_capacity(&self) -> bool {
        self.kind().blame == Blame::Capacity
    }
}

impl From<Code> for Kind {
    fn from(code: Code) -> Self {
        Self {
            // A status that HTTP does not have is none that serve-core gives.
            status: StatusCode::from_u16(code.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR),
            blame: code.blame,
            code: code.name,
        }
    }
}

fn invalid(status: StatusCode, code: &'static str) -> Kind {
    Kind {
        status,
        blame: Blame::Client,
        code,
    }
}

fn bad_request(code: &'static str) -> Kind {
    invalid(StatusCode::BAD_REQUEST, code)
}

fn unavailable(code: &'static str) -> Kind {
    Kind {
        status: StatusCode::SERVICE_UNAVAILABLE,
        blame: Blame::Server,
        code,
    }
}

fn full(code: &'static str) -> Kind {
    Kind {
        status: StatusCode::TOO_MANY_REQUESTS,
        blame: Blame::Capacity,
        code,
    }
}

#[cfg(test)]
mod tests {
    use axum::http::header;
    use axum::response::IntoResponse;
    use serve_core::Limit;

    use super::*;

    #[test]
    fn a_wait_is_rounded_up_to_a_whole_second() {
        let header = |retry_after| {
            let limit = Limit::QueueDepth { waiting: 4, max: 4 };
            let problem = Problem::Refused(Refusal::Later { limit, retry_after });
            let response = problem.into_response();
            assert_eq!(response.status(), StatusCode::TOO_MANY_REQUESTS);
            let value = response.headers().get(header::RETRY_AFTER)?;
            Some(value.to_str().unwrap().to_owned())
        };
        assert_eq!(header(None), None);
        assert_eq!(header(Some(Span::from_millis(1))).unwrap(), "1");
        assert_eq!(header(Some(Span::from_millis(1_001))).unwrap(), "2");
    }

    #[test]
    fn what_can_never_fit_is_the_clients_mistake() {
        let limit = Limit::Context {
            needed: 600,
            max: 512,
        };
        let kind = Problem::Refused(Refusal::Never { limit }).kind();
        assert_eq!(kind.status, StatusCode::BAD_REQUEST);
        assert_eq!(kind.code, "context_length_exceeded");
    }
}
