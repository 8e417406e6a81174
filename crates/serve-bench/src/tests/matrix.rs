//! The committed matrix: what is said in its tables is computed again from the rows that are committed
//! with it. A number that drifts fails here.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::experiments::matrix::{self, Effort, Measured, Plan};
use crate::experiments::series::{Series, Servers};
use crate::experiments::servers::{Program, ServerSettings};
use tokio::sync::watch;

/// The folders that are committed, and the sections whose rows are.
const COMMITTED: [(&str, &[&str]); 2] = [
    (
        "matrix-mock",
        &["batching", "steps", "concurrency-8", "waves", "kv"],
    ),
    ("matrix-promises", &["limits", "tenants"]),
];

fn docs(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../../docs")
        .join(name)
}

/// The matrix as the command makes it, where every point is there and no server can be started.
async fn again(folder: &str, sections: &[&str]) -> Measured {
    let servers = Servers::Started {
        program: Program {
            path: "/nowhere/serve".into(),
            load_timeout: Duration::ZERO,
        },
        base: ServerSettings::default()
            .with("backend", "mock")
            .with("mock_speed", "2"),
    };
    let (_keep, stop) = watch::channel(false);
    let out = docs("benchmarks").join(folder);
    let mut series = Series::new(servers, &out, Path::new(""), stop);
    let plan = Plan {
        effort: Effort::Full,
        only: sections.iter().map(ToString::to_string).collect(),
        budget: None,
        price_per_hour: None,
    };
    matrix::measure(&mut series, &plan).await.unwrap()
}

#[tokio::test]
async fn the_committed_tables_are_computed_again_to_the_digit() {
    let page = fs::read_to_string(docs("benchmarks.md")).unwrap();
    for (folder, sections) in COMMITTED {
        let outcome = again(folder, sections).await;
        assert!(outcome.missing.is_empty(), "{:?}", outcome.missing);
        let path = docs("benchmarks").join(folder).join("matrix.json");
        let committed = fs::read_to_string(path).unwrap();
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
        let headlines = matrix::headlines(&outcome).markdown();
        for row in headlines.lines().skip(2) {
            let is_row = row.starts_with('|');
            assert!(!is_row || page.contains(row), "docs/benchmarks.md: {row}");
        }
    }
}

/// What is quoted of the sections without a published experiment: their own numbers.
#[tokio::test]
async fn the_page_quotes_the_promises_as_they_were_measured() {
    let page = fs::read_to_string(docs("benchmarks.md")).unwrap();
    let (folder, sections) = COMMITTED[1];
    let outcome = again(folder, sections).await;
    let tables = outcome.sections.iter().flat_map(|section| &section.tables);
    let mut quoted = 0;
    for row in tables.flat_map(|table| &table.rows) {
        let [what, .., off, on, factor] = &row[..] else {
            panic!("{row:?}");
        };
        let line = format!("| {what} | {off} | {on} | {factor} |");
        assert!(page.contains(&line), "docs/benchmarks.md: {line}");
        quoted += 1;
    }
    assert_eq!(quoted, 2 * 4 + 2 * 2 * 3);
}
