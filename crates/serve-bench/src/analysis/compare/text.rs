//! A comparison in words.

use super::measure::Measure;
use super::{Comparison, Line};
use crate::analysis::table::{Table, number, percent};

/// The verdict, what it rests on, and a table.
pub(crate) fn text(comparison: &Comparison) -> String {
    let mut out = String::new();
    if let Some((word, _)) = comparison.source.warning() {
        let source = comparison.source.name();
        out.push_str(&format!(
            "{word:<11} rows that are {source} are among these\n"
        ));
    }
    out.push_str(&format!("B is {}\n", comparison.verdict));
    match &comparison.differences[..] {
        [] => out.push_str("the manifests agree in every layer\n"),
        differences => {
            for difference in differences {
                out.push_str(&format!("differs     {difference}\n"));
            }
        }
    }
    out.push('\n');
    out.push_str(&table(comparison).text());
    out
}

/// One row for each measure.
pub(crate) fn table(comparison: &Comparison) -> Table {
    let interval = format!("{}% interval", comparison.confidence * 100.0);
    let columns = ["measure", "A", "B", "B against A", &interval, "B is"];
    let mut table = Table::new("times in ms, of answered requests", &columns);
    for line in &comparison.lines {
        let bounds = line.interval.map(|[low, high]| {
            format!(
                "{} to {}",
                change(line.measure, low),
                change(line.measure, high)
            )
        });
        table.row([
            line.measure.to_string(),
            value(line, line.a),
            value(line, line.b),
            line.change.map_or_else(dash, |it| change(line.measure, it)),
            bounds.unwrap_or_else(dash),
            line.verdict.to_string(),
        ]);
    }
    let answered = comparison
        .lines
        .iter()
        .find(|line| line.measure == Measure::Answered);
    let gap = answered.and_then(|line| Some((line.a? - line.b?).abs()));
    if gap.is_some_and(|gap| gap > 0.01) {
        table.note(
            "A and B did not answer the same share, so their times are not of the same requests",
        );
    }
    table.note(format!("units: {}", comparison.units));
    table.note("all intervals together hold with this confidence; `no difference shown` is not `no difference`");
    table
}

fn value(line: &Line, value: Option<f64>) -> String {
    match line.measure.is_time() {
        true => number(value),
        false => percent(value),
    }
}

/// A ratio in percent, or a difference of shares in percentage points.
fn change(measure: Measure, change: f64) -> String {
    let unit = if measure.is_time() { "%" } else { " pp" };
    format!("{:+.1}{unit}", change * 100.0)
}

fn dash() -> String {
    "-".to_owned()
}
