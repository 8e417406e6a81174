//! Numbers from rows, each with the definition that the table prints beside it.
//!
//! Latencies count from the *scheduled* send: what a user waits includes what the client or the server
//! made it wait before the first byte left. They are of attempts that ended well; how many did not
//! stands beside them, and goodput has all attempts in its denominator.

use hdrhistogram::Histogram;
use serve_core::Span;

use crate::record::{Outcome, Record};
use crate::slo::Slo;

/// How the attempts ended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Whole answers.
    pub ok: u64,
    /// Too busy.
    pub refused: u64,
    /// Anything else that went wrong.
    pub failed: u64,
    /// Called off by a stop of the run.
    pub cancelled: u64,
    /// Never sent because of a stop of the run.
    pub not_sent: u64,
}

impl Counts {
    /// All requests of the workload.
    pub fn scheduled(&self) -> u64 {
        self.sent() + self.not_sent
    }

    /// Requests that left the client.
    pub fn sent(&self) -> u64 {
        self.ok + self.refused + self.failed + self.cancelled
    }

    fn count(&mut self, outcome: Outcome) {
        let counter = match outcome {
            Outcome::Ok => &mut self.ok,
            Outcome::Refused => &mut self.refused,
            Outcome::Failed => &mut self.failed,
            Outcome::Cancelled => &mut self.cancelled,
            Outcome::NotSent => &mut self.not_sent,
        };
        *counter += 1;
    }
}

/// Times, held as a high-dynamic-range histogram of microseconds with four significant digits.
#[derive(Clone, Debug)]
pub struct Times(Histogram<u64>);

impl Times {
    fn new() -> Self {
        let bounds = Histogram::new(4);
        Self(bounds.unwrap_or_else(|_| unreachable!("four digits are a valid precision")))
    }

    fn add(&mut self, nanos: u64) {
        // An auto-resizing histogram takes every value.
        let _ = self.0.record((nanos + 500) / 1_000);
    }

    /// How many there are.
    pub fn count(&self) -> u64 {
        self.0.len()
    }

    /// The smallest time that at least the share `quantile` of all times does not exceed (nearest
    /// rank); absent where there is none.
    pub fn quantile(&self, quantile: f64) -> Option<Span> {
        let value = || Span::from_micros(self.0.value_at_quantile(quantile));
        (!self.0.is_empty()).then(value)
    }
}

/// Whether an attempt counts as goodput.
fn is_met(slo: &Slo, record: &Record) -> bool {
    let within = |limit: Option<Span>, nanos: Option<u64>| match (limit, nanos) {
        (Some(limit), Some(nanos)) => nanos <= limit.as_nanos(),
        (Some(_), None) => false,
        (None, _) => true,
    };
    let one_token = record.output_tokens.is_some_and(|tokens| tokens < 2);
    record.outcome == Outcome::Ok
        && within(slo.ttft, ttft(record))
        && within(slo.e2e, e2e(record))
        && (one_token || within(slo.tpot, tpot(record)))
}

/// Everything that a table says about a run.
#[derive(Clone, Debug)]
pub struct Summary {
    /// How the attempts ended.
    pub counts: Counts,
    /// From the scheduled send to the first chunk with text.
    pub ttft: Times,
    /// From one chunk with text to the next. A chunk may hold several tokens.
    pub itl: Times,
    /// (last chunk - first chunk) / (output tokens - 1); absent for one token, or when the server does
    /// not count.
    pub tpot: Times,
    /// From the scheduled send to the end of the answer.
    pub e2e: Times,
    /// From the scheduled to the actual send, of every attempt.
    pub lag: Times,
    /// Requests due a second, between the first and the last that were sent.
    pub offered_per_s: Option<f64>,
    /// Requests sent a second, between the first and the last.
    pub delivered_per_s: Option<f64>,
    /// From the first scheduled send to the last end.
    pub wall: Span,
    /// Tokens in whole answers, as the server counted them.
    pub output_tokens: u64,
    /// Whole answers that kept the SLO.
    pub good: u64,
}

impl Summary {
    /// Computes all numbers from rows in any order.
    pub fn of(records: &[Record], slo: &Slo) -> Self {
        let mut summary = Self {
            counts: Counts::default(),
            ttft: Times::new(),
            itl: Times::new(),
            tpot: Times::new(),
            e2e: Times::new(),
            lag: Times::new(),
            offered_per_s: None,
            delivered_per_s: None,
            wall: wall(records),
            output_tokens: 0,
            good: 0,
        };
        for record in records {
            summary.add(record, slo);
        }
        let sent = || records.iter().filter(|record| record.sent_ns.is_some());
        summary.offered_per_s = rate(sent().map(|record| record.scheduled_ns));
        summary.delivered_per_s = rate(sent().filter_map(|record| record.sent_ns));
        summary
    }

    /// Whole answers a second.
    pub fn answers_per_s(&self) -> f64 {
        self.per_s(self.counts.ok)
    }

    /// Output tokens of whole answers a second.
    pub fn tokens_per_s(&self) -> f64 {
        self.per_s(self.output_tokens)
    }

    /// Whole answers that kept the SLO a second.
    pub fn goodput_per_s(&self) -> f64 {
        self.per_s(self.good)
    }

    fn per_s(&self, count: u64) -> f64 {
        match self.wall.is_zero() {
            true => 0.0,
            false => count as f64 / self.wall.as_secs_f64(),
        }
    }

    fn add(&mut self, record: &Record, slo: &Slo) {
        self.counts.count(record.outcome);
        if let Some(sent) = record.sent_ns {
            self.lag.add(sent.saturating_sub(record.scheduled_ns));
        }
        if record.outcome != Outcome::Ok {
            return;
        }
        for (times, nanos) in [
            (&mut self.ttft, ttft(record)),
            (&mut self.tpot, tpot(record)),
            (&mut self.e2e, e2e(record)),
        ] {
            nanos.into_iter().for_each(|nanos| times.add(nanos));
        }
        for pair in record.chunks.windows(2) {
            self.itl.add(pair[1].at_ns.saturating_sub(pair[0].at_ns));
        }
        self.output_tokens += u64::from(record.output_tokens.unwrap_or(0));
        self.good += u64::from(is_met(slo, record));
    }
}

fn ttft(record: &Record) -> Option<u64> {
    let first = record.first_token_ns()?;
    Some(first.saturating_sub(record.scheduled_ns))
}

fn e2e(record: &Record) -> Option<u64> {
    Some(record.end_ns?.saturating_sub(record.scheduled_ns))
}

fn tpot(record: &Record) -> Option<u64> {
    let (first, last) = (record.first_token_ns()?, record.last_token_ns()?);
    let gaps = record
        .output_tokens?
        .checked_sub(1)
        .filter(|gaps| *gaps > 0)?;
    Some(last.saturating_sub(first) / u64::from(gaps))
}

fn wall(records: &[Record]) -> Span {
    let start = records.iter().map(|record| record.scheduled_ns).min();
    let end = records.iter().filter_map(|record| record.end_ns).max();
    let wall = end.unwrap_or(0).saturating_sub(start.unwrap_or(0));
    Span::from_nanos(wall)
}

/// Events a second between the first and the last; absent for fewer than two, or all at once.
fn rate(times: impl Iterator<Item = u64>) -> Option<f64> {
    let (mut count, mut first, mut last) = (0_u64, u64::MAX, 0);
    for time in times {
        count += 1;
        first = first.min(time);
        last = last.max(time);
    }
    let gaps = count.checked_sub(1).filter(|gaps| *gaps > 0)?;
    let span = Span::from_nanos(last - first);
    (!span.is_zero()).then(|| gaps as f64 / span.as_secs_f64())
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    /// An answer that was due at `due` ms, sent 1 ms later, with chunks at the given ms.
    fn answer(due: u64, chunks: &[u64], tokens: Option<u32>) -> Record {
        Record {
            sent_ns: Some((due + 1) * MS),
            chunks: chunks.iter().map(|ms| (ms * MS, None).into()).collect(),
            end_ns: chunks.last().map(|ms| (ms + 2) * MS),
            outcome: Outcome::Ok,
            output_tokens: tokens,
            ..Record::not_sent(0, due * MS)
        }
    }

    fn summary(records: &[Record]) -> Summary {
        Summary::of(records, &Slo::default())
    }

    fn ms(times: &Times, quantile: f64) -> Option<u64> {
        times.quantile(quantile).map(Span::as_millis)
    }

    #[test]
    fn every_metric_of_one_answer_is_the_one_computed_by_hand() {
        // Six tokens in three chunks: two gaps for ITL, five for TPOT.
        let summary = summary(&[answer(100, &[130, 150, 180], Some(6))]);
        assert_eq!(ms(&summary.ttft, 0.5), Some(30));
        assert_eq!(summary.itl.count(), 2);
        assert_eq!(ms(&summary.itl, 0.5), Some(20));
        assert_eq!(ms(&summary.itl, 0.99), Some(30));
        assert_eq!(ms(&summary.tpot, 0.5), Some(10));
        assert_eq!(ms(&summary.e2e, 0.5), Some(82));
        assert_eq!(ms(&summary.lag, 0.99), Some(1));
        assert_eq!(summary.wall, Span::from_millis(82));
        assert!((summary.tokens_per_s() - 6.0 / 0.082).abs() < 1e-9);
    }

    #[test]
    fn tpot_is_absent_for_one_token_and_without_a_count() {
        let rows = [answer(0, &[10], Some(1)), answer(0, &[10, 20], None)];
        let summary = summary(&rows);
        assert_eq!(summary.tpot.count(), 0);
        assert_eq!(ms(&summary.tpot, 0.5), None);
        assert_eq!(summary.ttft.count(), 2);
    }

    #[test]
    fn percentiles_are_nearest_rank() {
        let rows = (1..=100)
            .map(|i| answer(0, &[i], Some(1)))
            .collect::<Vec<_>>();
        let summary = summary(&rows);
        let shown = [0.5, 0.9, 0.99, 1.0].map(|quantile| ms(&summary.ttft, quantile));
        assert_eq!(shown, [50, 90, 99, 100].map(Some));
    }

    #[test]
    fn what_went_wrong_is_counted_and_lends_no_latency() {
        let mut rows = vec![answer(0, &[10], Some(1)); 2];
        for outcome in [
            Outcome::Refused,
            Outcome::Failed,
            Outcome::Failed,
            Outcome::Cancelled,
        ] {
            rows.push(Record {
                outcome,
                ..answer(0, &[9_999], Some(1))
            });
        }
        rows.push(Record::not_sent(6, 0));
        let summary = summary(&rows);
        let expected = Counts {
            ok: 2,
            refused: 1,
            failed: 2,
            cancelled: 1,
            not_sent: 1,
        };
        assert_eq!(summary.counts, expected);
        assert_eq!((summary.counts.scheduled(), summary.counts.sent()), (7, 6));
        assert_eq!(ms(&summary.ttft, 1.0), Some(10));
        assert_eq!(summary.lag.count(), 6);
    }

    #[test]
    fn goodput_asks_every_objective_of_every_attempt() {
        let rows = [
            answer(0, &[10, 20], Some(2)), // good
            answer(0, &[60, 70], Some(2)), // first token late
            answer(0, &[10, 90], Some(2)), // slow tokens
            answer(0, &[10], Some(1)),     // good: one token has no TPOT
            Record {
                outcome: Outcome::Refused,
                ..answer(0, &[10], Some(1))
            },
        ];
        let slo = Slo {
            ttft: Some(Span::from_millis(50)),
            tpot: Some(Span::from_millis(30)),
            e2e: None,
        };
        let summary = Summary::of(&rows, &slo);
        assert_eq!(summary.good, 2);
        assert!((summary.goodput_per_s() - 2.0 / 0.092).abs() < 1e-9);
    }

    #[test]
    fn a_client_that_falls_behind_shows_in_the_delivered_rate() {
        let mut rows = (0..11)
            .map(|i| answer(i * 100, &[i * 100 + 5], Some(1)))
            .collect::<Vec<_>>();
        for (row, i) in rows.iter_mut().zip(0..) {
            row.sent_ns = Some(i * 200 * MS);
        }
        let summary = summary(&rows);
        assert_eq!(summary.offered_per_s, Some(10.0));
        assert_eq!(summary.delivered_per_s, Some(5.0));
        assert_eq!(ms(&summary.lag, 1.0), Some(1_000));
        let once = Summary::of(&rows[..1], &Slo::default());
        assert_eq!(once.offered_per_s, None);
    }
}
