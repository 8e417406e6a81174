//! What the client itself can carry, measured against a server in this process that costs as little as
//! one can: it answers every request with bytes that were made before. A run can ask for less than this
//! and trust that the client is not the bottleneck; whether it was, [`delivered`](crate::analysis::delivered)
//! says of each run.

use std::fmt::Write as _;
use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::num::NonZeroU64;
use std::path::Path;
use std::sync::Arc;
use std::thread;

use thiserror::Error;
use tokio::sync::watch;

use crate::analysis::delivered::Delivered;
use crate::experiments::measure::{MeasureError, RunSettings, measure};
use crate::store::folder::Run;
use crate::store::record::Outcome;
use crate::transport::http::{Target, TargetError};
use crate::workload::spec::{Arrivals, Positive, Spec};
use crate::workload::{Workload, WorkloadError};

/// What to try.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Trial {
    /// Requests a second, evenly spaced.
    pub rate_per_s: f64,
    /// Requests in all.
    pub requests: NonZeroU64,
    /// Chunks with text in an answer.
    pub chunks: usize,
    /// Chunks that the server writes at once. On a real network this is the server's and the kernel's
    /// choice: chunks that come faster than they are read come together.
    pub chunks_per_write: usize,
}

/// What came of it.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Carried {
    /// Requests that were answered whole, and all.
    pub ok: (u64, u64),
    /// Chunks with text a second, from the first send to the last end.
    pub chunks_per_s: f64,
    /// Whether the load was delivered.
    pub delivered: Delivered,
    /// Cores that the process used, the server's threads included.
    pub cpu_cores: f64,
}

impl Carried {
    /// Whether the client did what was asked of it.
    pub(crate) fn is_sustained(&self) -> bool {
        self.ok.0 == self.ok.1 && self.delivered.void.is_empty()
    }
}

/// A trial that could not be made.
#[derive(Debug, Error)]
pub(crate) enum CapacityError {
    /// The server cannot listen.
    #[error("cannot listen on the loopback device: {0}")]
    Listen(#[from] io::Error),
    /// The server cannot be asked.
    #[error(transparent)]
    Target(#[from] TargetError),
    /// The run failed.
    #[error(transparent)]
    Measure(#[from] MeasureError),
    /// The rate is no rate.
    #[error("{0}")]
    Rate(String),
    /// The workload cannot be made.
    #[error(transparent)]
    Workload(#[from] WorkloadError),
}

impl Trial {
    /// Starts the server, sends the load, counts.
    ///
    /// # Errors
    ///
    /// [`CapacityError`] when the trial cannot be made; a load that is not sustained is no error.
    pub(crate) async fn run(&self, stop: watch::Receiver<bool>) -> Result<Carried, CapacityError> {
        let address = serve(answer(self.chunks, self.chunks_per_write))?;
        let rate_per_s = Positive::try_from(self.rate_per_s).map_err(CapacityError::Rate)?;
        let mut spec = Spec::new(Arrivals::Constant { rate_per_s });
        spec.requests = Some(self.requests);
        // Connections are opened before the clock counts.
        spec.measure.warmup_requests = 1;
        let workload = Workload::new(spec, Path::new(""))?;
        let target =
            Target::new(&format!("http://{address}"), Some("none".to_owned()), None).await?;
        let measured = measure(&target, &workload, RunSettings::new(stop), |_| {}).await?;
        Ok(carried(&measured.run))
    }
}

fn carried(run: &Run) -> Carried {
    let rows = &run.records;
    let ok = rows.iter().filter(|row| row.outcome == Outcome::Ok).count() as u64;
    let chunks = rows.iter().map(|row| row.chunks.len() as u64).sum::<u64>();
    let first = rows.iter().filter_map(|row| row.sent_ns).min().unwrap_or(0);
    let last = rows.iter().filter_map(|row| row.end_ns).max().unwrap_or(0);
    let client = run.manifest.measurement.client.unwrap_or_default();
    Carried {
        ok: (ok, rows.len() as u64),
        chunks_per_s: chunks as f64 * 1e9 / last.saturating_sub(first).max(1) as f64,
        delivered: Delivered::of_run(run),
        cpu_cores: client.cpu_cores,
    }
}

/// The bytes of an answer, in the pieces in which it is written. Each chunk is as long as a real one.
fn answer(chunks: usize, per_write: usize) -> Vec<Vec<u8>> {
    let chunk = |delta: &str, finish: &str| {
        format!(
            "data: {{\"id\":\"chatcmpl-0123456789abcdef\",\"object\":\"chat.completion.chunk\",\
             \"created\":1700000000,\"model\":\"none\",\"choices\":[{{\"index\":0,\"delta\":{delta},\
             \"finish_reason\":{finish}}}],\"usage\":null}}\n\n"
        )
    };
    let mut events = vec![chunk("{\"content\":\" word\"}", "null"); chunks];
    events.insert(
        0,
        chunk("{\"role\":\"assistant\",\"content\":\"\"}", "null"),
    );
    let usage = format!("{{\"prompt_tokens\":9,\"completion_tokens\":{chunks}}}");
    events.push(chunk("{}", "\"length\""));
    events.push(format!(
        "data: {{\"choices\":[],\"usage\":{usage}}}\n\ndata: [DONE]\n\n"
    ));
    let length = events.iter().map(String::len).sum::<usize>();
    let mut head = "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n".to_owned();
    // Writing to a string cannot fail.
    let _ = write!(head, "Content-Length: {length}\r\n\r\n");
    let mut pieces = vec![head.into_bytes()];
    pieces.extend(
        events
            .chunks(per_write.max(1))
            .map(|events| events.concat().into_bytes()),
    );
    pieces
}

/// Answers on a free port, a thread for each connection, as long as the process lives.
fn serve(answer: Vec<Vec<u8>>) -> io::Result<SocketAddr> {
    let listener = TcpListener::bind(("127.0.0.1", 0))?;
    let address = listener.local_addr()?;
    let answer = Arc::new(answer);
    thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let answer = Arc::clone(&answer);
            // An error is a client that has gone.
            thread::spawn(move || drop(converse(stream, &answer)));
        }
    });
    Ok(address)
}

fn converse(mut stream: TcpStream, answer: &[Vec<u8>]) -> io::Result<()> {
    stream.set_nodelay(true)?;
    let mut request = Vec::new();
    let mut buffer = [0; 16_384];
    loop {
        match stream.read(&mut buffer)? {
            0 => return Ok(()),
            read => request.extend_from_slice(&buffer[..read]),
        }
        // The client waits for its answer before it asks again: a whole request ends the buffer.
        if is_whole(&request) {
            request.clear();
            for piece in answer {
                stream.write_all(piece)?;
            }
        }
    }
}

/// Whether a request's body is as long as its head says.
fn is_whole(request: &[u8]) -> bool {
    let Some(end) = request.windows(4).position(|window| window == b"\r\n\r\n") else {
        return false;
    };
    let head = String::from_utf8_lossy(&request[..end]).to_ascii_lowercase();
    let length = head.lines().find_map(|line| {
        line.strip_prefix("content-length:")?
            .trim()
            .parse::<usize>()
            .ok()
    });
    request.len() >= end + 4 + length.unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(flavor = "multi_thread")]
    async fn every_chunk_of_every_answer_is_counted() {
        let (_keep, stop) = watch::channel(false);
        let trial = Trial {
            rate_per_s: 200.0,
            requests: NonZeroU64::new(20).unwrap(),
            chunks: 30,
            chunks_per_write: 7,
        };
        let carried = trial.run(stop).await.unwrap();
        assert_eq!(carried.ok, (20, 20));
        assert!(carried.chunks_per_s > 0.0);
    }

    #[test]
    fn an_answer_is_cut_where_the_writes_are_and_is_as_long_as_it_says() {
        let pieces = answer(10, 4);
        assert_eq!(pieces.len(), 1 + 13_usize.div_ceil(4));
        let head = String::from_utf8(pieces[0].clone()).unwrap();
        let length = pieces[1..].iter().map(Vec::len).sum::<usize>();
        assert!(
            head.contains(&format!("Content-Length: {length}\r\n")),
            "{head}"
        );
        assert!(!is_whole(b"POST / HTTP/1.1\r\nContent-Length: 3\r\n\r\nab"));
        assert!(is_whole(b"POST / HTTP/1.1\r\ncontent-length: 3\r\n\r\nabc"));
    }
}
