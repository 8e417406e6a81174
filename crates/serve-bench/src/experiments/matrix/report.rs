//! A matrix as a page: headlines first, then each section with its proofs.

use std::collections::BTreeSet;
use std::time::SystemTime;

use super::beside::headlines as table_of;
use super::{Measured, Section};
use crate::analysis::summary::Fact;
use crate::analysis::table::Table;
use crate::experiments::servers::ServerSettings;
use crate::report::html::{self, Report, ReportError};
use crate::store::command::CommandLine;
use crate::store::hardware::Hardware;

/// The page of a matrix whose servers all have the settings `base`, made by this process.
///
/// # Errors
///
/// [`ReportError::Draw`].
pub(crate) fn report(outcome: &Measured, base: &ServerSettings) -> Result<Report, ReportError> {
    let mut sections = vec![html::Section {
        title: "headlines".to_owned(),
        text: "the numbers that the published experiments open with, and the same pairs here"
            .to_owned(),
        tables: vec![headlines(outcome)],
        ..html::Section::default()
    }];
    for section in &outcome.sections {
        let figures = section.charts.iter().map(|chart| chart.figure());
        sections.push(html::Section {
            title: section.name.clone(),
            text: section.question.clone(),
            tables: tables(section),
            figures: figures.collect::<Result<_, _>>()?,
            ..html::Section::default()
        });
    }
    Ok(Report {
        title: "Control matrix: one setting apart, beside what others have published".to_owned(),
        labels: mock(base).into_iter().chain(labels(outcome)).collect(),
        facts: facts(outcome, base),
        sections,
    })
}

/// The tables of a section: what was measured, what is void of it, and what was proved before.
pub(crate) fn tables(section: &Section) -> Vec<Table> {
    let measured = section.tables.iter().cloned();
    let about = undelivered(section).into_iter().chain(proofs(section));
    measured.chain(about).collect()
}

/// The headlines of all sections.
pub(crate) fn headlines(outcome: &Measured) -> Table {
    let sections = outcome.sections.iter();
    table_of(sections.flat_map(|section| {
        let pairs = section.headlines.iter();
        pairs.map(|pair| (section.name.as_str(), pair))
    }))
}

/// What a mock's numbers are not.
fn mock(base: &ServerSettings) -> Option<Fact> {
    let speed = base.get("mock_speed").unwrap_or("1");
    (base.get("backend") == Some("mock")).then(|| {
        let text = format!(
            "the device is a mock: it sleeps as long as the steps of a cost model take (by default those \
             measured on an NVIDIA L4), {speed} times as fast. Server, scheduler, network and client are \
             real; no number here is of a model or of a GPU"
        );
        ("MOCK", text)
    })
}

/// What must be said before any number.
pub(crate) fn labels(outcome: &Measured) -> Vec<Fact> {
    let missing = outcome.missing.iter();
    let missing = missing.map(|(name, why)| ("NOT MEASURED", format!("{name}: {why}")));
    let not_shown = outcome.sections.iter().flat_map(|section| {
        let of = section.not_shown.iter();
        of.map(|it| {
            (
                "NOT SHOWN",
                format!("{}: {}; seen: {}", section.name, it.what, it.seen),
            )
        })
    });
    missing.chain(not_shown).chain(void(outcome)).collect()
}

/// One label for all loads that were not delivered; why stands in their sections.
fn void(outcome: &Measured) -> Option<Fact> {
    let void = outcome.sections.iter().flat_map(|section| &section.void);
    let points = void
        .map(|(point, _)| point.as_str())
        .collect::<BTreeSet<_>>();
    (!points.is_empty()).then(move || {
        let count = points.len();
        let names = points.into_iter().collect::<Vec<_>>().join(", ");
        let text = format!(
            "{count} loads were not delivered, and their numbers are the client's as much as the server's: {names}"
        );
        ("VOID", text)
    })
}

/// Which loads of a section were not delivered, and why.
fn undelivered(section: &Section) -> Option<Table> {
    let mut table = Table::new("VOID: not delivered", &["load", "why"]);
    for (point, why) in &section.void {
        table.row([point, why]);
    }
    (!section.void.is_empty()).then_some(table)
}

fn facts(outcome: &Measured, base: &ServerSettings) -> Vec<Fact> {
    let scale = &outcome.scale;
    vec![
        ("server", base.to_string()),
        ("machine", Hardware::of_this_machine(true).to_string()),
        (
            "scale",
            format!(
                "a request alone: first token {:.1} ms, answer {:.1} ms; all places taken: {:.2} answers/s",
                scale.first_token_s * 1e3,
                scale.answer_s * 1e3,
                scale.capacity_per_s
            ),
        ),
        ("program", program()),
        ("command", CommandLine::of_this_process().to_string()),
        (
            "written",
            humantime::format_rfc3339_seconds(SystemTime::now()).to_string(),
        ),
    ]
}

fn program() -> String {
    let commit = option_env!("SERVE_BENCH_COMMIT").unwrap_or("of no known commit");
    format!("serve-bench {}, {commit}", env!("CARGO_PKG_VERSION"))
}

/// How the conditions of a section differ, by the servers' own words.
fn proofs(section: &Section) -> Option<Table> {
    let columns = ["pair", "the one setting", "off", "on"];
    let mut table = Table::new(
        "proved before measuring, from GET /v1/config and the workloads",
        &columns,
    );
    for proof in &section.proofs {
        let difference = &proof.difference;
        let cells = [
            &proof.pair,
            &difference.name,
            &difference.off,
            &difference.on,
        ];
        table.row(cells.map(String::as_str));
    }
    (!section.proofs.is_empty()).then_some(table)
}
