//! Whatever is simulated: every attempt has a row, and the same seed gives the same rows.

use proptest::prelude::*;
use serve_core::Span;

use super::*;
use crate::experiments::servers::ServerSettings;
use crate::transport::drive::testing::{any_workload, balance, workload};

fn rows_of(text: &str, settings: &str, edge: Span) -> Vec<Record> {
    let settings = settings.split_whitespace();
    let settings = settings.map(|text| text.parse::<ServerSettings>().unwrap());
    let model = ServerModel::new(&settings.collect()).unwrap();
    let mut rows = Vec::new();
    simulate(&workload(text), &model, edge, |row| rows.push(row)).unwrap();
    rows.sort_by_key(|row| (row.request, row.attempt));
    rows
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, ..ProptestConfig::default() })]

    #[test]
    fn every_attempt_is_accounted_for_and_fixed_by_the_seed(
        text in any_workload(),
        batch in 1..4_u32,
        queue_cap in 1..6_u32,
        edge_us in prop_oneof![Just(0_u64), 1..20_000_u64],
        warmup in 0..3_u32,
    ) {
        let device = "mock_decode_us=1=10000 mock_prefill_us=1000 classes=c";
        let settings = format!("{device} max_batch={batch} queue_cap={queue_cap}");
        let edge = Span::from_micros(edge_us);
        let text = format!("{text}[measure]\nwarmup_requests = {warmup}\n");
        let rows = rows_of(&text, &settings, edge);
        balance(&rows, workload(&text).requests())?;
        prop_assert_eq!(rows, rows_of(&text, &settings, edge));
    }
}
