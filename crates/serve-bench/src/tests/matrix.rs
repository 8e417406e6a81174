//! The committed matrix: what is said in its tables is computed again from the rows that are committed
//! with it. A number that drifts fails here.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::experiments::matrix::{self, Effort, Outcome, Plan};
use crate::experiments::series::{Series, Servers};
use crate::experiments::servers::{Program, Settings};
use tokio::sync::watch;

/// The sections whose rows are committed.
const COMMITTED: [&str; 5] = ["batching", "steps", "concurrency-8", "waves", "kv"];

fn docs(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../../docs")
        .join(name)
}

/// The matrix as the command makes it, where every point is there and no server can be started.
async fn again() -> Outcome {
    let servers = Servers::Started {
        program: Program {
            path: "/nowhere/serve".into(),
            load_timeout: Duration::ZERO,
        },
        base: Settings::default()
            .with("backend", "mock")
            .with("mock_speed", "2"),
    };
    let (_keep, stop) = watch::channel(false);
    let out = docs("benchmarks/matrix-mock");
    let mut series = Series::new(servers, &out, Path::new(""), stop);
    let plan = Plan {
        effort: Effort::Full,
        only: COMMITTED.map(str::to_owned).to_vec(),
        budget: None,
        price_per_hour: None,
    };
    matrix::measure(&mut series, &plan).await.unwrap()
}

#[tokio::test]
async fn the_committed_tables_are_computed_again_to_the_digit() {
    let outcome = again().await;
    assert!(outcome.missing.is_empty(), "{:?}", outcome.missing);
    let committed = fs::read_to_string(docs("benchmarks/matrix-mock/matrix.json")).unwrap();
    for section in &outcome.sections {
        let text = serde_json::to_string_pretty(section).unwrap();
        // As deep as a section lies in the file.
        let text = text.replace('\n', "\n    ");
        assert!(
            committed.contains(&text),
            "{}: matrix.json must hold\n{text}",
            section.name
        );
        assert!(section.not_shown.is_empty() && section.void.is_empty());
    }
    let page = fs::read_to_string(docs("benchmarks.md")).unwrap();
    for row in matrix::headlines(&outcome).markdown().lines().skip(2) {
        let is_row = row.starts_with('|');
        assert!(!is_row || page.contains(row), "docs/benchmarks.md: {row}");
    }
}
