//! What HTTP asks of every request, before any path is looked at.
//!
//! A request that two programs in a row can read in two ways is refused: one `Host` (RFC 9112, section 3.2),
//! one `Authorization`, no transfer coding but `chunked` (section 6.1), no coded content (RFC 9110, section
//! 8.4), no expectation but `100-continue` (section 10.1.1). And a page whose name has been rebound to this
//! machine's loopback address is known by the `Host` that it sends.

use std::time::Duration;

use axum::extract::Request;
use axum::http::{HeaderMap, HeaderName, Version, header};
use axum::response::{IntoResponse, Response};

use crate::error::{Problem, Told};
use crate::hosts::AllowedHosts;
use crate::terms::{CLASS_HEADER, QUEUE_TIMEOUT_HEADER, TIMEOUT_HEADER};

/// How long a client with a wrong key waits for its answer: one that tries keys tries one a second with each
/// connection.
const WRONG_KEY_DELAY: Duration = Duration::from_secs(1);

/// Answers what is no proper request, has the others answered, and slows down what tries keys.
pub(crate) async fn answered<F: Future<Output = Response>>(
    request: Request,
    allowed: &AllowedHosts,
    answer: impl FnOnce(Request) -> F,
) -> Response {
    if let Err(problem) = check(&request, allowed) {
        return problem.into_response();
    }
    let response = answer(request).await;
    let told = response.extensions().get::<Told>();
    if told.is_some_and(|told| told.wrong_key) {
        tokio::time::sleep(WRONG_KEY_DELAY).await;
    }
    response
}

fn check(request: &Request, allowed: &AllowedHosts) -> Result<(), Problem> {
    let [host, _, coding, transfer, expected, ..] = singles(request.headers())?;
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
    let is_other = |value: Option<&str>, known| {
        value.is_some_and(|value| !value.trim().eq_ignore_ascii_case(known))
    };
    if is_other(transfer, "chunked") {
        return Err(Problem::TransferCoding);
    }
    if is_other(coding, "identity") {
        return Err(Problem::ContentCoding);
    }
    match is_other(expected, "100-continue") {
        true => Err(Problem::Expectation),
        false => Ok(()),
    }
}

/// Headers of which there may be one.
const SINGLE: usize = 8;

/// Those headers, with their names for an error.
static SINGLES: [(HeaderName, &str); SINGLE] = [
    (header::HOST, "host"),
    (header::AUTHORIZATION, "authorization"),
    (header::CONTENT_ENCODING, "content-encoding"),
    (header::TRANSFER_ENCODING, "transfer-encoding"),
    (header::EXPECT, "expect"),
    (CLASS_HEADER, "x-request-class"),
    (TIMEOUT_HEADER, "x-request-timeout-ms"),
    (QUEUE_TIMEOUT_HEADER, "x-request-queue-timeout-ms"),
];

/// Their values. One walk over what came costs less than to look each of them up.
fn singles(headers: &HeaderMap) -> Result<[Option<&str>; SINGLE], Problem> {
    let mut values = [None; SINGLE];
    for (name, value) in headers {
        let place = SINGLES.iter().position(|(single, _)| single == name);
        let Some(place) = place else { continue };
        let name = SINGLES[place].1;
        let wrong = |cause| Problem::Header { name, cause };
        if values[place].is_some() {
            return Err(wrong("it comes more than once"));
        }
        let text = value
            .to_str()
            .map_err(|_| wrong("it is not visible ASCII"))?;
        values[place] = Some(text);
    }
    Ok(values)
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
