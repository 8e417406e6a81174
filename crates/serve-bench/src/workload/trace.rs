//! Recorded traffic: the trace formats of Azure and of Mooncake, and the log of `serve`.
//!
//! A trace whose clock is coarse puts many requests on one tick. Sent like that they would be bursts
//! that never were, so each is moved to a random place within its tick.

use std::path::Path;

use serde::Deserialize;
use serve_core::Span;

use super::WorkloadError;
use super::draw::{Purpose, stream};
use super::files::Files;
use crate::workload::spec::{Replay, Spec, Trace};

/// Prompt tokens that one hash of a Mooncake trace stands for.
pub const BLOCK_TOKENS: u32 = 512;

/// One request of a trace.
#[derive(Clone, Debug, PartialEq)]
pub struct Traced {
    /// When it comes, counted from the first one.
    pub due: Span,
    /// Tokens in its prompt.
    pub prompt_tokens: u32,
    /// Tokens in its answer.
    pub output_tokens: u32,
    /// Names of its prompt's blocks, equal where the text is equal; empty where the trace has none.
    pub blocks: Vec<u64>,
    /// Tokens in each of those blocks.
    pub block_tokens: u32,
}

/// The trace of a specification that replays one.
pub(super) fn read(spec: &Spec, files: &mut Files) -> Result<Option<Vec<Traced>>, WorkloadError> {
    let Some((format, replay)) = spec.arrivals.replay() else {
        return Ok(None);
    };
    let text = files.read(&replay.file)?;
    let path = files.path(&replay.file);
    let mut rows = match format {
        Trace::Azure => azure(&path, &text)?,
        Trace::Mooncake => mooncake(&path, &text)?,
        Trace::ServeLog => serve_log(&path, &text)?,
    };
    rows.retain(|row| {
        replay
            .prompt_tokens_max
            .is_none_or(|max| row.prompt_tokens <= max.get())
    });
    if rows.is_empty() {
        let cause = "no request in it, or none with a short enough prompt".to_owned();
        return Err(WorkloadError::Empty { file: path, cause });
    }
    schedule(&mut rows, replay, spec.seed);
    Ok(Some(rows))
}

/// A trace as it was recorded, at the times of its clock: of Mooncake, where lines are JSON objects, else of Azure.
///
/// # Errors
///
/// [`WorkloadError`] when the file cannot be read, or a line is no request.
pub fn recorded(path: &Path) -> Result<Vec<Traced>, WorkloadError> {
    let text = std::fs::read_to_string(path).map_err(|source| WorkloadError::Io {
        file: path.to_owned(),
        source,
    })?;
    match text.starts_with('{') {
        true => mooncake(path, &text),
        false => azure(path, &text),
    }
}

/// Spreads requests over their ticks, and turns times of the recording into times of the run.
fn schedule(rows: &mut [Traced], replay: &Replay, seed: u64) {
    rows.sort_by_key(|row| row.due);
    let tick_ns = match replay.tick_ms {
        Some(tick_ms) => tick_ms * 1e6,
        None => smallest_step(rows).as_nanos() as f64,
    };
    for (number, row) in rows.iter_mut().enumerate() {
        let jitter = stream(seed, Purpose::Jitter, number as u64).next_f64() * tick_ns;
        row.due += Span::from_nanos(jitter as u64);
    }
    rows.sort_by_key(|row| row.due);
    let first = rows.first().map_or(Span::ZERO, |row| row.due);
    for row in rows {
        let since = row.due.saturating_sub(first).as_nanos() as f64;
        row.due = Span::from_nanos((since / replay.speed.get()).round() as u64);
        if let Some(max) = replay.output_tokens_max {
            row.output_tokens = row.output_tokens.min(max.get());
        }
    }
}

/// The smallest difference between two times.
fn smallest_step(rows: &[Traced]) -> Span {
    let steps = rows
        .windows(2)
        .map(|pair| pair[1].due.saturating_sub(pair[0].due));
    steps
        .filter(|step| !step.is_zero())
        .min()
        .unwrap_or(Span::ZERO)
}

fn azure(path: &Path, text: &str) -> Result<Vec<Traced>, WorkloadError> {
    const HEADER: &str = "TIMESTAMP,ContextTokens,GeneratedTokens";
    let wrong = |line, cause: String| WorkloadError::Line {
        file: path.to_owned(),
        line,
        cause,
    };
    let mut lines = (1..).zip(text.lines());
    let header = lines.next().map_or("", |(_, header)| header.trim());
    if header != HEADER {
        return Err(wrong(
            1,
            format!("the first line is {header:?}; accepted is {HEADER:?}"),
        ));
    }
    let mut rows = Vec::new();
    for (line, text) in lines.filter(|(_, text)| !text.trim().is_empty()) {
        let row = azure_row(text).ok_or_else(|| {
            let accepted = "accepted is 2023-11-16 18:15:46.6805900,374,44";
            wrong(line, format!("{text:?} is no request; {accepted}"))
        })?;
        rows.push(row);
    }
    let first = rows.iter().map(|row| row.due).min().unwrap_or(Span::ZERO);
    rows.iter_mut()
        .for_each(|row| row.due = row.due.saturating_sub(first));
    Ok(rows)
}

fn azure_row(line: &str) -> Option<Traced> {
    let mut cells = line.split(',').map(str::trim);
    let (time, prompt, output) = (cells.next()?, cells.next()?, cells.next()?);
    // Their time has a space where RFC 3339 has a T, and no zone.
    let time = humantime::parse_rfc3339_weak(time.trim_end_matches('Z')).ok()?;
    let since = time
        .duration_since(std::time::SystemTime::UNIX_EPOCH)
        .ok()?;
    Some(Traced {
        due: since.into(),
        prompt_tokens: prompt.parse().ok().filter(|tokens| *tokens > 0)?,
        output_tokens: output.parse::<u32>().ok()?.max(1),
        blocks: Vec::new(),
        block_tokens: BLOCK_TOKENS,
    })
}

fn mooncake(path: &Path, text: &str) -> Result<Vec<Traced>, WorkloadError> {
    /// Also under the short names of a compacted copy, whose hashes are runs of consecutive numbers.
    #[derive(Deserialize)]
    struct Line {
        #[serde(alias = "t")]
        timestamp: u64,
        #[serde(alias = "i")]
        input_length: u32,
        #[serde(alias = "o")]
        output_length: u32,
        #[serde(default)]
        hash_ids: Vec<u64>,
        #[serde(default)]
        h: Vec<(u64, u64)>,
    }
    let filled = (1..)
        .zip(text.lines())
        .filter(|(_, text)| !text.trim().is_empty());
    let rows = filled.map(|(line, text)| {
        let row: Line = serde_json::from_str(text).map_err(|error| {
            let accepted = "accepted is {\"timestamp\": ms, \"input_length\": .., \"output_length\": .., \
                \"hash_ids\": [..]}";
            WorkloadError::Line { file: path.to_owned(), line, cause: format!("{error}; {accepted}") }
        })?;
        let mut blocks = row.hash_ids;
        blocks.extend(row.h.iter().flat_map(|(start, count)| *start..start.saturating_add(*count)));
        Ok(Traced {
            due: Span::from_millis(row.timestamp),
            prompt_tokens: row.input_length.max(1),
            output_tokens: row.output_length.max(1),
            blocks,
            block_tokens: BLOCK_TOKENS,
        })
    });
    rows.collect()
}

/// Lines of the access log as objects; those of requests that came to no prompt, and all others, are left out.
fn serve_log(path: &Path, text: &str) -> Result<Vec<Traced>, WorkloadError> {
    /// A line is written at the end of its request.
    #[derive(Deserialize)]
    struct Line {
        timestamp: String,
        message: String,
        #[serde(default)]
        total_ms: f64,
        prompt_tokens: Option<u32>,
        output_tokens: Option<u32>,
        blocks: Option<String>,
    }
    let row = |text: &str| {
        let line: Line = serde_json::from_str(text).map_err(|error| error.to_string())?;
        let Some(prompt_tokens) = line.prompt_tokens.filter(|_| line.message == "request") else {
            return Ok(None);
        };
        let end = humantime::parse_rfc3339_weak(&line.timestamp);
        let end = end.map_err(|error| format!("timestamp: {error}"))?;
        let since = end.duration_since(std::time::SystemTime::UNIX_EPOCH);
        let since: Span = since.map_err(|error| error.to_string())?.into();
        let blocks = line.blocks.as_deref().map(told_blocks);
        let (block_tokens, blocks) = match blocks {
            None => (BLOCK_TOKENS, Vec::new()),
            Some(told) => told.ok_or("blocks: accepted is 16:0123456789ab,..")?,
        };
        Ok::<_, String>(Some(Traced {
            due: since.saturating_sub(Span::from_secs_f64(line.total_ms.max(0.0) / 1e3)),
            prompt_tokens: prompt_tokens.max(1),
            output_tokens: line.output_tokens.unwrap_or(0).max(1),
            blocks,
            block_tokens,
        }))
    };
    let lines = (1..).zip(text.lines());
    let lines = lines.filter(|(_, text)| !text.trim().is_empty());
    let rows = lines.filter_map(|(line, text)| {
        let wrong = |cause| WorkloadError::Line {
            file: path.to_owned(),
            line,
            cause,
        };
        row(text).map_err(wrong).transpose()
    });
    let mut rows = rows.collect::<Result<Vec<_>, _>>()?;
    let first = rows.iter().map(|row| row.due).min().unwrap_or(Span::ZERO);
    rows.iter_mut()
        .for_each(|row| row.due = row.due.saturating_sub(first));
    Ok(rows)
}

/// `16:0123456789ab,..` as the log of `serve` tells blocks.
fn told_blocks(told: &str) -> Option<(u32, Vec<u64>)> {
    let (tokens, hashes) = told.split_once(':')?;
    let tokens = tokens.parse().ok().filter(|tokens| *tokens > 0)?;
    let hashes = hashes.split(',').filter(|hash| !hash.is_empty());
    let hashes = hashes.map(|hash| u64::from_str_radix(hash, 16).ok());
    Some((tokens, hashes.collect::<Option<_>>()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn replay(more: &str) -> Replay {
        toml::from_str(&format!("file = \"trace\"\n{more}")).unwrap()
    }

    #[test]
    fn azure_times_become_times_of_the_run() {
        let text = "TIMESTAMP,ContextTokens,GeneratedTokens\n\
            2023-11-16 18:15:46.6805900,374,44\n2023-11-16 18:15:50.9951690,396,0";
        let mut rows = azure(Path::new("a.csv"), text).unwrap();
        schedule(&mut rows, &replay("tick_ms = 0\nspeed = 2"), 1);
        let times = rows
            .iter()
            .map(|row| row.due.as_nanos())
            .collect::<Vec<_>>();
        assert_eq!(times, [0, 4_314_579_000 / 2]);
        assert_eq!(
            (
                rows[0].prompt_tokens,
                rows[0].output_tokens,
                rows[1].output_tokens
            ),
            (374, 44, 1)
        );

        let error = |text: &str| azure(Path::new("a.csv"), text).unwrap_err().to_string();
        assert!(error("x\n").starts_with("a.csv:1: the first line is \"x\""));
        let bad = text.replace("396", "many");
        assert!(error(&bad).starts_with("a.csv:3: "), "{}", error(&bad));
    }

    #[test]
    fn requests_on_one_tick_are_spread_over_it_and_stay_in_it() {
        let line = |ms: u64| {
            format!(
                "{{\"timestamp\":{ms},\"input_length\":600,\"output_length\":5,\"hash_ids\":[0,1]}}\n"
            )
        };
        let text = (0..300)
            .map(|index| line(index / 100 * 3_000))
            .collect::<String>();
        let mut rows = mooncake(Path::new("m.jsonl"), &text).unwrap();
        schedule(&mut rows, &replay(""), 1);
        let within = |from: u64, to: u64| {
            let range = Span::from_millis(from)..Span::from_millis(to);
            rows.iter().filter(|row| range.contains(&row.due)).count()
        };
        // The run begins with the first request, which is somewhere in the first tick.
        assert_eq!(within(0, 9_000), 300);
        assert!(
            (90..=110).contains(&within(0, 3_000)),
            "{}",
            within(0, 3_000)
        );
        let distinct = rows
            .windows(2)
            .filter(|pair| pair[0].due < pair[1].due)
            .count();
        assert_eq!(distinct, 299);
        assert!((30..70).contains(&within(0, 1_500)), "{}", within(0, 1_500));

        let error = mooncake(Path::new("m.jsonl"), "{}")
            .unwrap_err()
            .to_string();
        assert!(
            error.starts_with("m.jsonl:1: missing field `timestamp`"),
            "{error}"
        );
    }

    /// Lines as `serve --log-format json --log-prompt-blocks 16` writes them.
    #[test]
    fn a_log_of_the_server_is_a_trace() {
        let request = |second: u32, total_ms: f64, more: &str| {
            format!(
                "{{\"timestamp\":\"2026-11-30T22:00:{second:02}.500000Z\",\"level\":\"INFO\",\"message\":\"request\",\
                 \"status\":200,\"total_ms\":{total_ms}{more}}}\n"
            )
        };
        let text = [
            "{\"timestamp\":\"2026-11-30T22:00:00.000000Z\",\"message\":\"draining\"}\n".to_owned(),
            // It began first and ended last.
            request(
                9,
                8_000.0,
                ",\"prompt_tokens\":40,\"output_tokens\":7,\"blocks\":\"16:0a,ffffffffffff\"",
            ),
            request(
                2,
                250.0,
                ",\"prompt_tokens\":15,\"output_tokens\":0,\"blocks\":\"16:\"",
            ),
            request(3, 1.0, ",\"outcome\":\"overloaded\""),
            request(4, 1_000.0, ",\"prompt_tokens\":8,\"output_tokens\":2"),
        ]
        .concat();
        let rows = serve_log(Path::new("s.log"), &text).unwrap();
        let told = rows.iter().map(|row| {
            let due = (row.due.as_secs_f64() * 1e3).round() as u64;
            (
                due,
                row.prompt_tokens,
                row.output_tokens,
                row.blocks.clone(),
            )
        });
        assert_eq!(
            told.collect::<Vec<_>>(),
            [
                (0, 40, 7, vec![10, (1 << 48) - 1]),
                (750, 15, 1, vec![]),
                (2_000, 8, 2, vec![]),
            ]
        );
        assert_eq!(rows[0].block_tokens, 16);
        for (wrong, says) in [
            ("request 17".to_owned(), "s.log:2: expected value"),
            (
                request(1, 0.0, ",\"prompt_tokens\":1,\"blocks\":\"x\""),
                "s.log:2: blocks: accepted is",
            ),
            (
                request(1, 0.0, ",\"prompt_tokens\":1").replace("-11-", "-13-"),
                "s.log:2: timestamp",
            ),
        ] {
            let error = serve_log(Path::new("s.log"), &format!("\n{wrong}")).unwrap_err();
            assert!(error.to_string().starts_with(says), "{error}");
        }
    }

    #[test]
    fn both_spellings_of_hashes_are_the_same_blocks() {
        let long =
            "{\"timestamp\":0,\"input_length\":9,\"output_length\":1,\"hash_ids\":[4,5,6,9]}";
        let short = "{\"t\":0,\"i\":9,\"o\":1,\"h\":[[4,3],[9,1]]}";
        let path = Path::new("m");
        assert_eq!(
            mooncake(path, long).unwrap(),
            mooncake(path, short).unwrap()
        );
    }
}
