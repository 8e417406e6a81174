//! A client's retry budget: how much more it sends when more fails, and who is left without an answer for it.

use examples_support::{Table, attempts};

pub(crate) const TITLE: &str = "5,000 requests, up to four attempts for each";

const ORIGINALS: u32 = 5_000;

/// A budget of so many retries for 100 requests, and as many as there are attempts.
const CHOICES: [(&str, u32); 2] = [("20 retries for 100 requests", 20), ("no budget", 400)];

pub(crate) fn table(seed: u64) -> Table {
    let mut table = Table::new([
        "budget",
        "attempts that fail",
        "sent for each request",
        "answered",
    ]);
    for (name, retries_percent) in CHOICES {
        for fails_percent in [1, 10, 50, 100] {
            let (sent, answered) = attempts(
                ORIGINALS,
                retries_percent,
                f64::from(fails_percent) / 100.0,
                seed,
            );
            table.row([
                name.to_owned(),
                format!("{fails_percent}%"),
                format!("{:.2}", f64::from(sent) / f64::from(ORIGINALS)),
                format!("{:.1}%", 100.0 * f64::from(answered) / f64::from(ORIGINALS)),
            ]);
        }
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_budget_bounds_what_is_sent_and_leaves_some_without_an_answer() {
        for seed in [0, 1_000] {
            let with = |fails| attempts(ORIGINALS, 20, fails, seed);
            let without = |fails| attempts(ORIGINALS, 400, fails, seed);
            assert!(with(1.0).0 <= ORIGINALS + ORIGINALS / 5 + 10);
            assert_eq!(without(1.0).0, 4 * ORIGINALS);
            assert!(with(0.5).1 < without(0.5).1);
            assert_eq!(
                with(0.01).1,
                without(0.01).1,
                "there is budget for what is rare"
            );
        }
    }
}
