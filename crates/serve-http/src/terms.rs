//! On what terms a request is served: for whom, in which class, and by when.
//!
//! A client says the class and the time limits in a header or in the body, whichever is easier for
//! it. The class can be its own or a lower one; the server's own time limits are the longest.

use std::num::NonZeroU64;
use std::time::Duration;

use axum::extract::Request;
use axum::http::{HeaderMap, HeaderName};
use serve_core::{Class, Span, TenantId};

use crate::access::Access;
use crate::api::{Options, TIMEOUT_MS_MAX};
use crate::auth::{Identity, Keys};
use crate::error::Problem;
use crate::settings::EdgeSettings;

/// The header that names the class of a request.
pub const CLASS_HEADER: HeaderName = HeaderName::from_static("x-request-class");
/// The header that says how many milliseconds the whole answer may take.
pub const TIMEOUT_HEADER: HeaderName = HeaderName::from_static("x-request-timeout-ms");
/// The header that says how many milliseconds the request may wait before its first step.
pub const QUEUE_TIMEOUT_HEADER: HeaderName = HeaderName::from_static("x-request-queue-timeout-ms");

/// What is known of a request before its body is read.
#[derive(Clone, Debug)]
pub(crate) struct Caller {
    pub(crate) identity: Identity,
    class: Option<String>,
    timeout_ms: Option<NonZeroU64>,
    queue_timeout_ms: Option<NonZeroU64>,
    request_name: Option<String>,
}

/// On what terms a request is served.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Terms {
    /// Whom it is accounted to.
    pub tenant: TenantId,
    /// In which class it waits.
    pub class: Class,
    /// How long the whole answer may take, from the arrival on.
    pub timeout: Option<Span>,
    /// How long it may wait before its first step, from the arrival on.
    pub queue_timeout: Option<Span>,
    /// The name in `x-request-id`.
    pub request_name: Option<String>,
}

impl Caller {
    /// Reads the headers.
    ///
    /// # Errors
    ///
    /// [`Problem::Unauthorized`], or a header that cannot be read.
    pub(crate) fn of(request: &Request, keys: &Keys) -> Result<Self, Problem> {
        let headers = request.headers();
        let access = request.extensions().get::<Access>();
        let key = keys.find(headers)?;
        if let (Some(key), Some(access)) = (key, access) {
            access.identified(key);
        }
        let identity = key.map(|key| key.identity).unwrap_or_default();
        Ok(Self {
            identity,
            class: text(headers, &CLASS_HEADER)?.map(ToOwned::to_owned),
            timeout_ms: millis(headers, &TIMEOUT_HEADER)?,
            queue_timeout_ms: millis(headers, &QUEUE_TIMEOUT_HEADER)?,
            request_name: access.map(|access| access.name().to_owned()),
        })
    }

    /// What the headers and the body come to.
    ///
    /// # Errors
    ///
    /// A [`Problem`] when header and body contradict each other, when there is no such class, or
    /// when it is above the caller's own.
    pub(crate) fn terms(
        self,
        options: &Options,
        settings: &EdgeSettings,
    ) -> Result<Terms, Problem> {
        let class = agreed(
            ("x-request-class", self.class.as_deref()),
            ("request_class", options.class.as_deref()),
        )?;
        let timeout_ms = agreed(
            ("x-request-timeout-ms", self.timeout_ms),
            ("timeout_ms", options.timeout_ms),
        )?;
        let queue_timeout_ms = agreed(
            ("x-request-queue-timeout-ms", self.queue_timeout_ms),
            ("queue_timeout_ms", options.queue_timeout_ms),
        )?;
        let class = match class {
            None => self.identity.class,
            Some((param, name)) => class_named(param, name, self.identity.class, settings)?,
        };
        Ok(Terms {
            tenant: self.identity.tenant,
            class,
            timeout: shorter(timeout_ms, settings.request_timeout),
            queue_timeout: shorter(queue_timeout_ms, settings.queue_timeout),
            request_name: self.request_name,
        })
    }
}

fn class_named(
    param: &'static str,
    name: &str,
    highest: Class,
    settings: &EdgeSettings,
) -> Result<Class, Problem> {
    let names = &settings.classes;
    let class = names
        .iter()
        .zip(0_u8..)
        .find(|(known, _)| *known == name)
        .map(|(_, rank)| Class::new(rank));
    match class {
        None => Err(Problem::Value {
            param: param.to_owned(),
            accepted: format!("one of {}", names.join(", ")),
            given: format!("{:?}", shortened(name)),
        }),
        Some(class) if class < highest => Err(Problem::ClassForbidden {
            param,
            asked: name.to_owned(),
            highest: settings.class_name(highest).to_owned(),
        }),
        Some(class) => Ok(class),
    }
}

/// The shorter of what the client and the server allow.
fn shorter(own: Option<(&'static str, NonZeroU64)>, server: Option<Duration>) -> Option<Span> {
    let own = own.map(|(_, millis)| Span::from_millis(millis.get()));
    own.into_iter().chain(server.map(Span::from)).min()
}

/// What header and body say, with the name of the place that said it.
fn agreed<T: PartialEq>(
    header: (&'static str, Option<T>),
    body: (&'static str, Option<T>),
) -> Result<Option<(&'static str, T)>, Problem> {
    match (header.1, body.1) {
        (Some(from_header), Some(from_body)) if from_header != from_body => {
            Err(Problem::Conflict {
                param: body.0,
                other: header.0,
                cause: "header and body say different things",
            })
        }
        (_, Some(value)) => Ok(Some((body.0, value))),
        (Some(value), None) => Ok(Some((header.0, value))),
        (None, None) => Ok(None),
    }
}

fn millis(headers: &HeaderMap, name: &HeaderName) -> Result<Option<NonZeroU64>, Problem> {
    let Some(value) = text(headers, name)? else {
        return Ok(None);
    };
    let millis = value.parse().ok().and_then(NonZeroU64::new);
    match millis.filter(|millis| millis.get() <= TIMEOUT_MS_MAX) {
        Some(millis) => Ok(Some(millis)),
        None => Err(Problem::Value {
            param: name.to_string(),
            accepted: format!("an integer from 1 to {TIMEOUT_MS_MAX}"),
            given: format!("{:?}", shortened(value)),
        }),
    }
}

fn text<'a>(headers: &'a HeaderMap, name: &HeaderName) -> Result<Option<&'a str>, Problem> {
    let Some(value) = headers.get(name) else {
        return Ok(None);
    };
    match value.to_str() {
        Ok(text) => Ok(Some(text)),
        Err(_) => Err(Problem::Value {
            param: name.to_string(),
            accepted: "visible ASCII text".to_owned(),
            given: "other bytes".to_owned(),
        }),
    }
}

/// As much of a client's text as a message repeats.
fn shortened(text: &str) -> String {
    text.chars().take(60).collect()
}
