//! The names by which a server may be called.

use std::net::IpAddr;

/// The names by which this server may be called.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum AllowedHosts {
    /// Any.
    #[default]
    Any,
    /// Names of this machine's loopback addresses, and those in the list, without ports.
    Local(Vec<String>),
    /// Those in the list, without ports.
    Only(Vec<String>),
}

impl AllowedHosts {
    /// Whether `host`, as a `Host` header has it, is one of them.
    pub(crate) fn allow(&self, host: &str) -> bool {
        let name = without_port(host);
        let is_listed = |list: &[String]| list.iter().any(|one| one.eq_ignore_ascii_case(name));
        match self {
            Self::Any => true,
            Self::Local(list) => is_local(name) || is_listed(list),
            Self::Only(list) => is_listed(list),
        }
    }
}

/// `[::1]:80` and `example.org:80` without the port.
fn without_port(host: &str) -> &str {
    match host.rsplit_once(':') {
        Some((name, port)) if port.bytes().all(|byte| byte.is_ascii_digit()) => name,
        _ => host,
    }
}

fn is_local(name: &str) -> bool {
    let ends_with = |end: &str| {
        let start = name.len().checked_sub(end.len());
        let last = start.and_then(|start| name.get(start..));
        last.is_some_and(|last| last.eq_ignore_ascii_case(end))
    };
    let address = name
        .strip_prefix('[')
        .and_then(|name| name.strip_suffix(']'));
    let address = address.unwrap_or(name).parse::<IpAddr>();
    name.eq_ignore_ascii_case("localhost")
        || ends_with(".localhost")
        || address.is_ok_and(|address| address.is_loopback())
}
