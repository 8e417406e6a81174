//! Tables with a published experiment beside ours: what it found off and on, what we find, and the
//! factor between off and on of both. Absolute numbers belong to the machine; factors can be compared.

use super::Number;
use crate::table::{Table, number};

/// Where published numbers come from.
pub(super) const L4: &str =
    "published: Qwen2.5-1.5B on an NVIDIA L4, static batches of 8 (llm-serving-project)";
pub(super) const RTX_4090: &str = "published: Qwen2.5-0.5B on an RTX 4090, vLLM behind 1 or 8 workers (GPU-aware serving runtime)";
pub(super) const RTX_3090: &str = "published: Qwen2.5-7B-AWQ on an RTX 3090, vLLM 0.10.2, SLO 0.75 s TTFT and 0.10 s TPOT (llm-serving-lab)";
pub(super) const T4: &str = "published: Qwen2.5-1.5B on a T4, one lock around generation against vLLM (LLM Serving Mastery 1)";

/// Published beside measured, off beside on.
pub(super) struct Beside {
    table: Table,
    numbers: Vec<Number>,
}

impl Beside {
    pub(super) fn new(title: &str) -> Self {
        let columns = [
            "",
            "published off",
            "on",
            "factor",
            "ours off",
            "on",
            "factor",
        ];
        Self {
            table: Table::new(title, &columns),
            numbers: Vec::new(),
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
        let factor = |pair: [Option<f64>; 2]| match pair {
            [Some(off), Some(on)] if off > 0.0 && on >= off => format!("x{:.2}", on / off),
            [Some(off), Some(on)] if on > 0.0 => format!("/{:.2}", off / on),
            _ => "-".to_owned(),
        };
        for (value, condition) in ours.into_iter().zip(["off", "on"]) {
            self.numbers.extend(value.map(|value| Number {
                name: format!("{what} ({condition})"),
                value,
                unit: unit.to_owned(),
            }));
        }
        self.table.row([
            what.to_owned(),
            number(published[0]),
            number(published[1]),
            factor(published),
            number(ours[0]),
            number(ours[1]),
            factor(ours),
        ]);
    }

    pub(super) fn note(mut self, note: &str) -> Self {
        self.table.note(note);
        self
    }

    /// The table, and our numbers in it.
    pub(super) fn end(self) -> (Table, Vec<Number>) {
        (self.table, self.numbers)
    }
}
