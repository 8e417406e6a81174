//! The numbers of a run for a person: each metric with its definition beside it.

use std::fmt::Write;

use serve_core::Span;

use crate::analyse::{Summary, Times};
use crate::slo::Slo;

/// One table, plain text, with a line end after each row.
pub fn table(summary: &Summary, slo: &Slo) -> String {
    let mut out = String::new();
    counts(summary, &mut out);
    rates(summary, &mut out);
    latencies(summary, &mut out);
    if !slo.is_empty() {
        goodput(summary, slo, &mut out);
    }
    out
}

// Writing to a `String` cannot fail, so the results below are dropped.

fn counts(summary: &Summary, out: &mut String) {
    let counts = &summary.counts;
    let _ = writeln!(
        out,
        "requests   {} scheduled = {} sent + {} not sent; sent = {} ok + {} refused + {} failed + {} \
         cancelled",
        counts.scheduled(),
        counts.sent(),
        counts.not_sent,
        counts.ok,
        counts.refused,
        counts.failed,
        counts.cancelled,
    );
}

fn rates(summary: &Summary, out: &mut String) {
    let rate = |rate: Option<f64>| rate.map_or_else(|| "-".to_owned(), |rate| format!("{rate:.2}"));
    let _ = writeln!(
        out,
        "rate       {}/s offered, {}/s delivered; schedule lag p99 {} (scheduled to actual send)",
        rate(summary.offered_per_s),
        rate(summary.delivered_per_s),
        millis(summary.lag.quantile(0.99)),
    );
    let _ = writeln!(
        out,
        "throughput {:.2} answers/s, {:.1} output tokens/s over {:.2} s (first scheduled send to last \
         end)",
        summary.answers_per_s(),
        summary.tokens_per_s(),
        summary.wall.as_secs_f64(),
    );
}

fn latencies(summary: &Summary, out: &mut String) {
    let _ = writeln!(
        out,
        "\n{:<6} {:>9} {:>12} {:>12} {:>12}  definition (attempts that ended ok)",
        "metric", "count", "p50", "p90", "p99"
    );
    let rows: [(&str, &Times, &str); 4] = [
        (
            "TTFT",
            &summary.ttft,
            "scheduled send to first chunk with text",
        ),
        (
            "ITL",
            &summary.itl,
            "one chunk with text to the next, every gap",
        ),
        (
            "TPOT",
            &summary.tpot,
            "(last - first chunk) / (output tokens - 1), each answer",
        ),
        ("E2E", &summary.e2e, "scheduled send to end of answer"),
    ];
    for (name, times, definition) in rows {
        let at = |quantile| millis(times.quantile(quantile));
        let _ = writeln!(
            out,
            "{name:<6} {:>9} {:>12} {:>12} {:>12}  {definition}",
            times.count(),
            at(0.5),
            at(0.9),
            at(0.99),
        );
    }
}

fn goodput(summary: &Summary, slo: &Slo, out: &mut String) {
    let limits = [("TTFT", slo.ttft), ("TPOT", slo.tpot), ("E2E", slo.e2e)];
    let limits = limits
        .into_iter()
        .filter_map(|(name, limit)| Some(format!("{name} <= {}", limit?)));
    let _ = writeln!(
        out,
        "\ngoodput    {:.2} answers/s: {} of {} scheduled requests kept {}",
        summary.goodput_per_s(),
        summary.good,
        summary.counts.scheduled(),
        limits.collect::<Vec<_>>().join(", "),
    );
}

fn millis(span: Option<Span>) -> String {
    span.map_or_else(
        || "-".to_owned(),
        |span| format!("{:.2} ms", span.as_millis_f64()),
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::{Outcome, Record};

    #[test]
    fn the_table_reads_as_it_should() {
        let answer = Record {
            sent_ns: Some(1_000_000),
            chunks: vec![(30_000_000, None).into(), (50_000_000, None).into()],
            end_ns: Some(100_000_000),
            outcome: Outcome::Ok,
            output_tokens: Some(3),
            ..Record::not_sent(0, 0)
        };
        let rows = [answer, Record::not_sent(1, 50_000_000)];
        let slo = Slo {
            e2e: Some(Span::from_millis(200)),
            ..Slo::default()
        };
        let text = table(&Summary::of(&rows, &slo), &slo);
        let expected = "\
requests   2 scheduled = 1 sent + 1 not sent; sent = 1 ok + 0 refused + 0 failed + 0 cancelled
rate       -/s offered, -/s delivered; schedule lag p99 1.00 ms (scheduled to actual send)
throughput 10.00 answers/s, 30.0 output tokens/s over 0.10 s (first scheduled send to last end)

metric     count          p50          p90          p99  definition (attempts that ended ok)
TTFT           1     30.00 ms     30.00 ms     30.00 ms  scheduled send to first chunk with text
ITL            1     20.00 ms     20.00 ms     20.00 ms  one chunk with text to the next, every gap
TPOT           1     10.00 ms     10.00 ms     10.00 ms  (last - first chunk) / (output tokens - 1), each answer
E2E            1    100.00 ms    100.00 ms    100.00 ms  scheduled send to end of answer

goodput    10.00 answers/s: 1 of 2 scheduled requests kept E2E <= 200ms
";
        assert_eq!(text, expected);
    }
}
