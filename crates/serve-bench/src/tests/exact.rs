//! Every metric of a scripted answer is the one computed by hand, to the millisecond: bytes go over
//! real HTTP, in memory, and the runtime's clock stands still unless the script or the schedule waits.

use std::time::Duration;

use crate::analysis::definitions::Metric;
use crate::analysis::request::Request;
use crate::store::record::{Outcome, Record};

use crate::tests::dial::{dial, rows_over};
use crate::tests::server::{Part, Script, end, event, head, status, text};

const CLOSED: &str = "requests = 1\n[arrivals.closed]\nclients = 1\n";

async fn one(script: Script) -> Record {
    rows_over(dial(vec![script]), CLOSED).await.remove(0)
}

fn values(row: &Record, metric: Metric) -> Vec<f64> {
    let rows = [row.clone()];
    let mut out = Vec::new();
    metric.values(&Request::all(&rows, 0)[0], &mut out);
    out
}

/// What a person computes from a script: each metric's values, in ms. Metrics that are not named have
/// none.
#[track_caller]
fn check(row: &Record, expected: &[(Metric, &[f64])]) {
    for metric in Metric::ALL {
        let wanted = expected.iter().find(|(named, _)| *named == metric);
        let wanted = wanted.map_or(&[][..], |(_, values)| *values);
        assert_eq!(values(row, metric), wanted, "{}: {row:?}", metric.name());
    }
}

fn role(wait_ms: u64) -> Part {
    event(
        wait_ms,
        r#"{"choices":[{"delta":{"role":"assistant","content":""}}]}"#,
    )
}

/// A chunk with text and the number of tokens so far.
fn counted(wait_ms: u64, tokens: u32) -> Part {
    let body = r#"{"choices":[{"delta":{"content":"x y"}}],"usage":{"completion_tokens":N}}"#;
    event(wait_ms, &body.replace('N', &tokens.to_string()))
}

fn finish(wait_ms: u64) -> Part {
    event(
        wait_ms,
        r#"{"choices":[{"delta":{},"finish_reason":"stop"}]}"#,
    )
}

fn done(wait_ms: u64) -> Part {
    event(wait_ms, "[DONE]")
}

fn after(wait_ms: u64, part: Part) -> Part {
    (Duration::from_millis(wait_ms), part.1)
}

#[tokio::test(start_paused = true)]
async fn a_role_alone_is_no_first_token() {
    let script = vec![
        after(7, head()),
        role(3),
        text(30, "a"),
        text(50, "b"),
        after(5, end(2)),
    ];
    let row = one(script).await;
    check(
        &row,
        &[
            (Metric::Ttft, &[40.0]),
            (Metric::TtftSent, &[40.0]),
            (Metric::ItlChunk, &[50.0]),
            (Metric::ItlToken, &[50.0]),
            (Metric::Tpot, &[50.0]),
            (Metric::E2e, &[95.0]),
            (Metric::E2eSent, &[95.0]),
            (Metric::Lag, &[0.0]),
        ],
    );
    assert_eq!(
        (row.headers_ns, row.connected_ns),
        (Some(7_000_000), Some(0))
    );
    assert_eq!(
        (row.status, row.finish_reason.as_deref()),
        (Some(200), Some("length"))
    );
}

#[tokio::test(start_paused = true)]
async fn several_tokens_in_a_chunk_share_its_gap_where_the_server_counts_them() {
    let row = one(vec![
        head(),
        counted(20, 3),
        counted(30, 5),
        counted(40, 9),
        after(0, end(9)),
    ])
    .await;
    check(
        &row,
        &[
            (Metric::Ttft, &[20.0]),
            (Metric::TtftSent, &[20.0]),
            (Metric::ItlChunk, &[30.0, 40.0]),
            (Metric::ItlToken, &[15.0, 15.0, 10.0, 10.0, 10.0, 10.0]),
            (Metric::Tpot, &[70.0 / 8.0]),
            (Metric::E2e, &[90.0]),
            (Metric::E2eSent, &[90.0]),
            (Metric::Lag, &[0.0]),
        ],
    );
    let tokens = row
        .chunks
        .iter()
        .map(|chunk| chunk.tokens)
        .collect::<Vec<_>>();
    assert_eq!(tokens, [Some(3), Some(2), Some(4)]);
}

#[tokio::test(start_paused = true)]
async fn without_a_count_nothing_is_said_of_tokens() {
    let row = one(vec![
        head(),
        text(10, "a"),
        text(10, "b c"),
        text(30, "d"),
        finish(1),
        done(4),
    ])
    .await;
    check(
        &row,
        &[
            (Metric::Ttft, &[10.0]),
            (Metric::TtftSent, &[10.0]),
            (Metric::ItlChunk, &[10.0, 30.0]),
            (Metric::E2e, &[55.0]),
            (Metric::E2eSent, &[55.0]),
            (Metric::Lag, &[0.0]),
        ],
    );
    assert_eq!((row.outcome, row.output_tokens), (Outcome::Ok, None));
}

#[tokio::test(start_paused = true)]
async fn a_stall_within_an_answer_is_a_long_gap() {
    let row = one(vec![
        head(),
        text(10, "a"),
        text(4_000, "b"),
        after(0, end(2)),
    ])
    .await;
    check(
        &row,
        &[
            (Metric::Ttft, &[10.0]),
            (Metric::TtftSent, &[10.0]),
            (Metric::ItlChunk, &[4_000.0]),
            (Metric::ItlToken, &[4_000.0]),
            (Metric::Tpot, &[4_000.0]),
            (Metric::E2e, &[4_010.0]),
            (Metric::E2eSent, &[4_010.0]),
            (Metric::Lag, &[0.0]),
        ],
    );
}

#[tokio::test(start_paused = true)]
async fn two_chunks_in_one_read_have_one_time_and_one_token_has_no_tpot() {
    let both = text(25, "a").1 + &text(0, "b").1;
    let row = one(vec![
        head(),
        (Duration::from_millis(25), both),
        after(0, end(2)),
    ])
    .await;
    assert_eq!(values(&row, Metric::ItlChunk), [0.0]);
    assert_eq!(values(&row, Metric::Ttft), [25.0]);
    let single = one(vec![head(), text(12, "a"), after(3, end(1))]).await;
    assert!(values(&single, Metric::Tpot).is_empty());
    assert_eq!(values(&single, Metric::E2e), [15.0]);
}

#[tokio::test(start_paused = true)]
async fn the_servers_own_times_and_counts_are_taken_over() {
    let last = r#"{"choices":[],"usage":{"prompt_tokens":40,"completion_tokens":1,
        "prompt_tokens_details":{"cached_tokens":32}},
        "timings":{"queue_ms":1.5,"prefill_ms":20.25,"decode_ms":0,"preemptions":2,"cached_tokens":32}}"#;
    let last = last.replace('\n', " ");
    let row = one(vec![
        head(),
        text(22, "a"),
        finish(0),
        event(0, &last),
        done(0),
    ])
    .await;
    assert_eq!(values(&row, Metric::Queue), [1.5]);
    assert_eq!(values(&row, Metric::Prefill), [20.25]);
    assert_eq!(values(&row, Metric::Decode), [0.0]);
    assert_eq!((row.prompt_tokens, row.cached_tokens), (Some(40), Some(32)));
    assert_eq!(row.timings.unwrap().preemptions, Some(2));
}

#[tokio::test(start_paused = true)]
async fn an_answer_in_one_piece_has_its_first_token_at_its_end() {
    let body = r#"{"choices":[{"message":{"role":"assistant","content":"a b"},"finish_reason":"stop"}],
        "usage":{"prompt_tokens":3,"completion_tokens":2}}"#;
    let head = format!(
        "HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: {}\r\n\r\n",
        body.len()
    );
    let script = vec![
        (Duration::from_millis(6), head),
        (Duration::from_millis(80), body.to_owned()),
    ];
    let spec = format!("{CLOSED}[request]\nstream = false\n");
    let row = rows_over(dial(vec![script]), &spec).await.remove(0);
    check(
        &row,
        &[
            (Metric::Ttft, &[86.0]),
            (Metric::TtftSent, &[86.0]),
            (Metric::E2e, &[86.0]),
            (Metric::E2eSent, &[86.0]),
            (Metric::Lag, &[0.0]),
        ],
    );
    assert_eq!(
        (row.output_tokens, row.finish_reason.as_deref()),
        (Some(2), Some("stop"))
    );
}

#[tokio::test(start_paused = true)]
async fn what_goes_wrong_has_its_time_and_its_cause_and_lends_no_latency() {
    let error = event(15, r#"{"error":{"message":"device lost"}}"#);
    let busy = r#"{"error":{"message":"full","type":"overloaded","code":"queue_full"}}"#;
    let busy = status("503 Busy\r\nRetry-After: 2", busy);
    for (script, outcome, cause, end_ms, chunks) in [
        (
            vec![head(), text(10, "a"), error],
            Outcome::Failed,
            "server_error",
            25,
            1,
        ),
        (
            vec![head(), text(10, "a"), text(20, "b")],
            Outcome::Failed,
            "cut_short",
            30,
            2,
        ),
        (
            vec![head(), event(9, "{oops")],
            Outcome::Failed,
            "bad_answer",
            9,
            0,
        ),
        (
            vec![(Duration::from_millis(11), String::new())],
            Outcome::Failed,
            "cut_short",
            11,
            0,
        ),
        (
            vec![after(3, busy[0].clone())],
            Outcome::Refused,
            "queue_full",
            3,
            0,
        ),
        (
            vec![after(4, status("500 Bad", "oops")[0].clone())],
            Outcome::Failed,
            "http_500",
            4,
            0,
        ),
        (
            vec![head(), text(70_000, "late")],
            Outcome::Failed,
            "timeout",
            60_000,
            0,
        ),
    ] {
        let row = one(script).await;
        assert_eq!(
            (row.outcome, row.cause.as_deref()),
            (outcome, Some(cause)),
            "{row:?}"
        );
        assert_eq!(
            (row.end_ns, row.chunks.len()),
            (Some(end_ms * 1_000_000), chunks),
            "{row:?}"
        );
        check(&row, &[(Metric::Lag, &[0.0])]);
        assert_eq!(
            row.retry_after_ms,
            (outcome == Outcome::Refused).then_some(2_000)
        );
    }
}

#[tokio::test(start_paused = true)]
async fn a_stall_of_four_seconds_under_one_request_a_second_shows_four_late_requests() {
    // The server freezes from 2.5 s to 6.5 s and needs 100 ms otherwise.
    let waits = [100, 100, 100, 3_600, 2_600, 1_600, 600, 100, 100, 100];
    let script = |wait: &u64| vec![head(), text(*wait, "a"), after(0, end(1))];
    let spec = "requests = 10\n[arrivals.constant]\nrate_per_s = 1\n";
    let rows = rows_over(dial(waits.iter().map(script).collect()), spec).await;
    let ttft = rows
        .iter()
        .flat_map(|row| values(row, Metric::Ttft))
        .collect::<Vec<_>>();
    assert_eq!(ttft, waits.map(|wait| wait as f64));
    assert!(
        rows.iter()
            .flat_map(|row| values(row, Metric::Lag))
            .all(|lag| lag == 0.0)
    );
    assert!(
        rows.iter()
            .zip(0..)
            .all(|(row, second)| row.scheduled_ns == second * 1_000_000_000)
    );
}
