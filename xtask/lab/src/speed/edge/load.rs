//! Clients that each read one stream after the other on a connection of their own.

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use serde_json::json;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep};

use super::{Load, Measured, OUTPUT_TOKENS};
use crate::client::{Connection, post};

/// Bytes at the end of an answer that hold its usage.
const TAIL_BYTES: usize = 1_024;

/// Events of a stream beside those with text: why it ended, the usage, `[DONE]`.
const EVENTS_AROUND: u32 = 3;

/// Runs the whole load.
pub(super) async fn run(address: SocketAddr, load: &Load) -> Measured {
    let begun = Instant::now();
    let mut clients = JoinSet::new();
    for client in 0..load.streams {
        let load = *load;
        clients.spawn(async move {
            sleep(load.spread() * client / load.streams).await;
            read_all(address, &load, client).await
        });
    }
    let mut all = Measured::default();
    while let Some(one) = clients.join_next().await {
        let rounds = u64::from(load.rounds);
        let one = one.unwrap_or_else(|_| Measured {
            requests: rounds,
            errors: rounds,
            ..Measured::default()
        });
        all.requests += one.requests;
        all.errors += one.errors;
        all.tokens += one.tokens;
        all.first_tokens.extend(one.first_tokens);
    }
    all.took = begun.elapsed();
    all
}

/// All answers of one client. After an error it connects anew.
async fn read_all(address: SocketAddr, load: &Load, client: u32) -> Measured {
    let mut measured = Measured::default();
    let mut connection = None;
    for round in 0..load.rounds {
        measured.requests += 1;
        let read = read(address, &mut connection, &load.prompt(client, round)).await;
        match read {
            Ok((first_token, tokens)) => {
                measured.first_tokens.push(first_token);
                measured.tokens += u64::from(tokens);
            }
            Err(_) => {
                measured.errors += 1;
                connection = None;
            }
        }
    }
    measured
}

/// One answer: when its first text came, and how many events with text it had.
async fn read(
    address: SocketAddr,
    connection: &mut Option<Connection>,
    prompt: &str,
) -> io::Result<(Duration, u32)> {
    let body = json!({
        "messages": [{"role": "user", "content": prompt}],
        "max_tokens": OUTPUT_TOKENS,
        "ignore_eos": true,
        "stream": true,
        "stream_options": {"include_usage": true},
    });
    let request = post("/v1/chat/completions", "", &body);
    let begun = Instant::now();
    let connection = match connection {
        Some(connection) => connection,
        None => connection.insert(Connection::open(address, None).await?),
    };
    connection.send(&request).await?;
    if connection.head().await? != 200 {
        return Err(io::ErrorKind::Other.into());
    }
    let (mut part, mut tail) = (Vec::with_capacity(8 << 10), Vec::new());
    let (mut lines, mut first_token) = (0, None);
    loop {
        part.clear();
        if !connection.part(&mut part).await? {
            break;
        }
        first_token.get_or_insert_with(|| begun.elapsed());
        // JSON has no raw line ends, so each event has two.
        lines += part.iter().filter(|byte| **byte == b'\n').count();
        tail.extend_from_slice(&part);
        let old = tail.len().saturating_sub(TAIL_BYTES);
        tail.drain(..old);
    }
    let tail = String::from_utf8_lossy(&tail);
    let counted = format!(r#""completion_tokens":{OUTPUT_TOKENS},"#);
    let complete = tail.ends_with("data: [DONE]\n\n") && tail.contains(&counted);
    match (complete, first_token) {
        (true, Some(first_token)) => Ok((first_token, lines as u32 / 2 - EVENTS_AROUND)),
        _ => Err(io::ErrorKind::InvalidData.into()),
    }
}
