//! Each benchmark at a small size.

use serve_core::Time;
use serve_sched::sim::Row;

use serve_bench::workload::trace::recorded;

use super::cases::{Crowd, Decoding, simulate_poisson};
use super::trace;

#[test]
fn every_case_runs_at_a_small_size() {
    let mut crowd = Crowd::new(100);
    let fresh = crowd.requests(5);
    fresh.into_iter().for_each(|request| crowd.submit(request));
    crowd
        .some_ids(20)
        .into_iter()
        .for_each(|id| crowd.cancel(id));

    let mut decoding = Decoding::new(3, 5, 40);
    (0..50).for_each(|_| decoding.step());

    for reuse_prefixes in [false, true] {
        let rows = simulate_poisson(200, reuse_prefixes);
        assert_eq!(rows.len(), 200);
        assert!(rows.iter().all(Row::is_finished));
    }
}

/// The rows of a file with this text.
fn simulated(name: &str, text: &str) -> Vec<Row> {
    let name = format!("speed-sim-{name}-{}", std::process::id());
    let path = std::env::temp_dir().join(name);
    std::fs::write(&path, text).unwrap();
    let trace = recorded(&path);
    std::fs::remove_file(path).unwrap();
    trace::simulate(&trace.unwrap())
}

#[test]
fn both_layouts_of_a_trace_are_simulated() {
    let azure = "TIMESTAMP,ContextTokens,GeneratedTokens\n\
                 2023-11-30 23:59:58.6805900,374,44\n\
                 2023-12-01 00:00:02.9951690,396,109\n";
    let rows = simulated("azure", azure);
    assert_eq!(rows[0].usage.prompt_tokens, 374);
    assert_eq!(rows[1].arrival, Time::from_nanos(4_314_579_000));

    let mooncake = "{\"t\":0,\"i\":1100,\"o\":3,\"h\":[[0,2],[9,1]]}\n\
                    {\"t\":9000,\"i\":1030,\"o\":2,\"h\":[[0,2],[5,1]]}\n";
    let rows = simulated("mooncake", mooncake);
    assert_eq!(rows[1].usage.cached_tokens, 1_024);
}
