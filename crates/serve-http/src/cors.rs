//! Web pages of other origins that may use the API: cross-origin resource sharing, preflight included.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use axum::http::{HeaderName, HeaderValue, Method, Uri, header};
use serde::{Serialize, Serializer};
use tower_http::cors::{AllowHeaders, AllowOrigin, CorsLayer};

/// How long a browser may keep what it was told.
const MAX_AGE: Duration = Duration::from_secs(600);

/// Where a web page is from: `https://chat.example.org`, or `*` for anywhere.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Origin(HeaderValue);

impl Origin {
    fn is_any(&self) -> bool {
        self.0 == "*"
    }
}

impl FromStr for Origin {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let accepted = || {
            "it must be * or an origin as browsers send it, scheme and host and no path, such as \
             https://chat.example.org or http://localhost:3000"
                .to_owned()
        };
        let value = HeaderValue::from_str(text).map_err(|_| accepted())?;
        if text == "*" || text == "null" {
            return Ok(Self(value));
        }
        let uri: Uri = text.parse().map_err(|_| accepted())?;
        let has_path =
            text.ends_with('/') || !matches!(uri.path(), "" | "/") || uri.query().is_some();
        match uri.scheme().is_some() && uri.host().is_some() && !has_path {
            true => Ok(Self(value)),
            false => Err(accepted()),
        }
    }
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0.to_str().unwrap_or_default())
    }
}

impl Serialize for Origin {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

/// Answers preflights and marks answers for pages of these origins.
pub(crate) fn layer(origins: &[Origin]) -> CorsLayer {
    let allowed = match origins.iter().any(Origin::is_any) {
        true => AllowOrigin::any(),
        false => AllowOrigin::list(origins.iter().map(|origin| origin.0.clone())),
    };
    CorsLayer::new()
        .allow_origin(allowed)
        .allow_methods([Method::GET, Method::POST])
        // `*` would not cover Authorization.
        .allow_headers(AllowHeaders::mirror_request())
        .expose_headers([header::RETRY_AFTER, HeaderName::from_static("x-request-id")])
        .max_age(MAX_AGE)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_origin_is_what_a_browser_sends() {
        for right in [
            "*",
            "null",
            "https://a.example",
            "http://localhost:3000",
            "app://x",
        ] {
            assert_eq!(right.parse::<Origin>().unwrap().to_string(), right);
        }
        for wrong in [
            "",
            "a.example",
            "https://a.example/",
            "https://a.example/x",
            "https://",
            "a b",
        ] {
            assert!(wrong.parse::<Origin>().is_err(), "{wrong}");
        }
    }
}
