//! Requests that come when they come, whatever the server does, and what became of each.

use std::net::SocketAddr;
use std::time::Duration;

use serde_json::{Value, json};
use serve_bench::experiments::servers::key_of;
use serve_core::rng::{Rng, mix2};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep_until, timeout_at};

use crate::client::{Connection, post};

/// Whose requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Who {
    /// Those of a class, on a server without keys.
    Class(&'static str),
    /// Those of a tenant with a key of its own.
    Tenant(&'static str),
}

/// Requests of one kind, at random times.
#[derive(Clone, Copy, Debug)]
pub(super) struct Stream {
    pub(super) who: Who,
    /// On average, with exponential times in between.
    pub(super) rate_per_s: f64,
}

/// What each request asks for.
#[derive(Clone, Copy, Debug)]
pub(super) struct Shape {
    /// Words of the prompt, each a token.
    pub(super) prompt_words: usize,
    pub(super) output_tokens: u32,
    /// After how long the client has no use for it, as it tells the server.
    pub(super) timeout: Option<Duration>,
}

/// What a server is offered.
#[derive(Clone, Debug)]
pub(super) struct Offered {
    pub(super) streams: Vec<Stream>,
    pub(super) shape: Shape,
    pub(super) lasts: Duration,
    /// How long answers are waited for afterwards.
    pub(super) patience: Duration,
    pub(super) seed: u64,
}

/// What became of one request. Times count from the first moment of the run.
#[derive(Clone, Debug)]
pub(super) struct Row {
    pub(super) who: Who,
    pub(super) sent: Duration,
    pub(super) ended: Duration,
    pub(super) became: Became,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Became {
    /// Answered, after it had waited this long for its first step.
    Answered {
        queued: Duration,
    },
    Refused,
    /// Ended by the server because its time was over.
    Late,
    /// Still without an answer when the patience was over.
    Waiting,
    /// Anything else.
    Wrong,
}

impl Row {
    pub(super) fn took(&self) -> Duration {
        self.ended - self.sent
    }

    /// When its first step began, if it ever did.
    pub(super) fn started(&self) -> Option<Duration> {
        match self.became {
            Became::Answered { queued } => Some(self.sent + queued),
            _ => None,
        }
    }
}

/// Sends everything to the server at `address`. The rows are in the order in which they were sent.
pub(super) async fn offer(address: SocketAddr, offered: &Offered) -> Vec<Row> {
    let begun = Instant::now();
    let until = begun + offered.lasts + offered.patience;
    let mut requests = JoinSet::new();
    let shape = offered.shape;
    for (at, who) in arrivals(offered) {
        sleep_until(begun + at).await;
        requests.spawn(async move {
            let sent = begun.elapsed();
            let became = match timeout_at(until, ask(address, who, shape)).await {
                Ok(became) => became.unwrap_or(Became::Wrong),
                Err(_) => Became::Waiting,
            };
            Row {
                who,
                sent,
                ended: begun.elapsed(),
                became,
            }
        });
    }
    let mut rows = Vec::new();
    while let Some(row) = requests.join_next().await {
        // Nothing here panics, and a row less would be seen in the counts.
        rows.extend(row);
    }
    rows.sort_by_key(|row| row.sent);
    rows
}

/// When each request comes; the same for the same seed.
pub(super) fn arrivals(offered: &Offered) -> Vec<(Duration, Who)> {
    let mut all = Vec::new();
    for (number, stream) in (0..).zip(&offered.streams) {
        let mut rng = Rng::new(mix2(offered.seed, number));
        let mut at = 0.0;
        loop {
            at += rng.exponential(1.0 / stream.rate_per_s);
            if at >= offered.lasts.as_secs_f64() {
                break;
            }
            all.push((Duration::from_secs_f64(at), stream.who));
        }
    }
    all.sort_by_key(|(at, _)| *at);
    all
}

async fn ask(address: SocketAddr, who: Who, shape: Shape) -> std::io::Result<Became> {
    let mut body = json!({
        "prompt": " bade".repeat(shape.prompt_words),
        "max_tokens": shape.output_tokens,
        "ignore_eos": true,
    });
    if let Some(timeout) = shape.timeout {
        body["timeout_ms"] = json!(timeout.as_millis() as u64);
    }
    let headers = match who {
        Who::Class(class) => {
            body["request_class"] = json!(class);
            String::new()
        }
        Who::Tenant(name) => format!("authorization: Bearer {}\r\n", key_of(name)),
    };
    let mut connection = Connection::open(address, None).await?;
    let request = post("/v1/completions", &headers, &body);
    connection.send(&request).await?;
    let status = connection.head().await?;
    let body = connection.rest().await?;
    Ok(match status {
        200 => {
            let answer = serde_json::from_slice::<Value>(&body).unwrap_or_default();
            let queued = answer["timings"]["queue_ms"].as_f64();
            let queued = queued.map(|millis| Duration::from_secs_f64(millis / 1e3));
            queued.map_or(Became::Wrong, |queued| Became::Answered { queued })
        }
        429 | 503 => Became::Refused,
        504 => Became::Late,
        _ => Became::Wrong,
    })
}

/// Asks whether the server is alive, over and over until `until`. Returns how long each answer took;
/// one that did not come took for ever.
pub(super) async fn watch(address: SocketAddr, until: Instant) -> Vec<Duration> {
    const PAUSE: Duration = Duration::from_millis(50);

    let mut took = Vec::new();
    while Instant::now() < until {
        let begun = Instant::now();
        let asked = async {
            let mut connection = Connection::open(address, None).await?;
            let request = b"GET /health/live HTTP/1.1\r\nhost: localhost\r\n\r\n";
            connection.send(request).await?;
            connection.head().await
        };
        took.push(match asked.await {
            Ok(200) => begun.elapsed(),
            _ => Duration::MAX,
        });
        tokio::time::sleep(PAUSE).await;
    }
    took
}
