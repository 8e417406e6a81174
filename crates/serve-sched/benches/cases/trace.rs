//! Recorded traces: who arrived when, with how many tokens in and out.
//!
//! Two layouts are read. The Azure LLM inference trace is CSV with a header line,
//! `TIMESTAMP,ContextTokens,GeneratedTokens`. The Mooncake trace is JSON lines with `t` (ms), `i` and
//! `o` (tokens) and `h`, runs `[first, count]` of prefix blocks of 512 tokens, so that requests with
//! the same blocks share a prefix.

use serve_core::{Span, Time};

/// Recorded requests in the order of arrival.
pub(crate) struct Trace {
    pub(crate) requests: Vec<Recorded>,
    pub(crate) has_prefixes: bool,
}

/// One recorded request.
pub(crate) struct Recorded {
    pub(crate) arrival: Time,
    pub(crate) prompt_tokens: u32,
    pub(crate) output_tokens: u32,
    /// Runs of prefix blocks, if the trace has them.
    pub(crate) blocks: Vec<(u32, u32)>,
}

pub(crate) fn parse(text: &str) -> Result<Trace, String> {
    let has_prefixes = text.starts_with('{');
    let header = usize::from(!has_prefixes);
    let lines = text.lines().enumerate().skip(header);
    let lines = lines.filter(|(_, line)| !line.trim().is_empty());
    let parse_line = if has_prefixes { from_json } else { from_csv };
    let mut requests = Vec::new();
    for (index, line) in lines {
        let recorded = parse_line(line);
        requests.push(recorded.ok_or_else(|| {
            format!(
                "line {}: expected TIMESTAMP,ContextTokens,GeneratedTokens or \
                 {{\"t\":..,\"i\":..,\"o\":..,\"h\":[[..]]}}",
                index + 1
            )
        })?);
    }
    let first = requests
        .first()
        .map_or(Time::ZERO, |first: &Recorded| first.arrival);
    for recorded in &mut requests {
        recorded.arrival = Time::ZERO + recorded.arrival.since(first);
    }
    Ok(Trace {
        requests,
        has_prefixes,
    })
}

fn from_csv(line: &str) -> Option<Recorded> {
    let mut fields = line.trim().split(',');
    let arrival = timestamp(fields.next()?)?;
    Some(Recorded {
        arrival,
        prompt_tokens: fields.next()?.parse().ok()?,
        output_tokens: fields.next()?.parse().ok()?,
        blocks: Vec::new(),
    })
}

/// `2023-11-16 18:15:46.6805900`, as time since the start of its month.
fn timestamp(text: &str) -> Option<Time> {
    let (date, clock) = text.split_once(' ')?;
    let day: u64 = date.rsplit('-').next()?.parse().ok()?;
    let mut parts = clock.split(':');
    let hours: u64 = parts.next()?.parse().ok()?;
    let minutes: u64 = parts.next()?.parse().ok()?;
    let seconds: f64 = parts.next()?.parse().ok()?;
    let whole = Time::from_secs((day * 24 + hours) * 3_600 + minutes * 60);
    Some(whole + Span::from_secs_f64(seconds))
}

fn from_json(line: &str) -> Option<Recorded> {
    let after = |key: &str| Some(line.split_once(key)?.1);
    let number = |key: &str| {
        let digits = after(key)?.split([',', '}']).next()?;
        digits.trim().parse::<u64>().ok()
    };
    let runs = after("\"h\":[[")?.split("]]").next()?;
    let runs = runs.split("],[").map(|run| {
        let (first, count) = run.split_once(',')?;
        Some((first.trim().parse().ok()?, count.trim().parse().ok()?))
    });
    Some(Recorded {
        arrival: Time::from_millis(number("\"t\":")?),
        prompt_tokens: number("\"i\":")?.try_into().ok()?,
        output_tokens: number("\"o\":")?.try_into().ok()?,
        blocks: runs.collect::<Option<_>>()?,
    })
}
