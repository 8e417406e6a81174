//! Workloads of every kind, their rows, and the books that must balance whatever server is asked.

use std::path::Path;
use std::time::Duration;

use proptest::prelude::*;
use proptest::test_runner::TestCaseError;
use tokio::sync::watch;
use tokio::time::Instant;

use super::{Driving, Timer, Transport, drive};
use crate::store::record::{Outcome, Record};
use crate::workload::Workload;
use crate::workload::spec::Spec;

pub(crate) fn workload(text: &str) -> Workload {
    Workload::new(Spec::parse("test", text).unwrap(), Path::new(".")).unwrap()
}

/// The rows of a workload that begins now and is told to stop by `stop`, in the order of its requests.
pub(crate) async fn rows_until<T: Transport>(
    workload: &Workload,
    transport: T,
    stop: watch::Receiver<bool>,
) -> Vec<Record> {
    let driving = Driving {
        origin: Instant::now(),
        patience: Duration::from_secs(60),
        timer: Timer::Runtime,
        stop,
    };
    let mut rows = Vec::new();
    drive(workload, transport, driving, |row| rows.push(row)).await;
    rows.sort_by_key(|row| (row.request, row.attempt));
    rows
}

pub(crate) const TALK: &str = "[[prompts]]\nname = \"talk\"\ntokens = { fixed = 5 }\n\
    output_tokens = { fixed = 2 }\n\
    conversation = { turns = { fixed = 3 }, think_ms = { fixed = 700 } }\n";

/// Open and closed loops, conversations, deadlines, clients that leave, retries. Its class is `c`.
pub(crate) fn any_workload() -> impl Strategy<Value = String> {
    let arrivals = prop_oneof![
        Just("[arrivals.poisson]\nrate_per_s = 3\n"),
        Just("[arrivals.waves]\nsize = 5\nevery_s = 1\n"),
        Just("[arrivals.closed]\nclients = 3\nthink_ms = { uniform = { min = 0, max = 90 } }\n"),
    ];
    let prompts = prop_oneof![Just(""), Just(TALK)];
    let class = |rest: &str| format!("[[classes]]\nname = \"c\"\n{rest}\n");
    let leave = |after: &str| class(&format!("cancel = {{ probability = 0.5, {after} }}"));
    let classes = prop_oneof![
        Just(String::new()),
        Just(class("deadline_ms = 900")),
        Just(leave("after_ms = { uniform = { min = 1, max = 2000 } }")),
        Just(leave("after_tokens = { uniform = { min = 1, max = 3 } }")),
    ];
    let retry = prop_oneof![
        Just(""),
        Just("[retry]\nattempts_max = 3\nretries_percent = 50\n")
    ];
    (0..1_000_u64, 1..30_u64, arrivals, prompts, classes, retry).prop_map(
        |(seed, requests, arrivals, prompts, classes, retry)| {
            format!("seed = {seed}\nrequests = {requests}\n{arrivals}{prompts}{classes}{retry}")
        },
    )
}

/// Every request has its attempts, in order, each with one end, and the books balance.
pub(crate) fn balance(rows: &[Record], requests: u64) -> Result<(), TestCaseError> {
    let count = |outcome| rows.iter().filter(|row| row.outcome == outcome).count();
    let ends = [
        Outcome::Ok,
        Outcome::Refused,
        Outcome::Failed,
        Outcome::Cancelled,
    ];
    let sent = rows.iter().filter(|row| row.sent_ns.is_some()).count();
    prop_assert_eq!(sent, ends.map(count).iter().sum::<usize>());
    prop_assert_eq!(rows.len(), sent + count(Outcome::NotSent));
    for request in 0..requests {
        let attempts = rows.iter().filter(|row| row.request == request);
        let attempts = attempts.collect::<Vec<_>>();
        prop_assert!(!attempts.is_empty(), "request {} has no row", request);
        let last = attempts.len() - 1;
        for (number, row) in attempts.iter().enumerate() {
            prop_assert_eq!(row.attempt as usize, number);
            prop_assert_eq!(row.retried, number < last);
            prop_assert_eq!(row.outcome == Outcome::Ok, row.cause.is_none());
            prop_assert_eq!(row.sent_ns.is_some(), row.end_ns.is_some());
            let mut times = vec![row.scheduled_ns];
            times.extend(row.sent_ns.iter().chain(&row.connected_ns));
            times.extend(row.headers_ns);
            times.extend(row.chunks.iter().map(|chunk| chunk.at_ns).chain(row.end_ns));
            prop_assert!(times.is_sorted(), "{:?}", row);
        }
    }
    Ok(())
}
