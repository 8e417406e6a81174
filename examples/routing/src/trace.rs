//! Recorded requests, from the text of two public formats.
//!
//! - Azure's LLM inference traces: `TIMESTAMP,ContextTokens,GeneratedTokens`, of which nothing is known of what prompts share.
//! - Mooncake's: a line of JSON for each request, with `timestamp` (ms), `input_length`, `output_length` and `hash_ids`, which name
//!   blocks of 512 tokens with everything before them; or the same as `t`, `i`, `o` and `h`, runs of `[first, count]`. Times in
//!   whole ticks of 3 s are spread over the tick.

use std::error::Error;
use std::sync::Arc;

use serde_json::Value;
use serve_core::rng::{Rng, mix2};
use serve_core::{Request, RequestId, Span, Time, TokenId};
use serve_sched::sim::Routed;

const BLOCK_TOKENS: u32 = 512;
const TICK_MS: u64 = 3_000;

type Trace = Result<Vec<Routed>, Box<dyn Error>>;

/// The first requests of an Azure trace.
pub(crate) fn azure(text: &str, most: usize) -> Trace {
    let mut first = None;
    let lines = text.lines().skip(1).take(most).zip(0..);
    let each = lines.map(|(line, id): (&str, u64)| {
        let mut fields = line.split(',');
        let mut next = || {
            fields
                .next()
                .ok_or_else(|| format!("too few fields: {line}"))
        };
        let secs = day_secs(next()?).ok_or_else(|| format!("no time: {line}"))?;
        let (prompt, output): (u32, u32) = (next()?.parse()?, next()?.parse()?);
        let at = Time::ZERO + Span::from_secs_f64(secs - *first.get_or_insert(secs));
        let prompt = vec![TokenId::new(id as u32); prompt.max(1) as usize];
        routed(id, at, prompt, output, Vec::new())
    });
    each.collect()
}

/// Seconds of the day in `2023-11-16 18:17:03.9799600`.
fn day_secs(text: &str) -> Option<f64> {
    let (_, clock) = text.split_once(' ')?;
    let mut parts = clock.splitn(3, ':').map(str::parse::<f64>);
    let mut next = || parts.next()?.ok();
    Some(3_600.0 * next()? + 60.0 * next()? + next()?)
}

/// The first requests of a Mooncake trace.
pub(crate) fn mooncake(text: &str, most: usize, seed: u64) -> Trace {
    let mut rng = Rng::new(seed ^ 0x300);
    let lines = text.lines().take(most).zip(0..);
    let each = lines.map(|(line, id): (&str, u64)| {
        let row: Value = serde_json::from_str(line)?;
        let number = |long: &str, short: &str| {
            let value = row.get(long).or_else(|| row.get(short));
            value
                .and_then(Value::as_u64)
                .ok_or_else(|| format!("no {long}: {line}"))
        };
        let ms = number("timestamp", "t")? + rng.below(TICK_MS);
        let (prompt, output) = (number("input_length", "i")?, number("output_length", "o")?);
        let chain = blocks(&row);
        let tokens = chain.iter().flat_map(|&block| {
            (0..u64::from(BLOCK_TOKENS)).map(move |n| TokenId::new(mix2(block, n) as u32))
        });
        let tokens: Vec<TokenId> = tokens.take(prompt as usize).collect();
        let full = tokens.len() / BLOCK_TOKENS as usize;
        let chain = chain.into_iter().take(full).collect();
        routed(id, Time::from_millis(ms), tokens, output as u32, chain)
    });
    let mut requests = each.collect::<Result<Vec<_>, _>>()?;
    requests.sort_by_key(|routed| routed.request.arrival());
    Ok(requests)
}

fn blocks(row: &Value) -> Vec<u64> {
    let list = |name: &str| row.get(name).and_then(Value::as_array);
    if let Some(ids) = list("hash_ids") {
        return ids.iter().filter_map(Value::as_u64).collect();
    }
    let runs = list("h").into_iter().flatten();
    let run = |run: &Value| Some((run.get(0)?.as_u64()?, run.get(1)?.as_u64()?));
    let runs = runs.filter_map(run);
    runs.flat_map(|(first, count)| first..first + count)
        .collect()
}

fn routed(
    id: u64,
    at: Time,
    prompt: Vec<TokenId>,
    output: u32,
    chain: Vec<u64>,
) -> Result<Routed, Box<dyn Error>> {
    let request = Request::new(RequestId::new(id), at, prompt, output.max(1))?;
    Ok(Routed {
        request: Arc::new(request),
        chain,
        block_tokens: BLOCK_TOKENS,
        session: None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_formats_are_read() {
        let text = "TIMESTAMP,ContextTokens,GeneratedTokens\n\
                    2023-11-16 18:17:03.5,480,10\n2023-11-16 18:18:04.5,3,8";
        let azure = azure(text, 9).unwrap();
        let second = &azure[1].request;
        assert_eq!((second.prompt_tokens(), second.output_tokens_max()), (3, 8));
        assert_eq!(second.arrival(), Time::from_secs(61));

        let long =
            r#"{"timestamp": 0, "input_length": 1030, "output_length": 6, "hash_ids": [4, 5, 9]}"#;
        let short = r#"{"t": 3000, "i": 1500, "o": 7, "h": [[4, 2], [7, 1]]}"#;
        let mooncake = mooncake(&format!("{long}\n{short}"), 9, 0).unwrap();
        assert_eq!(
            (&*mooncake[0].chain, &*mooncake[1].chain),
            (&[4, 5][..], &[4, 5][..])
        );
        let prompts = [0, 1].map(|n: usize| mooncake[n].request.prompt());
        assert_eq!(prompts[0][..1_024], prompts[1][..1_024]);
        assert_ne!(prompts[0][1_024..], prompts[1][1_024..1_030]);
        assert!(azure.len() == 2 && super::azure("x\ny,1", 9).is_err());
    }
}
