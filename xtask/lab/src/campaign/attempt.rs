//! One client at work: its request, its behaviour, and how it ended in its own eyes.

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use serde_json::Value;
use tokio::time::{sleep, timeout};

use super::ask::{Ask, Conduct};
use crate::client::{Connection, events};

/// Bytes of a word of the mock, the space before it included.
const WORD_BYTES: u64 = 5;

/// How a request ended in its client's eyes.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum End {
    /// The answer came to its end.
    Finished {
        /// Whether a stop string ended it.
        stopped: bool,
    },
    /// It was not taken.
    Refused {
        /// The error code.
        code: String,
    },
    /// It was taken, and the server cancelled it.
    Cancelled {
        /// The error code.
        code: String,
    },
    /// It was taken, and the server failed.
    Failed {
        /// The error code.
        code: String,
    },
    /// The client went away.
    Left,
    /// Nobody accepted the connection, or it was closed before a byte of an answer.
    Unreached,
    /// The connection broke in the middle of an answer, or the answer is wrong.
    Broken {
        /// What is wrong.
        what: String,
    },
}

/// Carries out what `ask` says against the server at `address`.
pub(super) async fn attempt(address: SocketAddr, ask: &Ask) -> End {
    let receive_bytes = match ask.conduct {
        Conduct::ReadsSlowly | Conduct::Stuck => Some(4_096),
        _ => None,
    };
    let Ok(mut connection) = Connection::open(address, receive_bytes).await else {
        return End::Unreached;
    };
    let request = ask.request();
    if matches!(
        ask.conduct,
        Conduct::LeavesUnsaid | Conduct::LeavesMegabytes
    ) {
        // Nothing, a part of the head, or a part of the body; of megabytes all, now and then.
        let parts = match ask.conduct {
            Conduct::LeavesUnsaid => 200,
            _ => 120,
        };
        let sent = (ask.delay.as_millis() as usize * request.len() / parts).min(request.len());
        // Whether it arrives does not matter to who goes away.
        let _ = connection.send(&request[..sent]).await;
        sleep(ask.delay / 4).await;
        return End::Left;
    }
    if connection.send(&request).await.is_err() {
        return End::Unreached;
    }
    match ask.conduct {
        Conduct::SaysTooMuch => {
            let _ = connection.send(b"x").await;
            sleep(ask.delay / 4).await;
            End::Left
        }
        Conduct::Stuck => {
            sleep(2 * ask.delay).await;
            End::Left
        }
        Conduct::Leaves => {
            let answer = timeout(ask.delay, answer(&mut connection, ask));
            answer.await.unwrap_or(End::Left)
        }
        Conduct::Aborts => {
            let abort = async {
                sleep(ask.delay / 2).await;
                abort(address, ask).await
            };
            let (end, abort) = tokio::join!(answer(&mut connection, ask), abort);
            match (end, abort) {
                (end, Ok(())) => end,
                (_, Err(what)) => End::Broken { what },
            }
        }
        _ => answer(&mut connection, ask).await,
    }
}

/// Cancels the request on another connection.
async fn abort(address: SocketAddr, ask: &Ask) -> Result<(), String> {
    let asked = async {
        let mut connection = Connection::open(address, None).await?;
        connection.send(&ask.cancellation()).await?;
        connection.head().await
    };
    match asked.await {
        // It may not have begun, or be over; the server may be gone, or be building its engine.
        Ok(200 | 404 | 429 | 503) | Err(_) => Ok(()),
        Ok(status) => Err(format!("a cancellation was answered with {status}")),
    }
}

/// Reads the answer as the client reads, and says how it ended.
async fn answer(connection: &mut Connection, ask: &Ask) -> End {
    let status = match connection.head().await {
        Ok(status) => status,
        // Closed or reset: both are what a server does to a connection that it has not read from.
        Err(_) => return End::Unreached,
    };
    let mut body = Vec::new();
    loop {
        match connection.part(&mut body).await {
            Ok(true) => {}
            Ok(false) => break,
            Err(error) => return broken(&error, &body),
        }
        if ask.conduct == Conduct::LeavesEarly && status == 200 {
            let seen = body.windows(2).filter(|pair| pair == b"\n\n").count();
            if seen as u64 > ask.output_tokens / 2 {
                return End::Left;
            }
        }
        if ask.conduct == Conduct::ReadsSlowly {
            sleep(Duration::from_millis(5)).await;
        }
    }
    let Ok(text) = String::from_utf8(body) else {
        return wrong("an answer that is not UTF-8");
    };
    match (status, ask.stream) {
        (200, true) => streamed(&text, ask),
        (200, false) => whole(&text, ask),
        _ => match serde_json::from_str(&text) {
            Ok(error) => of_error(&error, false),
            Err(_) => wrong(&format!("{status} without an error object: {text}")),
        },
    }
}

fn broken(error: &io::Error, body: &[u8]) -> End {
    let read = body.len();
    wrong(&format!("the answer broke off after {read} bytes: {error}"))
}

fn wrong(what: &str) -> End {
    End::Broken {
        what: what.to_owned(),
    }
}

/// A stream that ended in good order: chunks, why it ended, the usage, `[DONE]`; or an error.
fn streamed(body: &str, ask: &Ask) -> End {
    let mut text = String::new();
    let (mut finish, mut counted) = (None, None);
    for data in events(body) {
        if data == "[DONE]" {
            return complete(&text, finish.as_deref(), counted, ask);
        }
        let Ok(chunk) = serde_json::from_str::<Value>(data) else {
            return wrong(&format!("an event that is not JSON: {data}"));
        };
        if chunk.get("error").is_some() {
            return of_error(&chunk, true);
        }
        let choice = &chunk["choices"][0];
        let piece = choice["delta"]["content"].as_str();
        text += piece.or(choice["text"].as_str()).unwrap_or_default();
        if let Some(reason) = choice["finish_reason"].as_str() {
            finish = Some(reason.to_owned());
        }
        counted = counted.or(chunk["usage"]["completion_tokens"].as_u64());
    }
    wrong("a stream that ended without [DONE] or an error")
}

fn whole(body: &str, ask: &Ask) -> End {
    let Ok(answer) = serde_json::from_str::<Value>(body) else {
        return wrong(&format!("an answer that is not JSON: {body}"));
    };
    let choice = &answer["choices"][0];
    let text = choice["message"]["content"].as_str();
    let text = text.or(choice["text"].as_str()).unwrap_or_default();
    let counted = answer["usage"]["completion_tokens"].as_u64();
    complete(text, choice["finish_reason"].as_str(), counted, ask)
}

/// Checks that the answer holds what was asked for and counts what it holds.
fn complete(text: &str, finish: Option<&str>, counted: Option<u64>, ask: &Ask) -> End {
    let words = text.len() as u64 / WORD_BYTES;
    let right = match finish {
        Some("length") => words == ask.output_tokens && counted == Some(words),
        // The word that holds the stop string is counted and not shown.
        Some("stop") => ask.stop && counted.is_some_and(|counted| counted > words),
        _ => false,
    };
    match right {
        true => End::Finished {
            stopped: finish == Some("stop"),
        },
        false => wrong(&format!(
            "{words} words of {}, {counted:?} counted, ended by {finish:?}",
            ask.output_tokens
        )),
    }
}

/// Sorts an error object by what it means for the request.
fn of_error(error: &Value, in_stream: bool) -> End {
    let error = &error["error"];
    let (Some(code), Some(message)) = (error["code"].as_str(), error["message"].as_str()) else {
        return wrong(&format!("an error without code and message: {error}"));
    };
    let code = code.to_owned();
    match code.as_str() {
        "backend_error" | "engine_stopped" => End::Failed { code },
        // A deadline or a drain refuses some and cancels others; the code is the same, the words
        // are not.
        _ if message.contains("was cancelled") => End::Cancelled { code },
        _ if in_stream => wrong(&format!("{code} in the middle of a stream")),
        _ => End::Refused { code },
    }
}
