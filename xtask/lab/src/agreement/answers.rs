//! What a client says of its answers, from the file that it writes.
//!
//! GuideLLM's words: its "inter-token latency" of a request is (last - first token) / (tokens - 1), which
//! is our TPOT; its times count from the actual send.

use serde::Deserialize;
use serve_bench::store::record::{Outcome, Record};
use thiserror::Error;

/// Answers of some runs of a client.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Answers {
    /// Whole answers, as the client counts them.
    pub(super) counted: u64,
    /// The same, as the server does.
    pub(super) served: u64,
    /// Output tokens of each.
    pub(super) tokens: Vec<u64>,
    /// From the actual send to the first text, in milliseconds.
    pub(super) ttft_ms: Vec<f64>,
    /// Between tokens, in milliseconds.
    pub(super) tpot_ms: Vec<f64>,
    /// From the actual send to the end, in milliseconds.
    pub(super) e2e_ms: Vec<f64>,
    /// Runs whose client was late.
    pub(super) void: u32,
}

/// A file that holds no answers.
#[derive(Debug, Error)]
pub(super) enum NotAnswers {
    /// It is not what was expected.
    #[error("{0}")]
    Json(#[from] serde_json::Error),
    /// An answer lacks a time or a count.
    #[error("an answer has no {0}")]
    Lacks(&'static str),
}

#[derive(Deserialize)]
struct Report {
    benchmarks: Vec<Benchmark>,
}

#[derive(Deserialize)]
struct Benchmark {
    requests: Requests,
}

#[derive(Deserialize)]
struct Requests {
    successful: Vec<Answer>,
}

#[derive(Deserialize)]
struct Answer {
    output_tokens: Option<u64>,
    time_to_first_token_ms: Option<f64>,
    inter_token_latency_ms: Option<f64>,
    request_latency: Option<f64>,
}

impl Answers {
    /// From the rows of a run of serve-bench.
    pub(super) fn of_rows(rows: &[Record]) -> Result<Self, NotAnswers> {
        let mut answers = Self::default();
        for row in rows.iter().filter(|row| row.outcome == Outcome::Ok) {
            let sent = row.sent_ns.ok_or(NotAnswers::Lacks("sent_ns"))?;
            let end = row.end_ns.ok_or(NotAnswers::Lacks("end_ns"))?;
            let tokens = row
                .output_tokens
                .ok_or(NotAnswers::Lacks("output_tokens"))?;
            let (Some(first), Some(last)) = (row.first_token_ns(), row.last_token_ns()) else {
                return Err(NotAnswers::Lacks("chunks"));
            };
            let ms = |from: u64, to: u64| to.saturating_sub(from) as f64 / 1e6;
            answers.push(
                tokens.into(),
                ms(sent, first),
                ms(first, last) / f64::from(tokens.saturating_sub(1).max(1)),
                ms(sent, end),
            );
        }
        Ok(answers)
    }

    /// From GuideLLM's report in JSON.
    pub(super) fn of_guidellm(text: &str) -> Result<Self, NotAnswers> {
        let report: Report = serde_json::from_str(text)?;
        let mut answers = Self::default();
        for answer in report
            .benchmarks
            .iter()
            .flat_map(|it| &it.requests.successful)
        {
            let lacks = NotAnswers::Lacks;
            answers.push(
                answer.output_tokens.ok_or(lacks("output_tokens"))?,
                answer
                    .time_to_first_token_ms
                    .ok_or(lacks("time_to_first_token_ms"))?,
                answer
                    .inter_token_latency_ms
                    .ok_or(lacks("inter_token_latency_ms"))?,
                answer.request_latency.ok_or(lacks("request_latency"))? * 1e3,
            );
        }
        Ok(answers)
    }

    /// Takes in a run, of which the server has counted so many answers.
    pub(super) fn add(&mut self, run: Self, served: u64) {
        self.counted += run.counted;
        self.served += served;
        self.void += run.void;
        self.tokens.extend(run.tokens);
        self.ttft_ms.extend(run.ttft_ms);
        self.tpot_ms.extend(run.tpot_ms);
        self.e2e_ms.extend(run.e2e_ms);
    }

    fn push(&mut self, tokens: u64, ttft_ms: f64, tpot_ms: f64, e2e_ms: f64) {
        self.counted += 1;
        self.tokens.push(tokens);
        self.ttft_ms.push(ttft_ms);
        self.tpot_ms.push(tpot_ms);
        self.e2e_ms.push(e2e_ms);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_become_times_from_the_actual_send() {
        let row = Record {
            outcome: Outcome::Ok,
            sent_ns: Some(1_000_000),
            end_ns: Some(9_000_000),
            output_tokens: Some(3),
            chunks: [(3_000_000, Some(1)), (7_000_000, Some(2))]
                .map(Into::into)
                .to_vec(),
            ..Record::not_sent(0, 0)
        };
        let refused = Record {
            outcome: Outcome::Refused,
            ..row.clone()
        };
        let answers = Answers::of_rows(&[row.clone(), refused]).unwrap();
        assert_eq!((answers.counted, &answers.tokens[..]), (1, &[3][..]));
        let times = (
            &answers.ttft_ms[..],
            &answers.tpot_ms[..],
            &answers.e2e_ms[..],
        );
        assert_eq!(times, (&[2.0][..], &[2.0][..], &[8.0][..]));
        let without = Record {
            output_tokens: None,
            ..row
        };
        let error = Answers::of_rows(&[without]).unwrap_err().to_string();
        assert_eq!(error, "an answer has no output_tokens");
    }

    #[test]
    fn a_report_of_the_other_client_becomes_the_same() {
        let report = r#"{"benchmarks": [{"requests": {"successful": [{"output_tokens": 3,
            "time_to_first_token_ms": 2.0, "inter_token_latency_ms": 2.0, "request_latency": 0.008}],
            "errored": []}}]}"#;
        let mut all = Answers::default();
        all.add(Answers::of_guidellm(report).unwrap(), 2);
        assert_eq!((all.counted, all.served), (1, 2));
        assert_eq!(all.e2e_ms, [8.0]);
        assert!(Answers::of_guidellm("{}").is_err());
    }
}
