//! The attempts of one request, seen together: a user who is told to come back later is one user.

use crate::store::record::{Outcome, Record};
use crate::workload::slo::Slo;

/// Whether an answer kept its limits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kept {
    /// The whole answer came and kept every one.
    Yes,
    /// None came, or it missed one.
    No,
    /// It kept those that can be told, and has no count of tokens to tell its TPOT by.
    Unknown,
}

/// One request with all its attempts.
#[derive(Clone, Debug)]
pub struct Request<'a> {
    /// The original first, then its retries. Never empty.
    attempts: Vec<&'a Record>,
}

impl<'a> Request<'a> {
    /// The requests of a run in order of schedule, without those that were due before `warmup_ns`.
    /// Rows may come in any order.
    pub fn all(records: &'a [Record], warmup_ns: u64) -> Vec<Self> {
        let mut rows = records.iter().collect::<Vec<_>>();
        rows.sort_by_key(|row| (row.request, row.attempt));
        let same = |a: &&Record, b: &&Record| a.request == b.request;
        let mut requests = rows
            .chunk_by(same)
            .map(|attempts| Self {
                attempts: attempts.to_vec(),
            })
            .filter(|request| request.scheduled_ns() >= warmup_ns)
            .collect::<Vec<_>>();
        requests.sort_by_key(|request| (request.scheduled_ns(), request.index()));
        requests
    }

    /// Its place in the workload.
    pub fn index(&self) -> u64 {
        self.first().request
    }

    /// All attempts, the original first.
    pub fn attempts(&self) -> &[&'a Record] {
        &self.attempts
    }

    /// The original attempt, which says what was asked for.
    pub fn first(&self) -> &'a Record {
        self.attempts[0]
    }

    /// The last attempt, whose end is the end of the request.
    pub fn last(&self) -> &'a Record {
        self.attempts[self.attempts.len() - 1]
    }

    /// The attempt that gave the whole answer.
    pub fn answer(&self) -> Option<&'a Record> {
        let last = self.last();
        (last.outcome == Outcome::Ok).then_some(last)
    }

    /// When it was first due.
    pub fn scheduled_ns(&self) -> u64 {
        self.first().scheduled_ns
    }

    /// Tokens of the prompt: as planned, else as the server counted.
    pub fn prompt_tokens(&self) -> Option<u32> {
        let first = self.first();
        first.prompt_tokens_planned.or(first.prompt_tokens)
    }

    /// From the first scheduled send to the first text of the answer.
    pub fn ttft_ns(&self) -> Option<u64> {
        let first = self.answer()?.first_token_ns()?;
        Some(first.saturating_sub(self.scheduled_ns()))
    }

    /// (last - first chunk) / (tokens - 1) of the answer; absent for one token, or without a count.
    pub fn tpot_ns(&self) -> Option<u64> {
        let answer = self.answer()?;
        let gaps = answer.output_tokens?.checked_sub(1)?;
        let span = answer
            .last_token_ns()?
            .saturating_sub(answer.first_token_ns()?);
        // An answer that came in one piece has no cadence, however many tokens the piece holds.
        let cadence = gaps > 0 && answer.chunks.len() > 1;
        cadence.then(|| span / u64::from(gaps))
    }

    /// From the first scheduled send to the end of the answer.
    pub fn e2e_ns(&self) -> Option<u64> {
        let end = self.answer()?.end_ns?;
        Some(end.saturating_sub(self.scheduled_ns()))
    }

    /// Whether the whole answer came and kept every limit, its own deadline among them. An answer of
    /// one token has no TPOT to keep; one in one piece has not shown that it kept it; that of an answer
    /// without a count is unknown.
    pub fn kept(&self, slo: &Slo) -> Kept {
        let Some(answer) = self.answer() else {
            return Kept::No;
        };
        let within = |limit: Option<u64>, ns: Option<u64>| match (limit, ns) {
            (Some(limit), Some(ns)) => ns <= limit,
            (limit, _) => limit.is_none(),
        };
        let others = within(slo.ttft.map(|span| span.as_nanos()), self.ttft_ns())
            && within(slo.e2e.map(|span| span.as_nanos()), self.e2e_ns())
            && within(self.first().deadline_ns, self.e2e_ns());
        match (others, slo.tpot, answer.output_tokens) {
            (false, ..) => Kept::No,
            (true, None, _) | (true, _, Some(0 | 1)) => Kept::Yes,
            (true, Some(_), None) => Kept::Unknown,
            (true, Some(limit), _) => match within(Some(limit.as_nanos()), self.tpot_ns()) {
                true => Kept::Yes,
                false => Kept::No,
            },
        }
    }

    /// How long it has gone, or had gone at its end, without a first token.
    pub fn waited_ns(&self) -> u64 {
        let until = self.ttft_ns().or_else(|| {
            let end = self.last().end_ns?;
            Some(end.saturating_sub(self.scheduled_ns()))
        });
        until.unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use serve_core::Span;

    use super::*;
    use crate::analysis::testing::{MS, answer, refused};

    #[test]
    fn attempts_are_one_request_whose_clock_starts_at_the_first() {
        let mut retry = answer(500, &[530, 560], Some(4));
        (retry.request, retry.attempt) = (1, 1);
        let mut first = refused(100);
        first.request = 1;
        let records = [retry, answer(300, &[310], Some(1)), first];
        let requests = Request::all(&records, 0);
        let order = requests.iter().map(Request::index).collect::<Vec<_>>();
        assert_eq!(order, [1, 0], "by schedule");
        assert_eq!(requests[0].attempts().len(), 2);
        assert_eq!(requests[0].ttft_ns(), Some(430 * MS));
        assert_eq!(requests[0].tpot_ns(), Some(10 * MS));
        assert_eq!(requests[0].e2e_ns(), Some(462 * MS));
        assert_eq!(Request::all(&records, 200 * MS).len(), 1, "warm-up");
    }

    #[test]
    fn goodput_keeps_every_limit_and_the_deadline() {
        let limit = |ttft, tpot, e2e| Slo {
            ttft: Some(Span::from_millis(ttft)),
            tpot: Some(Span::from_millis(tpot)),
            e2e: Some(Span::from_millis(e2e)),
        };
        let good = |record: &crate::store::record::Record, slo: &Slo| {
            Request::all(std::slice::from_ref(record), 0)[0].kept(slo) == Kept::Yes
        };
        // TTFT 30, TPOT (50 - 30) / 2 = 10, E2E 52.
        let row = answer(0, &[30, 50], Some(3));
        assert!(good(&row, &limit(30, 10, 52)));
        assert!(!good(&row, &limit(29, 10, 52)));
        assert!(!good(&row, &limit(30, 9, 52)));
        assert!(!good(&row, &limit(30, 10, 51)));
        assert!(good(&row, &Slo::default()));
        let late = crate::store::record::Record {
            deadline_ns: Some(51 * MS),
            ..row
        };
        assert!(!good(&late, &Slo::default()));
        // One token has no TPOT to keep; that of an uncounted answer is unknown, unless it missed another limit.
        assert!(good(&answer(0, &[30], Some(1)), &limit(30, 9, 52)));
        let uncounted = [answer(0, &[30, 50], None)];
        let kept = |slo: &Slo| Request::all(&uncounted, 0)[0].kept(slo);
        assert_eq!(kept(&limit(30, 10, 52)), Kept::Unknown);
        assert_eq!(kept(&limit(29, 10, 52)), Kept::No);
        assert_eq!(
            kept(&Slo {
                tpot: None,
                ..limit(30, 10, 52)
            }),
            Kept::Yes
        );
        assert!(!good(&refused(0), &Slo::default()));
    }

    #[test]
    fn an_answer_in_one_piece_has_no_cadence() {
        let records = [answer(0, &[30], Some(8))];
        assert_eq!(Request::all(&records, 0)[0].tpot_ns(), None);
    }
}
