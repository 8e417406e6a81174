//! Whether two clients agree, and the table that shows it.

use std::fmt::Write as _;

use serve_bench::analysis::table::Table;

use super::answers::Answers;

/// How far medians may be apart.
const TOLERANCE: f64 = 0.03;

/// What both clients saw of the same load.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Verdict {
    pub(super) ours: Answers,
    pub(super) theirs: Answers,
}

impl Verdict {
    /// Whether each client counts what the server does, all answers have the same tokens, and the
    /// medians are close.
    pub(super) fn agrees(&self) -> bool {
        let Self { ours, theirs } = self;
        let exact = [ours, theirs]
            .iter()
            .all(|it| it.counted == it.served && it.counted > 0);
        let tokens = tokens_in_each(ours) == tokens_in_each(theirs);
        exact
            && ours.counted == theirs.counted
            && tokens
            && self.medians().iter().all(|it| it.is_close())
    }

    /// The table, and the verdict below it.
    pub(super) fn text(&self, other: &str) -> String {
        let Self { ours, theirs } = self;
        let mut table = Table::new("", &["", "serve-bench", other, "difference"]);
        for (name, counts) in [
            ("answers", [ours.counted, theirs.counted]),
            (
                "answers by the server's count",
                [ours.served, theirs.served],
            ),
        ] {
            let difference = counts[0].cast_signed() - counts[1].cast_signed();
            let [ours, theirs] = counts.map(|count| count.to_string());
            table.row([name.to_owned(), ours, theirs, difference.to_string()]);
        }
        let [of_ours, of_theirs] = [ours, theirs].map(|it| format!("{:?}", tokens_in_each(it)));
        table.row(["tokens in each", &of_ours, &of_theirs, ""]);
        for median in self.medians() {
            let [ours, theirs] = median.ms.map(|ms| format!("{ms:.2}"));
            let difference = format!("{:+.2}%", 100.0 * median.difference());
            table.row([median.name.to_owned(), ours, theirs, difference]);
        }
        let mut out = table.text();
        if ours.void > 0 {
            let _ = writeln!(
                out,
                "\nvoid runs of serve-bench: {}; this machine is busy, and so was the other client",
                ours.void
            );
        }
        out + match self.agrees() {
            true => "\nagreed\n",
            false => "\nNOT agreed: counts must be those of the server and medians within 3%\n",
        }
    }

    fn medians(&self) -> [Medians; 3] {
        let Self { ours, theirs } = self;
        let of = |name, ours: &[f64], theirs: &[f64]| Medians {
            name,
            ms: [median(ours), median(theirs)],
        };
        [
            of("TTFT p50, ms", &ours.ttft_ms, &theirs.ttft_ms),
            of("TPOT p50, ms", &ours.tpot_ms, &theirs.tpot_ms),
            of("E2E p50, ms", &ours.e2e_ms, &theirs.e2e_ms),
        ]
    }
}

/// A metric of both clients, from the actual send.
struct Medians {
    name: &'static str,
    ms: [f64; 2],
}

impl Medians {
    /// As a share of the other client's.
    fn difference(&self) -> f64 {
        self.ms[0] / self.ms[1] - 1.0
    }

    fn is_close(&self) -> bool {
        // Not a number where a client has no answers.
        self.difference().abs() <= TOLERANCE
    }
}

fn tokens_in_each(answers: &Answers) -> Vec<u64> {
    let mut tokens = answers.tokens.clone();
    tokens.sort_unstable();
    tokens.dedup();
    tokens
}

fn median(values: &[f64]) -> f64 {
    serve_bench::analysis::median(values.iter().copied()).unwrap_or(f64::NAN)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answers(ttft_ms: &[f64]) -> Answers {
        Answers {
            counted: ttft_ms.len() as u64,
            served: ttft_ms.len() as u64,
            tokens: vec![32; ttft_ms.len()],
            ttft_ms: ttft_ms.to_vec(),
            tpot_ms: vec![16.0; ttft_ms.len()],
            e2e_ms: vec![600.0; ttft_ms.len()],
            void: 0,
        }
    }

    fn verdict(edit: impl FnOnce(&mut Answers)) -> Verdict {
        let mut theirs = answers(&[100.0, 101.0, 99.0, 250.0]);
        edit(&mut theirs);
        Verdict {
            ours: answers(&[98.0, 102.0, 100.0, 101.0]),
            theirs,
        }
    }

    #[test]
    fn medians_within_three_percent_and_equal_counts_agree() {
        let agreed = verdict(|_| {});
        assert!(agreed.agrees());
        let text = agreed.text("other");
        let cells = ["TTFT", "p50,", "ms", "100.00", "100.00", "+0.00%"];
        let mut lines = text.lines();
        assert!(
            lines.any(|line| line.split_whitespace().eq(cells)),
            "{text}"
        );
        assert!(text.ends_with("\nagreed\n"), "{text}");
    }

    #[test]
    fn one_answer_one_token_or_a_slower_median_does_not() {
        assert!(!verdict(|theirs| theirs.served += 1).agrees());
        assert!(!verdict(|theirs| theirs.counted -= 1).agrees());
        assert!(!verdict(|theirs| theirs.tokens[0] = 31).agrees());
        let slower = verdict(|theirs| theirs.tpot_ms = vec![17.0; 4]);
        assert!(!slower.agrees());
        assert!(slower.text("other").contains("NOT agreed"));
        let none = Verdict {
            ours: Answers::default(),
            theirs: Answers::default(),
        };
        assert!(!none.agrees());
    }
}
