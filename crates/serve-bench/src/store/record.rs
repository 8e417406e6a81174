//! The raw row of one attempt. Whatever a report says is computed from a file of these and the
//! [manifest](crate::store::manifest) beside it.
//!
//! All times are whole nanoseconds since the start of the run, on the client's monotonic clock.
//! Refusals, errors, retries and requests that were never sent have rows like any other: a table that
//! leaves them out flatters the server. The file is JSONL: a line that names the format and its
//! version, then one row a line, in the order in which the attempts ended.

use std::fs::File;
use std::io::{self, BufRead, BufReader, Write};
use std::path::Path;

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use thiserror::Error;

use crate::hex::hex;
use crate::store::manifest::Source;

/// The name of the format, in the first line of a file of rows.
pub const FORMAT: &str = "serve-bench rows";

/// The version of the format that this program writes, and the only one that it reads.
pub const VERSION: u32 = 2;

/// How an attempt ended.
#[derive(Clone, Copy, Debug, Default, Deserialize, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    /// The answer came whole.
    Ok,
    /// The server said that it is too busy: status 429 or 503, before any text.
    Refused,
    /// Anything else went wrong: no connection, another status, an answer cut short, a timeout, a
    /// deadline that passed.
    Failed,
    /// The client cancelled it: the workload said so, or the run was stopped.
    Cancelled,
    /// It was due and never sent: the run was stopped, or the turn before it got no answer.
    #[default]
    NotSent,
}

/// A piece of an answer that holds text. Written as `[at_ns, tokens]`.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq, Serialize)]
#[serde(from = "(u64, Option<u32>)", into = "(u64, Option<u32>)")]
pub struct Chunk {
    /// When it was there.
    pub at_ns: u64,
    /// How many tokens it holds, where the server says so in the stream (a running `usage`). A chunk
    /// is not a token: see [`Record::chunk_tokens`].
    pub tokens: Option<u32>,
}

impl From<(u64, Option<u32>)> for Chunk {
    fn from((at_ns, tokens): (u64, Option<u32>)) -> Self {
        Self { at_ns, tokens }
    }
}

impl From<Chunk> for (u64, Option<u32>) {
    fn from(chunk: Chunk) -> Self {
        (chunk.at_ns, chunk.tokens)
    }
}

/// Where the time went, in the server's own words (a `timings` object in the answer), in milliseconds
/// of its clock. What a server does not say is absent.
#[derive(Clone, Copy, Debug, Default, Deserialize, PartialEq, Serialize)]
#[serde(default)]
pub struct Timings {
    /// From arrival to the first step that worked on the request.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub queue_ms: Option<f64>,
    /// From there to the first token.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub prefill_ms: Option<f64>,
    /// From the first token to the last.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub decode_ms: Option<f64>,
    /// How often the request lost its place on the device.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub preemptions: Option<u32>,
}

/// One attempt. A field that says nothing (absent, zero, false) is left out of the file.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct Record {
    /// The request's place in the workload, from 0. The attempts of one request share it.
    pub request: u64,
    /// Which attempt: 0 is the original, 1 its first retry.
    #[serde(skip_serializing_if = "is_zero")]
    pub attempt: u32,
    /// Where it comes from, unless that is a server that was asked over HTTP.
    #[serde(skip_serializing_if = "Source::is_http")]
    pub source: Source,
    /// In a closed loop, which client sent it, from 0.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub client: Option<u32>,
    /// The conversation that it is a turn of, from 0; absent for a request that stands alone.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub session: Option<u64>,
    /// Which turn of the conversation, from 0.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub turn: Option<u32>,
    /// The prompt set that it was drawn from, such as `short`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub prompt_set: Option<String>,
    /// For whom it was sent, in the workload's words.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tenant: Option<String>,
    /// In which class it was sent, in the server's words.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub class: Option<String>,
    /// Tokens in the prompt, as the workload planned them. What the server counted is
    /// [`prompt_tokens`](Self::prompt_tokens).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub prompt_tokens_planned: Option<u32>,
    /// Tokens that the answer was allowed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub output_tokens_max: Option<u32>,
    /// How long after its scheduled send the answer was of use, if there was a deadline.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub deadline_ns: Option<u64>,

    /// When it was due. Open loop: by the schedule. Closed loop: when its client became free (and had
    /// thought). A later turn: when the turn before had ended and its reader had thought. A retry: when
    /// its wait was over.
    pub scheduled_ns: u64,
    /// When the client began with it. Opening a connection comes after and counts as the server's time.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sent_ns: Option<u64>,
    /// When it had a connection; at once where one was kept open.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub connected_ns: Option<u64>,
    /// When the answer's status and headers were there.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub headers_ns: Option<u64>,
    /// Each piece of the answer with text. One without, such as a first chunk with a role alone, is not
    /// listed. An answer that was not streamed has one piece. The last one's time is that of the last
    /// token.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub chunks: Vec<Chunk>,
    /// When it was over, in any way: `[DONE]`, the end of the body, an error, a cancellation.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub end_ns: Option<u64>,

    /// How it ended.
    pub outcome: Outcome,
    /// The HTTP status.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub status: Option<u16>,
    /// Why the server stopped generating: `stop`, `length`, ..
    #[serde(skip_serializing_if = "Option::is_none")]
    pub finish_reason: Option<String>,
    /// Why it did not end [`Ok`](Outcome::Ok), as one word to count by. Of a refusal and of any other
    /// bad status: the server's `error.code` (or `error.type`, or `http_503`). Of other failures:
    /// `connect`, `cut_short`, `bad_answer`, `server_error`, `timeout`, `deadline`. Of a cancelled
    /// attempt: `planned` or `stopped`. Of one never sent: `stopped` or `earlier_turn`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cause: Option<String>,
    /// What went wrong, in the server's words if it had any.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// After how many milliseconds the server asked to be tried again (`Retry-After`).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub retry_after_ms: Option<u64>,
    /// Whether another attempt of the same request follows.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub retried: bool,
    /// The server's name for the request (`x-request-id`), for its logs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub server_request_id: Option<String>,

    /// Tokens in the prompt, as the server counts.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub prompt_tokens: Option<u32>,
    /// Tokens in the answer, as the server counts.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub output_tokens: Option<u32>,
    /// Prompt tokens that came from the server's prefix cache, as the server counts.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cached_tokens: Option<u32>,
    /// Where the time went, as the server says.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub timings: Option<Timings>,
}

impl Record {
    /// A request that was due and has not been sent.
    pub fn not_sent(request: u64, scheduled_ns: u64) -> Self {
        Self {
            request,
            scheduled_ns,
            ..Self::default()
        }
    }

    /// When the first text was there.
    pub fn first_token_ns(&self) -> Option<u64> {
        self.chunks.first().map(|chunk| chunk.at_ns)
    }

    /// When the last text was there.
    pub fn last_token_ns(&self) -> Option<u64> {
        self.chunks.last().map(|chunk| chunk.at_ns)
    }

    /// How many tokens each chunk holds, where that is known: the server said it for every chunk, or
    /// it counted as many tokens in all as there are chunks. Otherwise absent: several tokens may share
    /// a chunk, and which do cannot be told from outside.
    pub fn chunk_tokens(&self) -> Option<Vec<u32>> {
        let said = self.chunks.iter().map(|chunk| chunk.tokens);
        if let Some(said) = said.collect::<Option<Vec<_>>>() {
            return Some(said);
        }
        let one_each = self.output_tokens.map(|tokens| tokens as usize) == Some(self.chunks.len());
        one_each.then(|| vec![1; self.chunks.len()])
    }
}

fn is_zero(number: &u32) -> bool {
    *number == 0
}

/// A file of rows that cannot be read.
#[derive(Debug, Error)]
pub enum ReadError {
    /// The file cannot be read.
    #[error("{file}: {source}")]
    Io {
        /// The file.
        file: String,
        /// The operating system's answer.
        source: io::Error,
    },
    /// The first line does not say what the file is.
    #[error(
        "{file}:1: no file of rows; the first line must be {{\"format\":\"{FORMAT}\",\"version\":{VERSION}}}"
    )]
    NoHeader {
        /// The file.
        file: String,
    },
    /// Another version wrote the file.
    #[error("{file}:{line}: rows of version {version}; this program reads version {VERSION}")]
    Version {
        /// The file.
        file: String,
        /// The line, from 1.
        line: usize,
        /// What the file says.
        version: u32,
    },
    /// A line is no row.
    #[error("{file}:{line}: no row: {cause}")]
    Line {
        /// The file.
        file: String,
        /// The line, from 1.
        line: usize,
        /// What the parser says.
        cause: serde_json::Error,
    },
}

/// The first line of a file of rows.
#[derive(Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
struct Header {
    format: String,
    version: u32,
}

/// Writes rows as they come, and hashes what it writes.
#[derive(Debug)]
pub struct RowWriter<W> {
    out: W,
    line: Vec<u8>,
    hash: Sha256,
    rows: u64,
}

impl<W: Write> RowWriter<W> {
    /// A writer that has written the first line.
    ///
    /// # Errors
    ///
    /// What `out` says.
    pub fn new(out: W) -> io::Result<Self> {
        let mut writer = Self {
            out,
            line: Vec::new(),
            hash: Sha256::new(),
            rows: 0,
        };
        writer.line(&Header {
            format: FORMAT.to_owned(),
            version: VERSION,
        })?;
        Ok(writer)
    }

    /// Writes one row as one line of JSON.
    ///
    /// # Errors
    ///
    /// What `out` says.
    pub fn write(&mut self, record: &Record) -> io::Result<()> {
        self.line(record)?;
        self.rows += 1;
        Ok(())
    }

    /// Flushes; the number of rows, and the SHA-256 of the file in hexadecimal.
    ///
    /// # Errors
    ///
    /// What `out` says.
    pub fn finish(mut self) -> io::Result<(u64, String)> {
        self.out.flush()?;
        Ok((self.rows, hex(&self.hash.finalize())))
    }

    fn line(&mut self, value: &impl Serialize) -> io::Result<()> {
        self.line.clear();
        serde_json::to_writer(&mut self.line, value)?;
        self.line.push(b'\n');
        self.hash.update(&self.line);
        self.out.write_all(&self.line)
    }
}

/// Reads a file of rows.
///
/// # Errors
///
/// [`ReadError`] names the file and the line.
pub fn read(path: &Path) -> Result<Vec<Record>, ReadError> {
    let file = path.display().to_string();
    match File::open(path) {
        Ok(open) => parse(&file, BufReader::new(open)),
        Err(source) => Err(ReadError::Io { file, source }),
    }
}

/// Reads rows until the end; blank lines are skipped. Files may be joined end to end, since a first
/// line is accepted anywhere. Errors call the input `file`.
///
/// # Errors
///
/// [`ReadError`] at the first line that is no row.
pub fn parse(file: &str, input: impl BufRead) -> Result<Vec<Record>, ReadError> {
    let file = || file.to_owned();
    let mut records = Vec::new();
    let mut begun = false;
    for (index, text) in input.lines().enumerate() {
        let line = index + 1;
        let text = text.map_err(|source| ReadError::Io {
            file: file(),
            source,
        })?;
        if text.trim().is_empty() {
            continue;
        }
        if text.starts_with("{\"format\"") || !begun {
            let header = serde_json::from_str::<Header>(&text).ok();
            let header = header.filter(|header| header.format == FORMAT);
            let version = header
                .ok_or_else(|| ReadError::NoHeader { file: file() })?
                .version;
            if version != VERSION {
                return Err(ReadError::Version {
                    file: file(),
                    line,
                    version,
                });
            }
            begun = true;
            continue;
        }
        let record = serde_json::from_str(&text);
        records.push(record.map_err(|cause| ReadError::Line {
            file: file(),
            line,
            cause,
        })?);
    }
    match begun {
        true => Ok(records),
        false => Err(ReadError::NoHeader { file: file() }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn full() -> Record {
        Record {
            attempt: 1,
            source: Source::Simulated,
            client: Some(0),
            session: Some(4),
            turn: Some(0),
            prompt_set: Some("short".to_owned()),
            tenant: Some("acme".to_owned()),
            class: Some("paid".to_owned()),
            prompt_tokens_planned: Some(9),
            output_tokens_max: Some(2),
            deadline_ns: Some(5_000_000_000),
            sent_ns: Some(1_500),
            connected_ns: Some(1_600),
            headers_ns: Some(1_900),
            chunks: vec![(2_000, Some(2)).into(), (2_500, None).into()],
            end_ns: Some(2_600),
            outcome: Outcome::Failed,
            status: Some(200),
            finish_reason: Some("length".to_owned()),
            cause: Some("cut_short".to_owned()),
            error: Some("line\nbreak".to_owned()),
            retry_after_ms: Some(1_000),
            retried: true,
            server_request_id: Some("r-1".to_owned()),
            prompt_tokens: Some(11),
            output_tokens: Some(3),
            cached_tokens: Some(8),
            timings: Some(Timings {
                queue_ms: Some(0.25),
                ..Timings::default()
            }),
            ..Record::not_sent(3, 1_500)
        }
    }

    #[test]
    fn rows_survive_the_file() {
        let rows = [Record::not_sent(0, 0), full()];
        let mut file = Vec::new();
        let mut writer = RowWriter::new(&mut file).unwrap();
        rows.iter().for_each(|row| writer.write(row).unwrap());
        let (count, sha256) = writer.finish().unwrap();
        assert_eq!((count, sha256), (2, hex(&Sha256::digest(&file))));
        assert_eq!(file.iter().filter(|&&byte| byte == b'\n').count(), 3);
        assert_eq!(parse("rows", file.as_slice()).unwrap(), rows);
        let twice = [file.as_slice(), file.as_slice()].concat();
        assert_eq!(parse("rows", twice.as_slice()).unwrap().len(), 4);
    }

    #[test]
    fn a_row_says_nothing_of_what_it_does_not_know() {
        let text = serde_json::to_string(&Record::not_sent(7, 5)).unwrap();
        let expected = r#"{"request":7,"scheduled_ns":5,"outcome":"not_sent"}"#;
        assert_eq!(text, expected);
        let chunk = serde_json::to_string(&full().chunks).unwrap();
        assert_eq!(chunk, "[[2000,2],[2500,null]]");
    }

    #[test]
    fn what_is_wrong_with_a_file_is_named_with_its_line() {
        let header = format!("{{\"format\":\"{FORMAT}\",\"version\":{VERSION}}}\n");
        let error = |text: String| {
            parse("a/rows.jsonl", text.as_bytes())
                .unwrap_err()
                .to_string()
        };
        assert!(
            error(format!("\n{header}\n{{\"sheep\": 1}}\n"))
                .starts_with("a/rows.jsonl:4: no row: unknown field `sheep`")
        );
        assert!(error(String::new()).starts_with("a/rows.jsonl:1: no file of rows"));
        assert!(
            error("{\"request\": 1}\n".to_owned()).starts_with("a/rows.jsonl:1: no file of rows")
        );
        let newer = header.replace(&format!(":{VERSION}}}"), ":99}");
        assert_eq!(
            error(newer),
            format!("a/rows.jsonl:1: rows of version 99; this program reads version {VERSION}")
        );
        let nowhere = read(Path::new("/nowhere/at-all")).unwrap_err().to_string();
        assert!(nowhere.starts_with("/nowhere/at-all: "), "{nowhere}");
    }

    #[test]
    fn the_tokens_of_chunks_are_known_when_the_server_counts_them_or_each_is_one() {
        let chunks = |tokens: [Option<u32>; 2], output_tokens| Record {
            chunks: vec![(1, tokens[0]).into(), (2, tokens[1]).into()],
            output_tokens,
            ..Record::default()
        };
        assert_eq!(
            chunks([Some(3), Some(1)], Some(4)).chunk_tokens(),
            Some(vec![3, 1])
        );
        assert_eq!(
            chunks([None, None], Some(2)).chunk_tokens(),
            Some(vec![1, 1])
        );
        assert_eq!(chunks([None, None], Some(3)).chunk_tokens(), None);
        assert_eq!(chunks([Some(3), None], None).chunk_tokens(), None);
    }
}
