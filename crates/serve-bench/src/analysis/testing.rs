//! Rows for tests.

use crate::store::record::{Outcome, Record};

pub(crate) const MS: u64 = 1_000_000;

/// An answer that was due at `due` ms, sent 1 ms later, with chunks at the given ms, ended 2 ms after
/// the last.
pub(crate) fn answer(due: u64, chunks: &[u64], tokens: Option<u32>) -> Record {
    Record {
        sent_ns: Some((due + 1) * MS),
        chunks: chunks.iter().map(|ms| (ms * MS, None).into()).collect(),
        end_ns: chunks.last().map(|ms| (ms + 2) * MS),
        outcome: Outcome::Ok,
        output_tokens: tokens,
        ..Record::not_sent(0, due * MS)
    }
}

/// A refusal 3 ms after it was due.
pub(crate) fn refused(due: u64) -> Record {
    Record {
        sent_ns: Some((due + 1) * MS),
        end_ns: Some((due + 3) * MS),
        outcome: Outcome::Refused,
        status: Some(503),
        cause: Some("queue_full".to_owned()),
        ..Record::not_sent(0, due * MS)
    }
}

/// Numbers the rows in their order.
pub(crate) fn numbered(rows: impl IntoIterator<Item = Record>) -> Vec<Record> {
    let mut rows = rows.into_iter().collect::<Vec<_>>();
    for (row, index) in rows.iter_mut().zip(0..) {
        row.request = index;
    }
    rows
}
