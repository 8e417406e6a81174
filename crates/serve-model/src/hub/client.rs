//! Requests to a hub: its redirects are followed, and none of them takes the token along to another host.

use std::time::Duration;

use ureq::http::{Response, StatusCode, Uri};
use ureq::typestate::WithoutBody;
use ureq::{Agent, Body, RequestBuilder};

use super::error::{Failure, NetworkError};
use super::options::HubOptions;

/// Redirects that are followed for one file.
const REDIRECTS_MAX: usize = 10;

/// Bytes of the hub's description of a model at most. Those of the largest have some hundred thousand.
const DESCRIPTION_BYTES_MAX: u64 = 16 << 20;

/// How many times its patience a client waits for the whole description.
const DESCRIPTION_PATIENCE: u32 = 5;

type Get = RequestBuilder<WithoutBody>;

/// Asks one hub.
pub(super) struct Client {
    agent: Agent,
    endpoint: Uri,
    token: Option<String>,
    patience: Duration,
}

/// The beginning of a file: what the hub and those it redirects to have said of it.
pub(super) struct Answer {
    pub(super) response: Response<Body>,
    /// What the hub calls its contents.
    pub(super) etag: Option<String>,
    /// The hash that the hub gives for it, in hexadecimal digits.
    pub(super) sha256: Option<String>,
    /// How long the whole file is.
    pub(super) bytes_total: Option<u64>,
}

impl Client {
    pub(super) fn new(options: &HubOptions) -> Result<Self, Failure> {
        let patience = Some(options.patience);
        let config = Agent::config_builder()
            .http_status_as_error(false)
            // Followed here, where it is known what may go where.
            .max_redirects(0)
            .timeout_resolve(patience)
            .timeout_connect(patience)
            .timeout_send_request(patience)
            .timeout_recv_response(patience)
            .timeout_per_read(patience)
            .accept_encoding("identity");
        let endpoint: Result<Uri, _> = options.endpoint.parse();
        Ok(Self {
            agent: config.build().into(),
            endpoint: endpoint.map_err(|_| nonsense("its address is none"))?,
            token: options.token.clone(),
            patience: options.patience,
        })
    }

    /// A JSON text.
    pub(super) fn text(&self, url: &str) -> Result<String, Failure> {
        let whole = self.patience * DESCRIPTION_PATIENCE;
        let in_time = |request: Get| request.config().timeout_global(Some(whole)).build();
        let mut response = self.follow(url, in_time, |_| ())?;
        let body = response.body_mut().with_config();
        let text = body.limit(DESCRIPTION_BYTES_MAX).read_to_string();
        text.map_err(|error| match error {
            ureq::Error::BodyExceedsLimit(max) => {
                nonsense(&format!("it has more than {max} bytes"))
            }
            error => NetworkError::of(error).into(),
        })
    }

    /// A file from byte `first` on, or the whole file where the hub sends no parts.
    pub(super) fn file(&self, url: &str, first: u64) -> Result<Answer, Failure> {
        let (mut linked, mut linked_size) = (None, None);
        let part = |request: Get| request.header("Range", format!("bytes={first}-"));
        let response = self.follow(url, part, |response| {
            // The hub's own word counts, not that of where it redirects to.
            let own = || header(response, "X-Linked-Etag").map(str::to_owned);
            linked = linked.take().or_else(own);
            linked_size = linked_size.or_else(|| header(response, "X-Linked-Size")?.parse().ok());
        })?;
        let range = header(&response, "Content-Range");
        let begins = format!("bytes {first}-");
        if range.is_some_and(|range| !range.starts_with(&begins)) {
            return Err(nonsense("another part came than was asked for"));
        }
        let bytes_total = linked_size.or_else(|| match response.status() {
            StatusCode::OK => header(&response, "Content-Length")?.parse().ok(),
            _ => {
                let (_, total) = range?.rsplit_once('/')?;
                total.parse().ok()
            }
        });
        let linked = linked.as_deref().map(bare);
        Ok(Answer {
            sha256: linked.filter(|etag| is_sha256(etag)).map(str::to_owned),
            etag: linked
                .or_else(|| header(&response, "ETag").map(bare))
                .map(str::to_owned),
            bytes_total,
            response,
        })
    }

    /// Asks for what is behind an address, wherever it has been moved to. `hop` sees every answer.
    fn follow(
        &self,
        url: &str,
        prepare: impl Fn(Get) -> Get,
        mut hop: impl FnMut(&Response<Body>),
    ) -> Result<Response<Body>, Failure> {
        let mut uri = parse(url)?;
        for _ in 0..=REDIRECTS_MAX {
            let mut request = prepare(self.agent.get(&uri));
            if let (Some(token), true) = (&self.token, same_host(&uri, &self.endpoint)) {
                request = request.header("Authorization", format!("Bearer {token}"));
            }
            let response = request.call().map_err(NetworkError::of)?;
            hop(&response);
            match response.status().as_u16() {
                200 | 206 => return Ok(response),
                301 | 302 | 303 | 307 | 308 => {
                    uri = redirected(&uri, header(&response, "Location").unwrap_or_default())?;
                }
                status => {
                    let retry_after = header(&response, "Retry-After");
                    return Err(Failure::of_status(status, retry_after));
                }
            }
        }
        Err(nonsense("it redirects without end"))
    }
}

fn header<'a>(response: &'a Response<Body>, name: &str) -> Option<&'a str> {
    response.headers().get(name)?.to_str().ok()
}

fn nonsense(cause: &str) -> Failure {
    Failure::Nonsense(cause.to_owned())
}

fn parse(url: &str) -> Result<Uri, Failure> {
    url.parse()
        .map_err(|_| nonsense("it names an address that is none"))
}

/// Where a redirect leads. A way that nobody can listen to is not left for one that anybody can.
fn redirected(from: &Uri, location: &str) -> Result<Uri, Failure> {
    let scheme = from.scheme_str().unwrap_or_default();
    let to = match location {
        path if path.starts_with("//") => parse(&format!("{scheme}:{path}"))?,
        path if path.starts_with('/') => {
            let host = from.authority().map_or("", |host| host.as_str());
            parse(&format!("{scheme}://{host}{path}"))?
        }
        whole => parse(whole)?,
    };
    match (scheme, to.scheme_str()) {
        (_, Some("https")) | ("http", Some("http")) => Ok(to),
        _ => Err(nonsense("it redirects to where it is not https")),
    }
}

/// Whether a request to `uri` goes to the hub itself: by the same way, to the same host and port.
fn same_host(uri: &Uri, endpoint: &Uri) -> bool {
    uri.scheme() == endpoint.scheme() && uri.authority() == endpoint.authority()
}

/// An ETag without its quotes and its mark of weakness.
fn bare(etag: &str) -> &str {
    let etag = etag.strip_prefix("W/").unwrap_or(etag);
    etag.trim_matches('"')
}

pub(super) fn is_sha256(text: &str) -> bool {
    text.len() == 64
        && text
            .bytes()
            .all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_redirect_leads_where_it_says_but_not_into_the_open() {
        let to = |from: &str, location: &str| {
            let uri = redirected(&from.parse().unwrap(), location);
            uri.map(|uri| uri.to_string()).ok()
        };
        let secure = "https://hub.example/a/b";
        for (location, leads) in [
            ("/c?d=e", Some("https://hub.example/c?d=e")),
            ("//cdn.example/c", Some("https://cdn.example/c")),
            ("https://cdn.example/c", Some("https://cdn.example/c")),
            ("http://cdn.example/c", None),
            ("file:///etc/passwd", None),
            ("c", None),
            ("", None),
        ] {
            assert_eq!(to(secure, location).as_deref(), leads, "{location}");
        }
        let open = to("http://127.0.0.1:8/a", "http://127.0.0.1:9/c");
        assert_eq!(open.as_deref(), Some("http://127.0.0.1:9/c"));
    }

    #[test]
    fn only_the_hub_itself_is_the_hub() {
        let endpoint: Uri = "https://hub.example".parse().unwrap();
        let is_hub = |uri: &str| same_host(&uri.parse().unwrap(), &endpoint);
        assert!(is_hub("https://hub.example/a"));
        assert!(is_hub("https://HUB.example/a"));
        for other in [
            "http://hub.example/a",
            "https://hub.example:8443/a",
            "https://hub.example.evil/a",
            "https://hub.example@evil.example/a",
            "https://cdn.hub.example/a",
        ] {
            assert!(!is_hub(other), "{other}");
        }
    }
}
