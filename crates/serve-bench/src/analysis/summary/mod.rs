//! An analysis as lines and tables: what the terminal and the report both show.

mod facts;

pub use facts::{Fact, facts, labels};

use crate::analysis::Analysis;
use crate::analysis::definitions::{self, Metric};
use crate::analysis::group::{Group, Percentile};
use crate::analysis::table::{Table, number, percent};
use crate::store::manifest::Source;

/// The percentiles of every metric, over all requests.
pub fn times(analysis: &Analysis) -> Table {
    let columns = ["metric", "values", "p50", "p90", "p95", "p99", "p99 of all"];
    let mut table = Table::new("times in ms [95% interval]", &columns);
    let all = analysis.all();
    for distribution in &all.distributions {
        let percentiles = &distribution.percentiles;
        let mut cells = vec![
            distribution.metric.name().to_owned(),
            distribution.count.to_string(),
        ];
        cells.extend(percentiles.iter().map(cell));
        cells.push(of_all(distribution.metric, &percentiles[3]));
        table.row(cells);
    }
    let requests = &all.requests;
    table.note(format!(
        "times are of the {} answered of {} requests: {} were refused, {} failed, {} unfinished",
        requests.ok,
        requests.scheduled(),
        requests.refused,
        requests.failed,
        requests.unfinished(),
    ));
    let thin = all.distributions.iter().flat_map(|it| &it.percentiles);
    if thin.into_iter().any(Percentile::is_thin) {
        table.note("* fewer than 10 values lie beyond it");
    }
    table.note(format!(
        "interval: {} draws with seed {}, {}",
        analysis.bootstrap.resamples, analysis.bootstrap.seed, analysis.scheme
    ));
    table
}

fn cell(percentile: &Percentile) -> String {
    let mark = if percentile.is_thin() { "*" } else { "" };
    let value = number(percentile.estimate.value);
    match percentile.estimate.interval {
        Some([low, high]) => {
            format!(
                "{value}{mark} [{}, {}]",
                number(Some(low)),
                number(Some(high))
            )
        }
        None => format!("{value}{mark}"),
    }
}

fn of_all(metric: Metric, percentile: &Percentile) -> String {
    match (metric, percentile.of_all) {
        (Metric::Ttft | Metric::TtftSent | Metric::E2e | Metric::E2eSent, None) => {
            "never".to_owned()
        }
        (_, value) => number(value),
    }
}

/// One row for each part of the workload; `None` where there is but one.
pub fn parts(analysis: &Analysis) -> Option<Table> {
    if analysis.groups.len() < 2 {
        return None;
    }
    let columns = [
        "part",
        "requests",
        "ok",
        "refused",
        "failed",
        "unfinished",
        "good",
        "TTFT p50",
        "TTFT p99",
        "TPOT p50",
        "E2E p50",
        "E2E p99",
    ];
    let mut table = Table::new("parts of the workload, times in ms", &columns);
    for group in &analysis.groups {
        table.row(part(group));
    }
    let cuts = [analysis.cuts.prompt_tokens, analysis.cuts.output_tokens];
    if let [Some(prompt), Some(output)] = cuts {
        table.note(format!(
            "long in: more than {prompt} prompt tokens; long out: more than {output} allowed output tokens"
        ));
    }
    Some(table)
}

fn part(group: &Group) -> Vec<String> {
    let requests = &group.requests;
    let mut cells = vec![group.key.to_string()];
    let counts = [
        requests.scheduled(),
        requests.ok,
        requests.refused,
        requests.failed,
        requests.unfinished(),
    ];
    cells.extend(counts.map(|count| count.to_string()));
    cells.push(group.good_cell());
    let columns = [
        (Metric::Ttft, 0),
        (Metric::Ttft, 3),
        (Metric::Tpot, 0),
        (Metric::E2e, 0),
        (Metric::E2e, 3),
    ];
    cells.extend(columns.map(|(metric, at)| {
        let percentile = group.distribution(metric).map(|it| &it.percentiles[at]);
        percentile.map_or_else(
            || "-".to_owned(),
            |it| {
                let mark = if it.is_thin() { "*" } else { "" };
                format!("{}{mark}", number(it.estimate.value))
            },
        )
    }));
    cells
}

/// Several analyses beside each other, one row each.
pub fn beside<'a>(groups: impl IntoIterator<Item = (&'a str, &'a Analysis)>) -> Table {
    let columns = [
        "run",
        "offered/s",
        "requests",
        "ok",
        "refused",
        "failed",
        "unfinished",
        "good",
        "tokens/s",
        "TTFT p50",
        "TTFT p99",
        "TPOT p50",
        "E2E p50",
        "E2E p99",
    ];
    let mut table = Table::new("times in ms", &columns);
    let groups = groups.into_iter().collect::<Vec<_>>();
    let missing = groups.iter().find_map(|(name, it)| {
        let missing = it.all().output_tokens.missing()?;
        Some(format!(
            "the server did not count every answer's tokens: {missing} in {name}"
        ))
    });
    let only_http = groups.iter().all(|(_, it)| it.source == Source::Http);
    for (name, analysis) in groups {
        let all = analysis.all();
        let mut cells = part(all);
        let source = match only_http {
            true => String::new(),
            false => format!(" ({})", analysis.source.name()),
        };
        let void = if analysis.is_void() { " (VOID)" } else { "" };
        cells[0] = format!("{name}{source}{void}");
        cells.insert(1, number(analysis.offered_per_s()));
        cells.insert(8, all.output_tokens.per_s(analysis.rates.wall_s));
        table.row(cells);
    }
    table.note("times are of answered requests, from the scheduled send; * fewer than 10 values lie beyond it");
    if let Some(note) = missing {
        table.note(note);
    }
    table
}

/// Who got how much, a table for tenants and one for classes.
pub fn fairness(analysis: &Analysis) -> Vec<Table> {
    let table = |fairness: &crate::analysis::fairness::Fairness| {
        let columns = [
            fairness.by,
            "requests",
            "answered",
            "share",
            "output tokens",
            "starved",
        ];
        let mut table = Table::new(format!("fairness between {} parts", fairness.by), &columns);
        for share in &fairness.shares {
            table.row([
                share.name.clone(),
                share.requests.to_string(),
                share.answered.to_string(),
                percent(Some(share.answered as f64 / share.requests.max(1) as f64)),
                share.output_tokens.cell(),
                share.starved.to_string(),
            ]);
        }
        table.note(format!(
            "Jain's index: {} of answered shares, {} of output tokens (1: all alike, {}: one has all)",
            number(fairness.jain_answered),
            number(fairness.jain_output_tokens),
            number(Some(1.0 / fairness.shares.len() as f64)),
        ));
        table.note(format!(
            "starved: {} ms or longer without a first token",
            number(Some(fairness.starved_after_ms)),
        ));
        table
    };
    analysis.fairness.iter().map(table).collect()
}

/// What each word means.
pub fn definitions() -> Table {
    let mut table = Table::new("definitions", &["word", "meaning"]);
    for definition in definitions::all() {
        table.row([definition.name, definition.meaning]);
    }
    table
}

/// Everything as plain text.
pub fn text(analysis: &Analysis) -> String {
    let mut out = String::new();
    for (word, said) in labels(analysis).into_iter().chain(facts(analysis)) {
        out.push_str(&format!("{word:<10} {said}\n"));
    }
    let tables = [Some(times(analysis)), parts(analysis)];
    for table in tables.into_iter().flatten().chain(fairness(analysis)) {
        out.push('\n');
        out.push_str(&table.text());
    }
    out.push('\n');
    let present = analysis.all().distributions.iter().map(|it| it.metric);
    for metric in present {
        out.push_str(&format!("{:<12} {}\n", metric.name(), metric.definition()));
    }
    out
}
