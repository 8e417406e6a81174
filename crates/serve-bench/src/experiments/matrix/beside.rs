//! Tables with a published experiment beside ours: what it found off and on, what we find, and the
//! factor between off and on of both. Absolute numbers belong to the machine; factors can be compared.

use serde::Serialize;

use crate::analysis::table::{Table, number};
use crate::figure::Figure;

/// Where published numbers come from.
pub(super) const L4: &str =
    "published: Qwen2.5-1.5B on an NVIDIA L4, static batches of 8 (llm-serving-project)";
pub(super) const RTX_4090: &str = "published: Qwen2.5-0.5B on an RTX 4090, vLLM behind 1 or 8 workers (GPU-aware serving runtime)";
pub(super) const RTX_3090: &str = "published: Qwen2.5-7B-AWQ on an RTX 3090, vLLM 0.10.2, SLO 0.75 s TTFT and 0.10 s TPOT (llm-serving-lab)";
pub(super) const T4: &str = "published: Qwen2.5-1.5B on a T4, one lock around generation against vLLM (LLM Serving Mastery 1)";

/// A number off and on, published and ours.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct Pair {
    /// What it is of.
    pub what: String,
    /// Published, off and on, where there is a number.
    pub published: [Option<f64>; 2],
    /// Ours, off and on.
    pub ours: [Option<f64>; 2],
}

impl Pair {
    /// The cells of a row under [`COLUMNS`].
    fn cells(&self) -> [String; 7] {
        let [published, ours] = [self.published, self.ours];
        [
            self.what.clone(),
            number(published[0]),
            number(published[1]),
            factor(published),
            number(ours[0]),
            number(ours[1]),
            factor(ours),
        ]
    }
}

/// `x2.00` where on is twice off, `/2.00` where it is half of it.
fn factor(pair: [Option<f64>; 2]) -> String {
    match pair {
        [Some(off), Some(on)] if off > 0.0 && on >= off => format!("x{:.2}", on / off),
        [Some(off), Some(on)] if on > 0.0 => format!("/{:.2}", off / on),
        _ => "-".to_owned(),
    }
}

const COLUMNS: [&str; 7] = [
    "",
    "published off",
    "published on",
    "factor",
    "ours off",
    "ours on",
    "factor",
];

/// The pairs that a published experiment is known for, all in one table.
pub(super) fn headlines<'a>(pairs: impl IntoIterator<Item = (&'a str, &'a Pair)>) -> Table {
    let mut columns = COLUMNS.to_vec();
    columns[0] = "headline";
    columns.insert(0, "section");
    let mut table = Table::new("published headlines beside ours", &columns);
    for (section, pair) in pairs {
        table.row(std::iter::once(section.to_owned()).chain(pair.cells()));
    }
    table.note(
        "x: on is so many times off; /: on is off divided by so much. Absolute numbers belong to the \
         machine and the model; factors can be compared",
    );
    for source in [L4, RTX_4090, RTX_3090, T4] {
        table.note(source);
    }
    table
}

/// Published beside measured, off beside on.
pub(super) struct Beside {
    table: Table,
    numbers: Vec<Figure>,
    headlines: Vec<Pair>,
}

impl Beside {
    pub(super) fn new(title: &str) -> Self {
        Self {
            table: Table::new(title, &COLUMNS),
            numbers: Vec::new(),
            headlines: Vec::new(),
        }
    }

    /// A line in a unit; `-` where there is no number.
    pub(super) fn line(
        &mut self,
        what: &str,
        unit: &str,
        published: [Option<f64>; 2],
        ours: [Option<f64>; 2],
    ) {
        self.add(what, unit, published, ours);
    }

    /// A line that the published experiment is known for.
    pub(super) fn headline(
        &mut self,
        what: &str,
        unit: &str,
        published: [f64; 2],
        ours: [Option<f64>; 2],
    ) {
        let pair = self.add(what, unit, published.map(Some), ours);
        self.headlines.push(pair);
    }

    fn add(
        &mut self,
        what: &str,
        unit: &str,
        published: [Option<f64>; 2],
        ours: [Option<f64>; 2],
    ) -> Pair {
        for (value, condition) in ours.into_iter().zip(["off", "on"]) {
            let name = format!("{what} ({condition})");
            self.numbers
                .extend(value.map(|value| Figure::new(name, value, unit)));
        }
        let pair = Pair {
            what: what.to_owned(),
            published,
            ours,
        };
        self.table.row(pair.cells());
        pair
    }

    pub(super) fn note(mut self, note: &str) -> Self {
        self.table.note(note);
        self
    }

    /// The table, our numbers in it, and its headlines.
    pub(super) fn end(self) -> (Table, Vec<Figure>, Vec<Pair>) {
        (self.table, self.numbers, self.headlines)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn factors_say_which_way() {
        assert_eq!(factor([Some(1.21), Some(9.02)]), "x7.45");
        assert_eq!(factor([Some(31.0), Some(2.98)]), "/10.40");
        assert_eq!(factor([Some(5.0), Some(5.0)]), "x1.00");
        assert_eq!(factor([Some(0.0), Some(0.0)]), "-");
        assert_eq!(factor([None, Some(1.0)]), "-");
    }

    #[test]
    fn a_headline_is_a_line_of_its_table_too() {
        let mut beside = Beside::new("t");
        beside.line("a", "s", [None, None], [Some(1.0), Some(2.0)]);
        beside.headline("b", "s", [1.0, 3.0], [Some(1.0), None]);
        let (table, numbers, pairs) = beside.end();
        assert_eq!(table.rows.len(), 2);
        let names = numbers.iter().map(|it| it.name.as_str());
        assert_eq!(names.collect::<Vec<_>>(), ["a (off)", "a (on)", "b (off)"]);
        let all = headlines(pairs.iter().map(|pair| ("section", pair)));
        let expected = ["section", "b", "1.00", "3.00", "x3.00", "1.00", "-", "-"];
        assert_eq!(all.rows, [expected.map(str::to_owned).to_vec()]);
    }
}
