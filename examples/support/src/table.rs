//! A small aligned table, and how numbers look in it.

use std::fmt;

use serde_json::{Map, Value, json};
use serve_core::Span;

/// Rows under headings. The first column is text and is aligned left; the others hold numbers and
/// are aligned right.
#[derive(Clone, Debug)]
pub struct Table {
    lines: Vec<Vec<Cell>>,
}

/// What is shown, and where it is a number that differed from run to run, the least and the most that it came to.
#[derive(Clone, Debug, Default)]
struct Cell {
    shown: String,
    range: Option<Range>,
}

/// As digits, so that they have the decimals of the number beside them.
#[derive(Clone, Debug)]
struct Range {
    least: String,
    most: String,
}

impl Table {
    /// A table with headings and no rows.
    ///
    /// # Panics
    ///
    /// When two headings are the same: then a program could not tell their columns apart.
    pub fn new<const N: usize>(headings: [&str; N]) -> Self {
        let mut names = headings.to_vec();
        names.sort_unstable();
        assert!(
            names.windows(2).all(|pair| pair[0] != pair[1]),
            "{headings:?}"
        );
        Self {
            lines: vec![
                headings
                    .map(|heading| Cell::of(heading.to_owned()))
                    .to_vec(),
            ],
        }
    }

    /// Adds a row.
    pub fn row<const N: usize>(&mut self, cells: [String; N]) {
        self.lines.push(cells.map(Cell::of).to_vec());
    }

    /// Has each number tell the least and the most of itself and its like in `other`, a table of the same rows.
    pub fn widen(&mut self, other: &Self) {
        for (own, others) in self.lines.iter_mut().zip(&other.lines).skip(1) {
            for (own, other) in own.iter_mut().zip(others).skip(1) {
                own.widen(other);
            }
        }
    }

    /// The table for a program: each row by the headings, numbers as they are shown, and their units with the
    /// headings, as in `"p99 (s)": 1.08`.
    pub fn json(&self, title: &str) -> Value {
        let (headings, rows) = match self.lines.split_first() {
            Some((headings, rows)) => (headings.as_slice(), rows),
            None => (&[][..], &[][..]),
        };
        let row = |cells: &Vec<Cell>| {
            let cells = headings.iter().zip(cells).enumerate();
            let cells = cells.flat_map(|(column, (Cell { shown: heading, .. }, cell))| {
                let (name, value) = match number(&cell.shown).filter(|_| column > 0) {
                    Some((number, "")) => (heading.clone(), json!(number)),
                    Some((number, unit)) => (format!("{heading} ({unit})"), json!(number)),
                    None => (heading.clone(), json!(cell.shown)),
                };
                let digits = |text: &str| json!(text.parse::<f64>().ok());
                let range = cell.range.iter().flat_map(|Range { least, most }| {
                    [
                        (format!("{name}, least"), digits(least)),
                        (format!("{name}, most"), digits(most)),
                    ]
                });
                let range: Vec<_> = range.collect();
                std::iter::once((name, value)).chain(range)
            });
            Value::Object(Map::from_iter(cells))
        };
        let rows: Vec<Value> = rows.iter().map(row).collect();
        json!({ "title": title, "rows": rows })
    }
}

impl Cell {
    fn of(shown: String) -> Self {
        Self { shown, range: None }
    }

    fn widen(&mut self, other: &Self) {
        let (own, rest) = split(&self.shown);
        let (others, unlike) = split(&other.shown);
        let (Ok(_), Ok(another)) = (own.parse::<f64>(), others.parse::<f64>()) else {
            return;
        };
        // Of other units, or of another number of requests: not to be compared.
        if rest != unlike {
            return;
        }
        let (mut least, mut most) = match &self.range {
            Some(Range { least, most }) => (least.clone(), most.clone()),
            None => (own.to_owned(), own.to_owned()),
        };
        if least.parse().is_ok_and(|least: f64| another < least) {
            least = others.to_owned();
        }
        if most.parse().is_ok_and(|most: f64| another > most) {
            most = others.to_owned();
        }
        self.range = (least != most).then_some(Range { least, most });
    }
}

impl fmt::Display for Cell {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.shown)?;
        match &self.range {
            Some(Range { least, most }) => write!(f, " ({least}..{most})"),
            None => Ok(()),
        }
    }
}

/// The digits that a cell begins with, and what follows them.
fn split(cell: &str) -> (&str, &str) {
    let end = cell.find(|letter: char| !letter.is_ascii_digit() && !matches!(letter, '.' | '-'));
    cell.split_at(end.unwrap_or(cell.len()))
}

/// A cell's number and its unit, if it is nothing else.
fn number(cell: &str) -> Option<(f64, &str)> {
    let (digits, unit) = split(cell);
    let unit = unit.strip_prefix(' ').unwrap_or(unit);
    let is_unit = unit
        .chars()
        .all(|letter| letter.is_alphabetic() || matches!(letter, '%' | '/'));
    Some((digits.parse().ok().filter(|_| is_unit)?, unit))
}

impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let columns = self.lines.iter().map(Vec::len).max().unwrap_or(0);
        let texts = |line: &Vec<Cell>| line.iter().map(Cell::to_string).collect();
        let lines: Vec<Vec<String>> = self.lines.iter().map(texts).collect();
        let width = |column: usize| {
            let cells = lines.iter().filter_map(|line| line.get(column));
            cells.map(|cell| cell.chars().count()).max().unwrap_or(0)
        };
        let widths: Vec<usize> = (0..columns).map(width).collect();
        for (number, line) in lines.iter().enumerate() {
            for (column, (cell, &width)) in line.iter().zip(&widths).enumerate() {
                match column {
                    0 => write!(f, "{cell:<width$}")?,
                    _ => write!(f, "  {cell:>width$}")?,
                }
            }
            writeln!(f)?;
            if number == 0 {
                let all = widths.iter().sum::<usize>() + 2 * columns.saturating_sub(1);
                writeln!(f, "{}", "-".repeat(all))?;
            }
        }
        Ok(())
    }
}

/// Seconds with two decimals.
pub fn secs(span: Span) -> String {
    format!("{:.2} s", span.as_secs_f64())
}

/// Whole milliseconds.
pub fn ms(span: Span) -> String {
    format!("{:.0} ms", span.as_millis_f64())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_as_wide_as_their_widest_cell() {
        let mut table = Table::new(["order", "wait"]);
        table.row(["fifo".to_owned(), secs(Span::from_millis(12_340))]);
        table.row(["tiers".to_owned(), ms(Span::from_micros(900))]);
        let lines = [
            "order     wait",
            "--------------",
            "fifo   12.34 s",
            "tiers     1 ms",
        ];
        assert_eq!(
            table.to_string(),
            lines.map(|line| format!("{line}\n")).concat()
        );
    }

    #[test]
    #[should_panic = "wait"]
    fn no_two_columns_have_the_same_heading() {
        Table::new(["order", "wait", "p99", "wait"]);
    }

    #[test]
    fn a_program_gets_numbers_with_their_units_in_the_headings() {
        let mut table = Table::new(["7 s", "wait", "gain", "met", "of all", "rate", "count"]);
        let cells = [
            "7 s",
            "12.34 s",
            "1.5x",
            "93.0%",
            "6 of 20",
            "7.1 req/s",
            "12",
        ];
        table.row(cells.map(str::to_owned));
        let expected = json!({"title": "t", "rows": [{
            "7 s": "7 s", "wait (s)": 12.34, "gain (x)": 1.5, "met (%)": 93.0, "of all": "6 of 20",
            "rate (req/s)": 7.1, "count": 12.0,
        }]});
        assert_eq!(table.json("t"), expected);
        assert_eq!(number("-"), None);
    }
}
