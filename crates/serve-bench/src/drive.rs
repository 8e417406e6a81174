//! Keeps the schedule, whatever the server does.
//!
//! In an open loop a request is sent when it is due, however many are still under way: a client that
//! waits for a slow server hides its slowness (coordinated omission). The schedule is absolute, so a
//! late request does not delay the next. A closed loop keeps a fixed number under way, which is what
//! so many patient users do.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use serve_core::Span;
use thiserror::Error;
use tokio::sync::{Mutex, mpsc, watch};
use tokio::time::{Instant, sleep_until, timeout};

use crate::record::{Chunk, Outcome, Record};
use crate::workload::{Arrivals, Planned, Workload};

/// Sends one request and reads its answer to the end.
pub trait Transport: Clone + Send + Sync + 'static {
    /// Makes the attempt and notes on `attempt` what happens when it happens.
    fn send(
        &self,
        request: &Planned,
        attempt: &mut Attempt,
    ) -> impl Future<Output = Result<(), AttemptError>> + Send;
}

/// Why an attempt did not end with a whole answer.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum AttemptError {
    /// The server is too busy.
    #[error("{0}")]
    Refused(String),
    /// Anything else.
    #[error("{0}")]
    Failed(String),
}

/// The notebook of one attempt: what happens is stamped when it is noted.
#[derive(Debug)]
pub struct Attempt {
    origin: Instant,
    record: Record,
}

impl Attempt {
    /// The answer's status and headers are there.
    pub fn headers(&mut self, status: u16) {
        self.record.headers_ns = Some(self.now());
        self.record.status = Some(status);
    }

    /// A chunk with text is there.
    pub fn text(&mut self) {
        let now = self.now();
        self.record.chunks.push(Chunk {
            at_ns: now,
            tokens: None,
        });
    }

    /// The server says why it stopped.
    pub fn finish_reason(&mut self, reason: String) {
        self.record.finish_reason = Some(reason);
    }

    /// The server says how many tokens it counted.
    pub fn usage(&mut self, prompt_tokens: Option<u32>, output_tokens: Option<u32>) {
        self.record.prompt_tokens = prompt_tokens;
        self.record.output_tokens = output_tokens;
    }

    fn now(&self) -> u64 {
        nanos_since(self.origin)
    }
}

/// Sends a whole workload and hands over each row as its attempt ends, in that order; the requests
/// that a stop keeps from being sent come last.
///
/// An attempt that takes longer than `patience` has failed. When `stop` turns true, nothing more is
/// sent and what is under way is called off.
pub async fn drive<T: Transport>(
    workload: &Workload,
    transport: T,
    patience: Duration,
    stop: watch::Receiver<bool>,
    mut on_record: impl FnMut(Record),
) {
    let (rows, mut receiver) = mpsc::unbounded_channel();
    let run = Run {
        transport,
        patience,
        origin: Instant::now(),
        stop,
        rows,
    };
    match workload.arrivals() {
        Arrivals::Closed { clients } => {
            let plan = Arc::new(Mutex::new(workload.plan()));
            for _ in 0..clients {
                tokio::spawn(run.clone().client(Arc::clone(&plan)));
            }
        }
        Arrivals::Constant { .. } | Arrivals::Poisson { .. } => {
            tokio::spawn(run.clone().open_loop(workload.plan()));
        }
    }
    drop(run); // the channel closes when the last attempt has ended
    while let Some(record) = receiver.recv().await {
        on_record(record);
    }
}

/// What every attempt of a run needs.
#[derive(Clone)]
struct Run<T> {
    transport: T,
    patience: Duration,
    origin: Instant,
    stop: watch::Receiver<bool>,
    rows: mpsc::UnboundedSender<Record>,
}

impl<T: Transport> Run<T> {
    async fn open_loop(mut self, plan: impl Iterator<Item = Planned> + Send) {
        for request in plan {
            let due = request.due.unwrap_or(Span::ZERO);
            let wake = sleep_until(self.origin + due.into());
            let stopped = tokio::select! {
                biased;
                _ = self.stop.wait_for(|stop| *stop) => true,
                () = wake => false,
            };
            if stopped {
                self.report(Record::not_sent(request.index, due.as_nanos()));
            } else {
                tokio::spawn(self.clone().attempt(request, due.as_nanos()));
            }
        }
    }

    async fn client(self, plan: Arc<Mutex<impl Iterator<Item = Planned> + Send>>) {
        loop {
            let Some(request) = plan.lock().await.next() else {
                return;
            };
            let free = nanos_since(self.origin);
            if *self.stop.borrow() {
                self.report(Record::not_sent(request.index, free));
            } else {
                self.clone().attempt(request, free).await;
            }
        }
    }

    async fn attempt(mut self, request: Planned, scheduled_ns: u64) {
        let mut attempt = Attempt {
            origin: self.origin,
            record: Record::not_sent(request.index, scheduled_ns),
        };
        attempt.record.sent_ns = Some(attempt.now());
        let sending = timeout(self.patience, self.transport.send(&request, &mut attempt));
        let ended = tokio::select! {
            biased;
            _ = self.stop.wait_for(|stop| *stop) => None,
            ended = sending => Some(ended),
        };
        let (outcome, error) = match ended {
            Some(Ok(Ok(()))) => (Outcome::Ok, None),
            Some(Ok(Err(AttemptError::Refused(cause)))) => (Outcome::Refused, Some(cause)),
            Some(Ok(Err(AttemptError::Failed(cause)))) => (Outcome::Failed, Some(cause)),
            Some(Err(_)) => {
                let limit = Span::from(self.patience);
                (
                    Outcome::Failed,
                    Some(format!("no end of the answer within {limit}")),
                )
            }
            None => (Outcome::Cancelled, None),
        };
        attempt.record.end_ns = Some(attempt.now());
        attempt.record.outcome = outcome;
        attempt.record.error = error;
        self.report(attempt.record);
    }

    fn report(&self, record: Record) {
        // Nobody receives only when the caller has dropped the whole run.
        let _ = self.rows.send(record);
    }
}

fn nanos_since(origin: Instant) -> u64 {
    Span::from(origin.elapsed()).as_nanos()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::workload::Prompts;

    /// A server in virtual time that works on one request after another, 1 ms each, and that freezes
    /// for a while.
    #[derive(Clone)]
    struct Frozen {
        start: Instant,
        from: Duration,
        until: Duration,
    }

    impl Transport for Frozen {
        async fn send(&self, _: &Planned, attempt: &mut Attempt) -> Result<(), AttemptError> {
            let now = self.start.elapsed();
            if (self.from..self.until).contains(&now) {
                sleep_until(self.start + self.until).await;
            }
            attempt.headers(200);
            tokio::time::sleep(Duration::from_millis(1)).await;
            attempt.text();
            Ok(())
        }
    }

    async fn rows<T: Transport>(
        workload: &Workload,
        transport: T,
        stop: watch::Receiver<bool>,
    ) -> Vec<Record> {
        let mut rows = Vec::new();
        let patience = Duration::from_secs(60);
        drive(workload, transport, patience, stop, |row| rows.push(row)).await;
        rows.sort_by_key(|row| row.request);
        rows
    }

    fn workload(arrivals: Arrivals, requests: u64) -> Workload {
        Workload::new(arrivals, Prompts::builtin(), requests, 4, 0).unwrap()
    }

    const EACH_SECOND: Arrivals = Arrivals::Constant { rate_per_s: 1.0 };

    #[tokio::test(start_paused = true)]
    async fn a_stall_of_four_seconds_makes_four_late_requests_not_one() {
        let (_keep, stop) = watch::channel(false);
        let server = Frozen {
            start: Instant::now(),
            from: Duration::from_millis(2_500),
            until: Duration::from_millis(6_500),
        };
        let rows = rows(&workload(EACH_SECOND, 10), server, stop).await;
        let latency_ms = rows
            .iter()
            .map(|row| (row.end_ns.unwrap() - row.scheduled_ns) / 1_000_000);
        let expected = [1, 1, 1, 3_501, 2_501, 1_501, 501, 1, 1, 1];
        assert_eq!(latency_ms.collect::<Vec<_>>(), expected);
        assert!(rows.iter().all(|row| row.sent_ns == Some(row.scheduled_ns)));
    }

    #[tokio::test(start_paused = true)]
    async fn a_closed_loop_keeps_its_clients_busy_and_no_more() {
        let (_keep, stop) = watch::channel(false);
        let server = Frozen {
            start: Instant::now(),
            from: Duration::ZERO,
            until: Duration::from_secs(1),
        };
        let rows = rows(&workload(Arrivals::Closed { clients: 3 }, 9), server, stop).await;
        let sent_ms = rows.iter().map(|row| row.sent_ns.unwrap() / 1_000_000);
        let expected = [0, 0, 0, 1_001, 1_001, 1_001, 1_002, 1_002, 1_002];
        assert_eq!(sent_ms.collect::<Vec<_>>(), expected);
        assert!(rows.iter().all(|row| row.outcome == Outcome::Ok));
    }

    #[tokio::test(start_paused = true)]
    async fn a_stop_leaves_a_row_for_every_request() {
        let (sender, stop) = watch::channel(false);
        let server = Frozen {
            start: Instant::now(),
            from: Duration::from_millis(1_500),
            until: Duration::from_secs(100),
        };
        tokio::spawn(async move {
            tokio::time::sleep(Duration::from_millis(3_500)).await;
            sender.send(true).unwrap();
            std::future::pending::<()>().await;
        });
        let rows = rows(&workload(EACH_SECOND, 6), server, stop).await;
        use Outcome::{Cancelled, NotSent, Ok};
        let outcomes = rows.iter().map(|row| row.outcome).collect::<Vec<_>>();
        assert_eq!(outcomes, [Ok, Ok, Cancelled, Cancelled, NotSent, NotSent]);
        assert_eq!(rows[3].end_ns, Some(3_500_000_000));
        assert_eq!(
            (rows[5].sent_ns, rows[5].scheduled_ns),
            (None, 5_000_000_000)
        );
    }

    #[tokio::test(start_paused = true)]
    async fn patience_ends() {
        let (_keep, stop) = watch::channel(false);
        let server = Frozen {
            start: Instant::now(),
            from: Duration::ZERO,
            until: Duration::from_secs(1_000),
        };
        let rows = rows(&workload(EACH_SECOND, 1), server, stop).await;
        assert_eq!(rows[0].outcome, Outcome::Failed);
        assert_eq!(
            rows[0].error.as_deref(),
            Some("no end of the answer within 60s")
        );
        assert_eq!(rows[0].end_ns, Some(60_000_000_000));
    }
}
