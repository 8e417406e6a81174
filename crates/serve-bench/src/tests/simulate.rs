//! A workload in virtual time: rows like those of a measured run.

use std::collections::BTreeMap;
use std::path::Path;

use crate::experiments::servers::ServerSettings;
use crate::experiments::simulate::{ServerModel, SimulateError, simulate};
use crate::store::manifest::Source;
use crate::store::record::{Outcome, Record};
use crate::workload::Workload;
use crate::workload::spec::Spec;
use serve_core::Span;

fn rows_of(spec: &str, settings: &[&str]) -> Vec<Record> {
    let workload = Workload::new(Spec::parse("test", spec).unwrap(), Path::new(".")).unwrap();
    let mut rows = Vec::new();
    simulate(&workload, &server(settings), Span::ZERO, |row| {
        rows.push(row)
    })
    .unwrap();
    rows.sort_by_key(|row| (row.request, row.attempt));
    rows
}

fn server(settings: &[&str]) -> ServerModel {
    let settings = settings
        .iter()
        .map(|text| text.parse::<ServerSettings>().unwrap());
    ServerModel::new(&settings.collect()).unwrap()
}

const ONE_SIZE: &str =
    "[[prompts]]\nname = \"one\"\ntokens = { fixed = 10 }\noutput_tokens = { fixed = 4 }\n";
/// Steps of 10 ms, 1 ms for each prompt token.
const DEVICE: [&str; 2] = ["mock_decode_us=1=10000", "mock_prefill_us=1000"];

#[test]
fn a_closed_loop_of_one_is_computed_by_hand() {
    let spec = format!(
        "requests = 3\n[arrivals.closed]\nclients = 1\nthink_ms = {{ fixed = 5 }}\n{ONE_SIZE}"
    );
    let rows = rows_of(&spec, &DEVICE);
    let ms = |ns: u64| ns / 1_000_000;
    let seen = rows.iter().map(|row| {
        let chunks = row
            .chunks
            .iter()
            .map(|chunk| ms(chunk.at_ns))
            .collect::<Vec<_>>();
        (ms(row.scheduled_ns), chunks, ms(row.end_ns.unwrap()))
    });
    // Prefill 10 + 10, three steps of 10, think 5.
    let expected = [
        (0, vec![20, 30, 40, 50], 50),
        (55, vec![75, 85, 95, 105], 105),
        (110, vec![130, 140, 150, 160], 160),
    ];
    assert_eq!(seen.collect::<Vec<_>>(), expected);
    assert!(
        rows.iter()
            .all(|row| row.source == Source::Simulated && row.outcome == Outcome::Ok)
    );
    assert_eq!(rows[1].client, Some(0));
    assert_eq!(
        (rows[0].prompt_tokens, rows[0].output_tokens),
        (Some(10), Some(4))
    );
}

#[test]
fn every_request_has_its_row_whatever_becomes_of_it() {
    // A wave of 40 on one slot and 30 places, more than those who pay fill, with a deadline for some and little patience for all.
    let spec = format!(
        "requests = 40\n[arrivals.waves]\nsize = 40\nevery_s = 100\n{ONE_SIZE}\
         [[classes]]\nname = \"paid\"\n[[classes]]\nname = \"free\"\ndeadline_ms = 120\n\
         [measure]\ntimeout_s = 0.3\n"
    );
    let settings = [
        &DEVICE[..],
        &["max_batch=1", "queue_cap=30", "order=strict-tiers"],
    ]
    .concat();
    let rows = rows_of(&spec, &settings);
    assert_eq!(rows.len(), 40);
    let mut by_cause = BTreeMap::<_, usize>::new();
    for row in &rows {
        *by_cause
            .entry((format!("{:?}", row.outcome), row.cause.clone()))
            .or_default() += 1;
        assert!(row.end_ns >= row.sent_ns, "{row:?}");
    }
    let of = |outcome: &str, cause: Option<&str>| {
        by_cause
            .get(&(outcome.to_owned(), cause.map(str::to_owned)))
            .copied()
            .unwrap_or(0)
    };
    assert_eq!(
        of("Ok", None),
        6,
        "300 ms of patience, 50 ms each: {by_cause:?}"
    );
    assert_eq!(
        of("Refused", Some("overloaded")),
        9,
        "one runs and 30 wait: {by_cause:?}"
    );
    assert!(
        of("Failed", Some("timeout")) > 0 && of("Failed", Some("deadline")) > 0,
        "{by_cause:?}"
    );
    assert_eq!(by_cause.values().sum::<usize>(), 40);
}

#[test]
fn the_turns_of_a_conversation_follow_its_answers_and_reuse_their_prefix() {
    let spec = "requests = 6\n[request]\nhistory = \"scripted\"\n[arrivals.constant]\nrate_per_s = 0.5\n\
         [[prompts]]\nname = \"talk\"\ntokens = { fixed = 64 }\noutput_tokens = { fixed = 32 }\n\
         conversation = { turns = { fixed = 3 }, think_ms = { fixed = 100 } }\n";
    let rows = rows_of(spec, &["prefix_cache=true"]);
    assert_eq!(rows.len(), 6);
    for turns in rows.chunks(3) {
        for pair in turns.windows(2) {
            let after = pair[0].end_ns.unwrap() + 100_000_000;
            assert_eq!(pair[1].scheduled_ns, after);
            assert!(pair[1].prompt_tokens > pair[0].prompt_tokens);
        }
    }
    let without = rows_of(spec, &["prefix_cache=false"]);
    let ttft = |row: &Record| row.first_token_ns().unwrap() - row.scheduled_ns;
    assert!(
        ttft(&rows[2]) < ttft(&without[2]),
        "a cached prefix is not run again"
    );
    assert_eq!(ttft(&rows[0]), ttft(&without[0]));
}

/// The times of a row in ms: due, sent, chunks, end.
fn times(row: &Record) -> (u64, u64, Vec<u64>, u64) {
    let ms = |ns: u64| ns / 1_000_000;
    let chunks = row.chunks.iter().map(|chunk| ms(chunk.at_ns)).collect();
    let (sent, end) = (row.sent_ns.unwrap(), row.end_ns.unwrap());
    (ms(row.scheduled_ns), ms(sent), chunks, ms(end))
}

#[test]
fn a_client_that_counts_its_tokens_leaves_and_frees_its_place() {
    let spec = format!(
        "requests = 2\n[arrivals.waves]\nsize = 2\nevery_s = 1\n{ONE_SIZE}\
         [[classes]]\nname = \"free\"\ncancel = {{ probability = 1, after_tokens = {{ fixed = 2 }} }}\n"
    );
    let rows = rows_of(&spec, &[&DEVICE[..], &["max_batch=1"]].concat());
    // When the first has seen its second token, its third step has begun; the second starts after it.
    let seen = rows.iter().map(times).collect::<Vec<_>>();
    assert_eq!(seen, [(0, 0, vec![20, 30], 30), (0, 0, vec![60, 70], 70)]);
    let planned = |row: &Record| row.cause.as_deref() == Some("planned");
    let left = |row: &Record| row.outcome == Outcome::Cancelled && planned(row);
    assert!(rows.iter().all(left));
    // Also where not every token's time is kept: more requests than that.
    let many = format!(
        "requests = 20001\n[arrivals.constant]\nrate_per_s = 1\n{ONE_SIZE}\
         [[classes]]\nname = \"free\"\ncancel = {{ probability = 1, after_tokens = {{ fixed = 2 }} }}\n"
    );
    let rows = rows_of(&many, &DEVICE);
    let ends = |row: &Record| row.end_ns.unwrap() - row.sent_ns.unwrap() == 30_000_000;
    assert!(rows.iter().all(|row| left(row) && ends(row)));
}

#[test]
fn a_refused_attempt_comes_back_when_the_server_would_have_said() {
    let spec = format!(
        "requests = 3\n[arrivals.waves]\nsize = 3\nevery_s = 1\n{ONE_SIZE}\
         [retry]\nattempts_max = 3\nreserve = 9\nbackoff_ms = 100\n"
    );
    let settings = [&DEVICE[..], &["max_batch=1", "queue_cap=1"]].concat();
    let rows = rows_of(&spec, &settings);
    let outcomes = rows
        .iter()
        .map(|row| (row.request, row.attempt, row.outcome, row.retried));
    let outcomes = outcomes.collect::<Vec<_>>();
    use Outcome::{Ok, Refused};
    // One runs and one waits; the third is refused and comes back within 100 ms of its hint.
    assert_eq!(outcomes[0], (0, 0, Ok, false));
    assert_eq!(outcomes[1], (1, 0, Ok, false));
    assert_eq!(outcomes[2], (2, 0, Refused, true));
    assert_eq!(outcomes[3..], [(2, 1, Ok, false)]);
    let first = rows.iter().find(|row| row.outcome == Refused).unwrap();
    assert_eq!(
        (first.status, first.cause.as_deref()),
        (Some(429), Some("overloaded"))
    );
    for pair in rows.windows(2).filter(|pair| pair[0].retried) {
        let wait = pair[1].scheduled_ns - pair[0].end_ns.unwrap();
        let hint = pair[0].retry_after_ms.map_or(0, |ms| ms * 1_000_000);
        assert!(hint % 1_000_000_000 == 0, "a header counts whole seconds");
        assert!(wait >= hint && wait <= hint + 100_000_000);
        assert_eq!(pair[1].sent_ns, Some(pair[1].scheduled_ns));
    }
}

#[test]
fn a_deadline_counts_from_the_first_attempt() {
    let spec = format!(
        "requests = 4\n[arrivals.waves]\nsize = 4\nevery_s = 1\n{ONE_SIZE}\
         [[classes]]\nname = \"paid\"\ndeadline_ms = 130\n\
         retry = {{ attempts_max = 9, reserve = 99, backoff_ms = 40, backoff_ms_max = 40 }}\n"
    );
    let settings = [&DEVICE[..], &["max_batch=1", "queue_cap=1"]].concat();
    let rows = rows_of(&spec, &settings);
    assert!(rows.iter().any(|row| row.attempt > 0));
    assert!(rows.iter().all(|row| row.end_ns.unwrap() <= 130_000_000));
    let late = rows
        .iter()
        .filter(|row| row.cause.as_deref() == Some("deadline"));
    assert!(late.count() > 0);
}

#[test]
fn the_way_through_the_edge_delays_what_a_client_does_next() {
    let spec = format!("requests = 2\n[arrivals.closed]\nclients = 1\n{ONE_SIZE}");
    let workload = Workload::new(Spec::parse("test", &spec).unwrap(), Path::new(".")).unwrap();
    let mut rows = Vec::new();
    let edge = Span::from_millis(3);
    simulate(&workload, &server(&DEVICE), edge, |row| rows.push(row)).unwrap();
    let seen = rows.iter().map(times).collect::<Vec<_>>();
    let expected = [
        (0, 0, vec![23, 33, 43, 53], 53),
        (53, 53, vec![76, 86, 96, 106], 106),
    ];
    assert_eq!(seen, expected);
    // What the scheduler says of itself is not delayed.
    assert_eq!(rows[0].timings.unwrap().prefill_ms, Some(20.0));
}

#[test]
fn a_warm_up_has_no_rows_and_warms() {
    let shared = "[[prompts]]\nname = \"one\"\ntokens = { fixed = 8 }\noutput_tokens = { fixed = 2 }\n\
        prefix = { tokens = 64, variants = 1 }\n";
    let spec = format!("requests = 1\n[arrivals.constant]\nrate_per_s = 1\n{shared}");
    let cold = rows_of(&spec, &DEVICE);
    let warm = rows_of(&format!("{spec}[measure]\nwarmup_requests = 2\n"), &DEVICE);
    assert_eq!((cold.len(), warm.len()), (1, 1));
    assert_eq!((cold[0].scheduled_ns, warm[0].scheduled_ns), (0, 0));
    assert_eq!(
        (cold[0].cached_tokens, warm[0].cached_tokens),
        (Some(0), Some(0))
    );
    assert_eq!(cold[0].end_ns, warm[0].end_ns);
}

#[test]
fn what_a_simulation_cannot_do_is_refused() {
    for (part, key) in [
        ("[request.extra]\nbest_of = 2\n", "request.extra"),
        ("[[classes]]\nname = \"gold\"\n", "no class \"gold\""),
    ] {
        let spec = format!("[arrivals.poisson]\nrate_per_s = 1\n{ONE_SIZE}{part}");
        let workload = Workload::new(Spec::parse("test", &spec).unwrap(), Path::new(".")).unwrap();
        let refused = simulate(&workload, &server(&[]), Span::ZERO, |_| {});
        let error: SimulateError = refused.unwrap_err();
        assert!(error.to_string().contains(key), "{error}");
    }
}
