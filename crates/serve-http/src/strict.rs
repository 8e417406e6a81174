//! What HTTP asks of every request, before any path is looked at.
//!
//! A request that two programs in a row can read in two ways is refused: one `Host` (RFC 9112, section 3.2),
//! one `Authorization`, no transfer coding but `chunked` (section 6.1), no coded content (RFC 9110, section
//! 8.4), no expectation but `100-continue` (section 10.1.1). And a page whose name has been rebound to this
//! machine's loopback address is known by the `Host` that it sends.

use std::sync::Arc;
use std::time::Duration;

use axum::extract::{Request, State};
use axum::http::{HeaderMap, HeaderName, Version, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};

use crate::error::{Problem, Told};
use crate::hosts::AllowedHosts;
use crate::linger::Lingering;
use crate::service::Service;

/// How long a client with a wrong key waits for its answer: one that tries keys tries one a second with each
/// connection.
const WRONG_KEY_DELAY: Duration = Duration::from_secs(1);

/// Answers what is no proper request, slows down what tries keys, and reads the rest of a body that its handler has not.
pub(crate) async fn strict(
    State(service): State<Arc<Service>>,
    request: Request,
    next: Next,
) -> Response {
    let awaits_continue = request.headers().contains_key(header::EXPECT);
    let request = request.map(|body| Lingering::over(body, awaits_continue));
    match check(&request, &service.settings().allowed_hosts) {
        Ok(()) => {
            let response = next.run(request).await;
            if response
                .extensions()
                .get::<Told>()
                .is_some_and(|told| told.wrong_key)
            {
                tokio::time::sleep(WRONG_KEY_DELAY).await;
            }
            response
        }
        Err(problem) => problem.into_response(),
    }
}

fn check(request: &Request, allowed: &AllowedHosts) -> Result<(), Problem> {
    let headers = request.headers();
    let host = one(headers, &header::HOST)?;
    match host {
        None if request.version() >= Version::HTTP_11 => {
            return Err(Problem::Header {
                name: "host",
                cause: "it is missing",
            });
        }
        // A target in absolute form counts instead (RFC 9112, section 3.2.2).
        host => {
            let authority = request
                .uri()
                .authority()
                .map(|authority| authority.as_str());
            if let Some(host) = authority.or(host)
                && !allowed.allow(host)
            {
                return Err(Problem::HostForbidden {
                    host: host.chars().take(128).collect(),
                });
            }
        }
    }
    one(headers, &header::AUTHORIZATION)?;
    for name in [
        &crate::terms::CLASS_HEADER,
        &crate::terms::TIMEOUT_HEADER,
        &crate::terms::QUEUE_TIMEOUT_HEADER,
    ] {
        one(headers, name)?;
    }
    if let Some(coding) = one(headers, &header::TRANSFER_ENCODING)?
        && !coding.trim().eq_ignore_ascii_case("chunked")
    {
        return Err(Problem::TransferCoding);
    }
    if let Some(coding) = one(headers, &header::CONTENT_ENCODING)?
        && !coding.trim().eq_ignore_ascii_case("identity")
    {
        return Err(Problem::ContentCoding);
    }
    match one(headers, &header::EXPECT)? {
        Some(expected) if !expected.trim().eq_ignore_ascii_case("100-continue") => {
            Err(Problem::Expectation)
        }
        _ => Ok(()),
    }
}

/// The only value of a header, if there is one.
fn one<'a>(headers: &'a HeaderMap, name: &HeaderName) -> Result<Option<&'a str>, Problem> {
    let wrong = |cause| Problem::Header {
        name: shown(name),
        cause,
    };
    let mut values = headers.get_all(name).iter();
    let value = values.next();
    if values.next().is_some() {
        return Err(wrong("it comes more than once"));
    }
    match value.map(|value| value.to_str()) {
        None => Ok(None),
        Some(Ok(text)) => Ok(Some(text)),
        Some(Err(_)) => Err(wrong("it is not visible ASCII")),
    }
}

/// The names looked for here, as constants for the error.
fn shown(name: &HeaderName) -> &'static str {
    match name.as_str() {
        "host" => "host",
        "authorization" => "authorization",
        "x-request-class" => "x-request-class",
        "x-request-timeout-ms" => "x-request-timeout-ms",
        "x-request-queue-timeout-ms" => "x-request-queue-timeout-ms",
        "transfer-encoding" => "transfer-encoding",
        "content-encoding" => "content-encoding",
        _ => "expect",
    }
}

#[cfg(test)]
mod tests {
    use axum::body::Body;
    use axum::http::StatusCode;

    use super::*;

    fn checked(headers: &[(&str, &str)], allowed: &AllowedHosts) -> Option<StatusCode> {
        let mut request = Request::builder().uri("/health");
        for &(name, value) in headers {
            request = request.header(name, value);
        }
        let request = request.body(Body::empty()).unwrap();
        let problem = check(&request, allowed).err()?;
        Some(problem.kind().status)
    }

    #[test]
    fn a_request_that_can_be_read_in_two_ways_is_refused() {
        let table: &[(&[(&str, &str)], u16)] = &[
            (&[], 400),
            (&[("host", "a"), ("host", "a")], 400),
            (
                &[
                    ("host", "a"),
                    ("authorization", "a"),
                    ("authorization", "b"),
                ],
                400,
            ),
            (
                &[
                    ("host", "a"),
                    ("x-request-class", "a"),
                    ("x-request-class", "b"),
                ],
                400,
            ),
            (&[("host", "a"), ("content-encoding", "gzip")], 415),
            (
                &[("host", "a"), ("transfer-encoding", "gzip, chunked")],
                501,
            ),
            (&[("host", "a"), ("expect", "200-maybe")], 417),
        ];
        for (headers, status) in table {
            let seen = checked(headers, &AllowedHosts::Any).map(|status| status.as_u16());
            assert_eq!(seen, Some(*status), "{headers:?}");
        }
        let fine = [
            ("host", "a"),
            ("expect", "100-Continue"),
            ("content-encoding", "identity"),
            ("transfer-encoding", "Chunked"),
        ];
        assert_eq!(checked(&fine, &AllowedHosts::Any), None);
    }

    #[test]
    fn a_name_of_somebody_elses_is_no_name_of_this_machine() {
        let local = AllowedHosts::Local(vec!["my.host".to_owned()]);
        for host in [
            "localhost",
            "LOCALHOST:8000",
            "127.0.0.1:8000",
            "127.9.9.9",
            "[::1]:8000",
            "[::1]",
            "a.localhost:1",
            "my.host:80",
        ] {
            assert_eq!(checked(&[("host", host)], &local), None, "{host}");
        }
        for host in [
            "evil.example",
            "localhost.evil.example",
            "127.0.0.1.evil.example",
            "10.0.0.1:8000",
            "",
            "127.0.0.1:80:80",
            "[::2]",
        ] {
            let seen = checked(&[("host", host)], &local);
            assert_eq!(seen, Some(StatusCode::FORBIDDEN), "{host}");
        }
        let only = AllowedHosts::Only(vec!["my.host".to_owned()]);
        assert_eq!(checked(&[("host", "my.host")], &only), None);
        assert!(checked(&[("host", "localhost")], &only).is_some());
    }
}
