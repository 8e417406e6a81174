//! A small aligned table, and how numbers look in it.

use std::fmt;

use serve_core::Span;

/// Rows under headings. The first column is text and is aligned left; the others hold numbers and
/// are aligned right.
#[derive(Clone, Debug)]
pub struct Table {
    lines: Vec<Vec<String>>,
}

impl Table {
    /// A table with headings and no rows.
    pub fn new<const N: usize>(headings: [&str; N]) -> Self {
        Self {
            lines: vec![headings.map(str::to_owned).to_vec()],
        }
    }

    /// Adds a row.
    pub fn row<const N: usize>(&mut self, cells: [String; N]) {
        self.lines.push(Vec::from(cells));
    }
}

impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let columns = self.lines.iter().map(Vec::len).max().unwrap_or(0);
        let width = |column: usize| {
            let cells = self.lines.iter().filter_map(|line| line.get(column));
            cells.map(|cell| cell.chars().count()).max().unwrap_or(0)
        };
        let widths: Vec<usize> = (0..columns).map(width).collect();
        for (number, line) in self.lines.iter().enumerate() {
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

/// Prints a table under its title.
#[expect(clippy::print_stdout, reason = "an example prints its table")]
pub fn show(title: &str, table: &Table) {
    println!("{title}\n\n{table}");
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
}
