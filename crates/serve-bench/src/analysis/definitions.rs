//! What each number means: the one table that the printed tables, the report, the manifest and the
//! docs take their words from.

use std::collections::BTreeMap;

use serde::{Serialize, Serializer};

use crate::analysis::request::Request;

/// A time that requests take, in milliseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Metric {
    /// Time to first token, as a user waits for it.
    Ttft,
    /// The same from the actual send.
    TtftSent,
    /// Inter-token latency, as chunks arrive.
    ItlChunk,
    /// Inter-token latency for each token.
    ItlToken,
    /// Time per output token after the first.
    Tpot,
    /// End to end, as a user waits for it.
    E2e,
    /// The same from the actual send.
    E2eSent,
    /// Waiting, as the server says.
    Queue,
    /// Running the prompt, as the server says.
    Prefill,
    /// Generating, as the server says.
    Decode,
    /// How late the client was.
    Lag,
}

impl Metric {
    /// All, in the order of a table.
    pub const ALL: [Self; 11] = [
        Self::Ttft,
        Self::TtftSent,
        Self::ItlChunk,
        Self::ItlToken,
        Self::Tpot,
        Self::E2e,
        Self::E2eSent,
        Self::Queue,
        Self::Prefill,
        Self::Decode,
        Self::Lag,
    ];

    /// Its name in a table.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Ttft => "TTFT",
            Self::TtftSent => "TTFT (sent)",
            Self::ItlChunk => "ITL (chunk)",
            Self::ItlToken => "ITL (token)",
            Self::Tpot => "TPOT",
            Self::E2e => "E2E",
            Self::E2eSent => "E2E (sent)",
            Self::Queue => "queue",
            Self::Prefill => "prefill",
            Self::Decode => "decode",
            Self::Lag => "send lag",
        }
    }

    /// Its name in files.
    pub const fn key(self) -> &'static str {
        match self {
            Self::Ttft => "ttft_ms",
            Self::TtftSent => "ttft_sent_ms",
            Self::ItlChunk => "itl_chunk_ms",
            Self::ItlToken => "itl_token_ms",
            Self::Tpot => "tpot_ms",
            Self::E2e => "e2e_ms",
            Self::E2eSent => "e2e_sent_ms",
            Self::Queue => "queue_ms",
            Self::Prefill => "prefill_ms",
            Self::Decode => "decode_ms",
            Self::Lag => "lag_ms",
        }
    }

    /// From what to what.
    pub const fn definition(self) -> &'static str {
        match self {
            Self::Ttft => "scheduled send to first chunk with text",
            Self::TtftSent => {
                "actual send (of the attempt that was answered) to first chunk with text"
            }
            Self::ItlChunk => "one chunk with text to the next, every gap",
            Self::ItlToken => {
                "each token's share of its chunk's gap; absent where tokens in a chunk are not known"
            }
            Self::Tpot => {
                "(last - first chunk) / (output tokens - 1); absent for one token or chunk"
            }
            Self::E2e => "scheduled send to end of answer",
            Self::E2eSent => "actual send (of the attempt that was answered) to end of answer",
            Self::Queue => "arrival to first step, as the server says",
            Self::Prefill => "first step to first token, as the server says",
            Self::Decode => "first token to last, as the server says",
            Self::Lag => "scheduled to actual send, every attempt that was sent",
        }
    }

    /// Adds the values of a request, in milliseconds: none where the metric does not apply, one for a
    /// metric of the whole answer, one for each gap for ITL.
    pub fn values(self, request: &Request<'_>, out: &mut Vec<f64>) {
        if self == Self::Lag {
            let lag = |row: &&crate::store::record::Record| {
                Some(millis(row.sent_ns?.saturating_sub(row.scheduled_ns)))
            };
            out.extend(request.attempts().iter().filter_map(lag));
            return;
        }
        let Some(answer) = request.answer() else {
            return;
        };
        let since_sent = |end: Option<u64>| Some(end?.saturating_sub(answer.sent_ns?));
        let timings = answer.timings.unwrap_or_default();
        let gaps = || {
            let pairs = answer.chunks.windows(2);
            pairs.map(|pair| millis(pair[1].at_ns.saturating_sub(pair[0].at_ns)))
        };
        match self {
            Self::Ttft => out.extend(request.ttft_ns().map(millis)),
            Self::TtftSent => out.extend(since_sent(answer.first_token_ns()).map(millis)),
            Self::ItlChunk => out.extend(gaps()),
            Self::ItlToken => {
                let tokens = answer.chunk_tokens().unwrap_or_default();
                for (gap, tokens) in gaps().zip(tokens.into_iter().skip(1)) {
                    out.extend((0..tokens).map(|_| gap / f64::from(tokens)));
                }
            }
            Self::Tpot => out.extend(request.tpot_ns().map(millis)),
            Self::E2e => out.extend(request.e2e_ns().map(millis)),
            Self::E2eSent => out.extend(since_sent(answer.end_ns).map(millis)),
            Self::Queue => out.extend(timings.queue_ms),
            Self::Prefill => out.extend(timings.prefill_ms),
            Self::Decode => out.extend(timings.decode_ms),
            Self::Lag => {}
        }
    }
}

impl Serialize for Metric {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.key())
    }
}

/// A word of a report and what it means.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Definition {
    /// The word.
    pub name: &'static str,
    /// Its meaning.
    pub meaning: &'static str,
}

/// The words that are no [`Metric`].
const WORDS: [Definition; 16] = [
    word(
        "request",
        "one place in the workload with all its attempts; retries are attempts, not requests",
    ),
    word(
        "answered",
        "requests whose last attempt ended with a whole answer; times are of these",
    ),
    word(
        "unfinished",
        "requests that were cancelled, or never sent because the run was stopped",
    ),
    word(
        "pNN",
        "nearest rank over the values of answered requests; * where fewer than 10 values lie beyond",
    ),
    word(
        "pNN of all",
        "nearest rank over all requests, of which those without an answer come last (shown as never)",
    ),
    word(
        "interval",
        "95% bootstrap percentile interval; the line under the table says what was drawn again",
    ),
    word(
        "wall time",
        "first scheduled send to last end, after warm-up, added up over runs",
    ),
    word(
        "offered",
        "requests due a second, first to last; open loop, retries and later turns left out",
    ),
    word(
        "delivered",
        "the same requests sent a second; VOID where rate, lag or gaps miss the run's own limits",
    ),
    word(
        "goodput",
        "requests whose answer kept every SLO and its deadline / wall time",
    ),
    word(
        "good share",
        "the same requests / all requests, failed, refused and unfinished among them",
    ),
    word(
        "retry amplification",
        "attempts sent / requests sent: how many times the demand the server saw",
    ),
    word(
        "starved",
        "requests that waited longer than the limit for a first token, or gave up after it",
    ),
    word(
        "Jain's index",
        "(sum x)^2 / (n sum x^2) over tenants or classes, x the share of its requests answered",
    ),
    word(
        "Little's law",
        "mean in flight against arrival rate times mean stay, between first and last arrival",
    ),
    word(
        "cost",
        "price an hour / (output tokens of whole answers a second * 3600) * 1e6",
    ),
];

const fn word(name: &'static str, meaning: &'static str) -> Definition {
    Definition { name, meaning }
}

/// Every definition, metrics first.
pub fn all() -> impl Iterator<Item = Definition> {
    let metrics = Metric::ALL.into_iter();
    metrics
        .map(|metric| word(metric.name(), metric.definition()))
        .chain(WORDS)
}

/// The same by name, for a manifest.
pub fn by_name() -> BTreeMap<String, String> {
    all()
        .map(|it| (it.name.to_owned(), it.meaning.to_owned()))
        .collect()
}

fn millis(nanos: u64) -> f64 {
    nanos as f64 / 1e6
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::analysis::testing::{answer, numbered, refused};
    use crate::store::record::{Record, Timings};

    fn values(metric: Metric, record: &Record) -> Vec<f64> {
        let mut out = Vec::new();
        metric.values(&Request::all(std::slice::from_ref(record), 0)[0], &mut out);
        out
    }

    #[test]
    fn every_metric_of_one_answer_is_the_one_computed_by_hand() {
        // Due at 100, sent at 101; six tokens in three chunks at 130 (1), 150 (2), 180 (3); end at 182.
        let mut row = answer(100, &[130, 150, 180], Some(6));
        for (chunk, tokens) in row.chunks.iter_mut().zip([1, 2, 3]) {
            chunk.tokens = Some(tokens);
        }
        row.timings = Some(Timings {
            queue_ms: Some(4.0),
            prefill_ms: Some(20.5),
            decode_ms: None,
            ..Timings::default()
        });
        for (metric, expected) in [
            (Metric::Ttft, &[30.0][..]),
            (Metric::TtftSent, &[29.0]),
            (Metric::ItlChunk, &[20.0, 30.0]),
            (Metric::ItlToken, &[10.0, 10.0, 10.0, 10.0, 10.0]),
            (Metric::Tpot, &[10.0]),
            (Metric::E2e, &[82.0]),
            (Metric::E2eSent, &[81.0]),
            (Metric::Queue, &[4.0]),
            (Metric::Prefill, &[20.5]),
            (Metric::Decode, &[]),
            (Metric::Lag, &[1.0]),
        ] {
            assert_eq!(values(metric, &row), expected, "{metric:?}");
        }
    }

    #[test]
    fn what_is_not_known_is_absent() {
        let uncounted = answer(0, &[10, 20, 40], None);
        assert_eq!(values(Metric::ItlChunk, &uncounted), [10.0, 20.0]);
        assert!(values(Metric::ItlToken, &uncounted).is_empty());
        assert!(values(Metric::Tpot, &uncounted).is_empty());
        assert!(values(Metric::Tpot, &answer(0, &[10], Some(1))).is_empty());
        for metric in Metric::ALL {
            let lends_none = metric == Metric::Lag || values(metric, &refused(0)).is_empty();
            assert!(lends_none, "{metric:?}");
        }
        assert_eq!(values(Metric::Lag, &refused(0)), [1.0]);
        assert!(values(Metric::Lag, &Record::not_sent(0, 5)).is_empty());
    }

    #[test]
    fn the_lag_of_every_attempt_counts() {
        let mut rows = numbered([refused(0), answer(10, &[12], Some(1))]);
        (rows[1].request, rows[1].attempt) = (0, 1);
        let mut out = Vec::new();
        Metric::Lag.values(&Request::all(&rows, 0)[0], &mut out);
        assert_eq!(out, [1.0, 1.0]);
    }

    #[test]
    fn no_word_is_defined_twice() {
        assert_eq!(by_name().len(), all().count());
        let keys = Metric::ALL.map(Metric::key);
        let unique = std::collections::BTreeSet::from(keys);
        assert_eq!(unique.len(), keys.len());
    }
}
