//! A workload in virtual time: rows like those of a measured run.

use std::collections::BTreeMap;
use std::path::Path;

use serve_bench::record::{Outcome, Record};
use serve_bench::servers::Settings;
use serve_bench::simulate::{ServerModel, SimulateError, simulate};
use serve_bench::spec::Spec;
use serve_bench::workload::Workload;

fn rows_of(spec: &str, settings: &[&str]) -> Vec<Record> {
    let workload = Workload::new(Spec::parse("test", spec).unwrap(), Path::new(".")).unwrap();
    let mut rows = Vec::new();
    simulate(&workload, &server(settings), |row| rows.push(row)).unwrap();
    rows.sort_by_key(|row| row.request);
    rows
}

fn server(settings: &[&str]) -> ServerModel {
    let settings = settings
        .iter()
        .map(|text| text.parse::<Settings>().unwrap());
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
            .all(|row| row.simulated && row.outcome == Outcome::Ok)
    );
    assert_eq!(rows[1].client, Some(0));
    assert_eq!(
        (rows[0].prompt_tokens, rows[0].output_tokens),
        (Some(10), Some(4))
    );
}

#[test]
fn every_request_has_its_row_whatever_becomes_of_it() {
    // A wave of 40 on one slot and 8 places, with a deadline for some and little patience for all.
    let spec = format!(
        "requests = 40\n[arrivals.waves]\nsize = 40\nevery_s = 100\n{ONE_SIZE}\
         [[classes]]\nname = \"paid\"\n[[classes]]\nname = \"free\"\ndeadline_ms = 120\n\
         [measure]\ntimeout_s = 0.3\n"
    );
    let settings = [
        &DEVICE[..],
        &["max_batch=1", "queue_cap=20", "order=strict-tiers"],
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
        19,
        "one runs and 20 wait: {by_cause:?}"
    );
    assert!(of("Failed", Some("timeout")) > 0 && of("Failed", Some("deadline_exceeded")) > 0);
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

#[test]
fn what_a_simulation_cannot_do_is_refused() {
    for (part, key) in [
        ("[retry]\nattempts_max = 3\n", "retry"),
        (
            "[[classes]]\nname = \"free\"\ncancel = { probability = 0.5, after_tokens = { fixed = 2 } }\n",
            "cancel.after_tokens",
        ),
        ("[[classes]]\nname = \"gold\"\n", "no class \"gold\""),
    ] {
        let spec = format!("[arrivals.poisson]\nrate_per_s = 1\n{ONE_SIZE}{part}");
        let workload = Workload::new(Spec::parse("test", &spec).unwrap(), Path::new(".")).unwrap();
        let error: SimulateError = simulate(&workload, &server(&[]), |_| {}).unwrap_err();
        assert!(error.to_string().contains(key), "{error}");
    }
}
