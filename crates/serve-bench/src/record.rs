//! The raw row of one attempt. Whatever a report says can be computed from a file of these.
//!
//! All times are nanoseconds since the start of the run. Refusals, errors and requests that were never
//! sent have rows like any other: a table that leaves them out flatters the server.

use std::io::{self, BufRead, Write};

use serde::{Deserialize, Serialize};
use thiserror::Error;

/// How an attempt ended.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    /// The answer came whole.
    Ok,
    /// The server said that it is too busy: status 429 or 503, before any text.
    Refused,
    /// Anything else went wrong: no connection, another status, an answer cut short, a timeout.
    Failed,
    /// The run was stopped while the attempt was under way.
    Cancelled,
    /// The run was stopped before the request was due.
    NotSent,
}

/// One attempt.
#[derive(Clone, Debug, Deserialize, PartialEq, Eq, Serialize)]
pub struct Record {
    /// Its place in the workload, from 0.
    pub index: u64,
    /// When it was due. In a closed loop, when its client became free.
    pub scheduled_ns: u64,
    /// When it was sent.
    pub sent_ns: Option<u64>,
    /// When the answer's status and headers were there.
    pub headers_ns: Option<u64>,
    /// When each chunk with text was there. A chunk may hold several tokens; one without text, such as
    /// a first chunk with a role alone, is not listed.
    pub chunks_ns: Vec<u64>,
    /// When it was over, in any way.
    pub end_ns: Option<u64>,
    /// How it ended.
    pub outcome: Outcome,
    /// The HTTP status.
    pub status: Option<u16>,
    /// Why the server stopped generating.
    pub finish_reason: Option<String>,
    /// Tokens in the prompt, as the server counts.
    pub prompt_tokens: Option<u32>,
    /// Tokens in the answer, as the server counts.
    pub output_tokens: Option<u32>,
    /// What went wrong, in the server's words if it had any.
    pub error: Option<String>,
}

impl Record {
    /// A request that was due and has not been sent.
    pub fn not_sent(index: u64, scheduled_ns: u64) -> Self {
        Self {
            index,
            scheduled_ns,
            sent_ns: None,
            headers_ns: None,
            chunks_ns: Vec::new(),
            end_ns: None,
            outcome: Outcome::NotSent,
            status: None,
            finish_reason: None,
            prompt_tokens: None,
            output_tokens: None,
            error: None,
        }
    }
}

/// A file of rows that cannot be read.
#[derive(Debug, Error)]
pub enum ReadError {
    /// The file cannot be read.
    #[error("cannot read rows: {0}")]
    Io(#[from] io::Error),
    /// A line is no row.
    #[error("line {line} is no row: {cause}")]
    Line {
        /// The line, from 1.
        line: usize,
        /// What the parser says.
        cause: serde_json::Error,
    },
}

/// Writes one row as one line of JSON.
///
/// # Errors
///
/// What the writer says.
pub fn write(record: &Record, out: &mut impl Write) -> io::Result<()> {
    serde_json::to_writer(&mut *out, record)?;
    out.write_all(b"\n")
}

/// Reads rows until the end; blank lines are skipped.
///
/// # Errors
///
/// [`ReadError`] at the first line that is no row.
pub fn read(input: impl BufRead) -> Result<Vec<Record>, ReadError> {
    let mut records = Vec::new();
    for (index, line) in input.lines().enumerate() {
        let line = line?;
        if line.trim().is_empty() {
            continue;
        }
        let record = serde_json::from_str(&line).map_err(|cause| ReadError::Line {
            line: index + 1,
            cause,
        })?;
        records.push(record);
    }
    Ok(records)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_survive_the_file() {
        let mut ok = Record::not_sent(3, 1_500);
        ok.outcome = Outcome::Ok;
        ok.chunks_ns = vec![2_000, 2_500];
        ok.error = Some("line\nbreak".to_owned());
        let rows = [Record::not_sent(0, 0), ok];
        let mut file = Vec::new();
        for row in &rows {
            write(row, &mut file).unwrap();
        }
        assert_eq!(file.iter().filter(|&&byte| byte == b'\n').count(), 2);
        assert_eq!(read(file.as_slice()).unwrap(), rows);
    }

    #[test]
    fn a_bad_line_is_named() {
        let message = read("\n{\"index\": 1}\n".as_bytes())
            .unwrap_err()
            .to_string();
        assert!(message.starts_with("line 2 is no row"), "{message}");
    }
}
