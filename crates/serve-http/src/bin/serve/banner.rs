//! What a person reads on stdout once a model is served: what it is, where, and a command to try.

use std::net::SocketAddr;

use serve_http::Upstream;
use serve_sched::settings::CLASSES;

use crate::assemble::{Description, Example};
use crate::settings::{Cli, UpstreamLimit};

/// What is served, where, and a command to try.
pub(crate) fn banner(
    cli: &Cli,
    name: &str,
    description: &Description,
    address: SocketAddr,
    health: Option<SocketAddr>,
) -> String {
    let limits = description.limits;
    let limits = format!(
        "{} requests a step, {} tokens a step, {} tokens a request",
        limits.sequences_max, limits.step_tokens_max, limits.context_max
    );
    let mut lines = vec![("model", name.to_owned())];
    lines.extend(description.lines.iter().cloned());
    lines.push(("limits", limits));
    lines.extend(cli.scheduler.lines());
    whole(cli, lines, name, &description.example, (address, health))
}

/// The same of an engine behind the gate.
pub(crate) fn of_front(
    cli: &Cli,
    upstream: &Upstream,
    address: SocketAddr,
    health: Option<SocketAddr>,
) -> String {
    let limit = match cli.upstream.limit() {
        UpstreamLimit::Fixed(limit) => format!("{limit} requests with the engine"),
        UpstreamLimit::Measured(name) => {
            format!("as many requests with the engine as {name} measures")
        }
    };
    let engine = format!("{}, which calls it {}", upstream.url(), upstream.model());
    let mut lines = vec![
        ("model", upstream.name().to_owned()),
        ("engine", engine),
        ("limit", limit),
    ];
    lines.extend(cli.scheduler.gate_lines());
    let example = Example::Continue("Once upon a time");
    whole(cli, lines, upstream.name(), &example, (address, health))
}

fn whole(
    cli: &Cli,
    mut lines: Vec<(&'static str, String)>,
    name: &str,
    example: &Example,
    (address, health): (SocketAddr, Option<SocketAddr>),
) -> String {
    lines.push(("access", access(cli)));
    lines.push(("address", format!("http://{address}")));
    if let Some(health) = health {
        lines.push(("health", format!("http://{health}/health")));
    }
    let lines = lines
        .iter()
        .map(|(key, value)| format!("  {key:<10}{value}\n"));
    let lines: String = lines.collect();
    let curl = curl(name, example, address, !cli.keys.is_empty());
    format!("\n{lines}\n  try it:  {curl}\n\n")
}

fn access(cli: &Cli) -> String {
    match cli.keys.len() {
        0 => "no API key is needed".to_owned(),
        keys => {
            let classes = cli.settings().get(&CLASSES);
            format!("{keys} API keys, {} classes", classes.len())
        }
    }
}

/// A command that works as pasted; where a key is needed, with the key in $KEY.
fn curl(model: &str, example: &Example, address: SocketAddr, with_key: bool) -> String {
    // A server on all addresses is reached by the one of this machine.
    let host = match address {
        SocketAddr::V4(v4) if v4.ip().is_unspecified() => "127.0.0.1".to_owned(),
        SocketAddr::V6(v6) if v6.ip().is_unspecified() => "[::1]".to_owned(),
        SocketAddr::V4(v4) => v4.ip().to_string(),
        SocketAddr::V6(v6) => format!("[{}]", v6.ip()),
    };
    let (path, what) = match example {
        Example::Continue(text) => ("completions", serde_json::json!({"prompt": text})),
        #[cfg(feature = "model")]
        Example::Say(text) => (
            "chat/completions",
            serde_json::json!({"messages": [{"role": "user", "content": text}]}),
        ),
    };
    let mut body = serde_json::json!({"model": model});
    if let (Some(body), Some(what)) = (body.as_object_mut(), what.as_object()) {
        body.extend(what.clone());
        body.insert("max_tokens".to_owned(), 64.into());
        body.insert("stream".to_owned(), true.into());
    }
    let key = match with_key {
        true => r#" -H "Authorization: Bearer $KEY""#,
        false => "",
    };
    // Inside single quotes a shell takes everything as it is but the quote itself.
    let body = body.to_string().replace('\'', r"'\''");
    format!(
        "curl -N http://{host}:{}/v1/{path} -H 'Content-Type: application/json'{key} -d '{body}'",
        address.port()
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_survives_the_shell() {
        let example = Example::Continue("It's");
        let curl = curl("a model", &example, ([0, 0, 0, 0], 80).into(), false);
        assert!(
            curl.starts_with("curl -N http://127.0.0.1:80/v1/completions "),
            "{curl}"
        );
        assert!(curl.contains(r#""prompt":"It'\''s""#), "{curl}");
    }
}
