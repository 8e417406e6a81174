//! Output tokens as the server counts them. A server that sends no usage leaves them unknown, which is not none: whatever
//! is computed from tokens is absent where any answer has no count, and words say how many have none.

use serde::Serialize;

use super::table::number;
use crate::store::record::Record;

/// The output tokens of some whole answers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Tokens {
    /// In the answers that have a count.
    pub counted: u64,
    /// Answers.
    pub answers: u64,
    /// Answers without a count.
    pub uncounted: u64,
}

impl Tokens {
    /// Those of answers.
    pub(crate) fn of<'a>(answers: impl IntoIterator<Item = &'a Record>) -> Self {
        let mut tokens = Self::default();
        for answer in answers {
            tokens.add(answer);
        }
        tokens
    }

    /// Adds those of an answer.
    pub(crate) fn add(&mut self, answer: &Record) {
        self.answers += 1;
        self.counted += u64::from(answer.output_tokens.unwrap_or(0));
        self.uncounted += u64::from(answer.output_tokens.is_none());
    }

    /// All of them; absent where any answer has no count.
    pub fn known(&self) -> Option<u64> {
        (self.uncounted == 0).then_some(self.counted)
    }

    /// How many answers have no count, if any.
    pub(crate) fn missing(&self) -> Option<String> {
        let Self {
            answers, uncounted, ..
        } = self;
        (*uncounted > 0).then(|| format!("{uncounted} of {answers} answers without a count"))
    }

    /// How many, as a cell of a table.
    pub(crate) fn cell(&self) -> String {
        match (self.known(), self.counted) {
            (Some(known), _) => known.to_string(),
            (None, 0) => "unknown".to_owned(),
            (None, least) => format!(">= {least}"),
        }
    }

    /// So many a second, as a cell of a table.
    pub(crate) fn per_s(&self, wall_s: f64) -> String {
        at_least(rate(self.counted, wall_s), self.uncounted)
    }
}

/// So many a second; none where no time passed.
pub(crate) fn rate(count: u64, wall_s: f64) -> f64 {
    match wall_s > 0.0 {
        true => count as f64 / wall_s,
        false => 0.0,
    }
}

/// A number to which what is `unknown` may add: the number alone, or what it is at least. At least nothing is
/// unknown.
pub(crate) fn at_least(value: f64, unknown: u64) -> String {
    match unknown {
        0 => number(Some(value)),
        _ if value > 0.0 => format!(">= {}", number(Some(value))),
        _ => "unknown".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::analysis::testing::answer;

    #[test]
    fn what_is_not_counted_is_not_nothing() {
        let (counted, not) = (answer(0, &[5], Some(3)), answer(0, &[5], None));
        for (rows, known, cell, missing) in [
            (vec![], Some(0), "0.00", None),
            (vec![&counted, &counted], Some(6), "3.00", None),
            (vec![&counted, &not], None, ">= 1.50", Some("1 of 2")),
            (vec![&not, &not, &not], None, "unknown", Some("3 of 3")),
        ] {
            let tokens = Tokens::of(rows);
            assert_eq!((tokens.known(), tokens.per_s(2.0).as_str()), (known, cell));
            let expected = missing.map(|of| format!("{of} answers without a count"));
            assert_eq!(tokens.missing(), expected);
        }
    }
}
