//! A table that is printed, put into a report, or pasted into a document: the same cells each time.

use serde::Serialize;

/// Rows under named columns, with what has to be said above and below.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Table {
    /// What it shows, with the unit.
    pub title: String,
    /// The names of the columns. A column of numbers is aligned right, any other left.
    pub columns: Vec<String>,
    /// As many cells each as there are columns.
    pub rows: Vec<Vec<String>>,
    /// What is true of the whole table.
    pub notes: Vec<String>,
}

impl Table {
    /// A table without rows.
    pub fn new(title: impl Into<String>, columns: &[&str]) -> Self {
        Self {
            title: title.into(),
            columns: columns.iter().map(|&name| name.to_owned()).collect(),
            ..Self::default()
        }
    }

    /// Adds a row.
    pub fn row(&mut self, cells: impl IntoIterator<Item = impl Into<String>>) {
        self.rows.push(cells.into_iter().map(Into::into).collect());
    }

    /// Adds a note.
    pub fn note(&mut self, note: impl Into<String>) {
        self.notes.push(note.into());
    }

    /// Plain text for a terminal, with a line end after each line.
    pub fn text(&self) -> String {
        let mut out = String::new();
        for line in [&self.title].into_iter().filter(|title| !title.is_empty()) {
            push_line(&mut out, line);
        }
        let lines = || [&self.columns].into_iter().chain(&self.rows);
        let width = |column: usize| {
            let cells = lines().filter_map(|cells| cells.get(column));
            cells.map(|cell| cell.chars().count()).max().unwrap_or(0)
        };
        let widths = (0..self.columns.len()).map(width).collect::<Vec<_>>();
        for cells in lines() {
            let padded = cells.iter().zip(&widths).enumerate();
            let padded = padded.map(|(column, (cell, &width))| match self.is_number(column) {
                false => format!("{cell:<width$}"),
                true => format!("{cell:>width$}"),
            });
            push_line(&mut out, &padded.collect::<Vec<_>>().join("  "));
        }
        for note in &self.notes {
            push_line(&mut out, note);
        }
        out
    }

    /// Markdown, with a line end after each line.
    pub fn markdown(&self) -> String {
        let mut out = String::new();
        let line = |cells: &[String]| {
            let cells = cells.iter().map(|cell| cell.replace('|', "\\|"));
            format!("| {} |", cells.collect::<Vec<_>>().join(" | "))
        };
        push_line(&mut out, &line(&self.columns));
        let align = |column| {
            if self.is_number(column) {
                "---:"
            } else {
                "---"
            }
        };
        let rule = (0..self.columns.len()).map(align);
        push_line(
            &mut out,
            &format!("|{}|", rule.collect::<Vec<_>>().join("|")),
        );
        for cells in &self.rows {
            push_line(&mut out, &line(cells));
        }
        for note in &self.notes {
            push_line(&mut out, &format!("\n{note}"));
        }
        out
    }

    /// Whether all cells of a column are numbers, or say that there is none.
    fn is_number(&self, column: usize) -> bool {
        let begins_so = |cell: &String| {
            let first = cell.chars().next();
            let number = first.is_none_or(|it| it.is_ascii_digit() || "+-$".contains(it));
            number || ["never", "unknown"].contains(&cell.as_str()) || cell.starts_with(">= ")
        };
        let mut cells = self.rows.iter().filter_map(|cells| cells.get(column));
        column > 0 && cells.all(begins_so)
    }
}

fn push_line(out: &mut String, line: &str) {
    out.push_str(line.trim_end());
    out.push('\n');
}

/// A number with three significant digits or all whole ones, such as `0.254`, `12.3` or `13204`;
/// a dash where there is none.
pub fn number(value: Option<f64>) -> String {
    let Some(value) = value else {
        return "-".to_owned();
    };
    let decimals = match value.abs() {
        size if size >= 99.95 => 0,
        size if size >= 9.995 => 1,
        size if size >= 0.9995 || size == 0.0 => 2,
        _ => 3,
    };
    format!("{value:.decimals$}")
}

/// A share as a percentage, such as `95.0%`.
pub fn percent(share: Option<f64>) -> String {
    share.map_or_else(|| "-".to_owned(), |share| format!("{:.1}%", share * 100.0))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table() -> Table {
        let mut table = Table::new("times in ms", &["metric", "p50", "p99", "it is"]);
        table.row(["TTFT", "1.50", "120", "better"]);
        table.row(["E2E", "11200", "-", "worse"]);
        table.note("a note");
        table
    }

    #[test]
    fn text_is_aligned() {
        let expected = "\
times in ms
metric    p50  p99  it is
TTFT     1.50  120  better
E2E     11200    -  worse
a note
";
        assert_eq!(table().text(), expected);
    }

    #[test]
    fn markdown_keeps_its_bars() {
        let mut table = table();
        table.row(["a|b", "1", "2", "so"]);
        let expected = "\
| metric | p50 | p99 | it is |
|---|---:|---:|---|
| TTFT | 1.50 | 120 | better |
| E2E | 11200 | - | worse |
| a\\|b | 1 | 2 | so |

a note
";
        assert_eq!(table.markdown(), expected);
    }

    #[test]
    fn numbers_have_three_digits_that_say_something() {
        let shown = [
            0.0, 0.2541, 0.9996, 1.0, 9.999, 12.34, 99.96, 13_204.4, -0.5,
        ];
        let shown = shown.map(|value| number(Some(value)));
        let expected = [
            "0.00", "0.254", "1.00", "1.00", "10.0", "12.3", "100", "13204", "-0.500",
        ];
        assert_eq!(shown, expected);
        assert_eq!(
            (number(None), percent(Some(0.5)), percent(None)),
            ("-".into(), "50.0%".into(), "-".into())
        );
    }
}
