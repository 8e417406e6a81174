//! Step times out of rows and counters.
//!
//! A client sees the gap between two tokens of an answer, which is one step if as many answers are
//! under way from the one to the other as there are clients. A server that counts its steps says how
//! long all of them took, and how many sequences and prompt tokens were in them. The first holds all
//! that a step costs those who wait for it; the second, the device alone.

use super::fit::Observation;
use crate::store::record::{Outcome, Record};
use crate::store::timeline::Sample;

/// One observation for each answer: its median step.
pub(crate) fn from_tokens(rows: &[Record], batch: u32) -> Vec<Observation> {
    let spans = rows.iter().filter_map(span).collect::<Vec<_>>();
    let steady = |from: u64, to: u64| {
        let under_way = |span: &&(u64, u64)| span.0 <= from && to <= span.1;
        spans.iter().filter(under_way).count() as u32 == batch
    };
    let answers = rows.iter().filter(|row| row.outcome == Outcome::Ok);
    let of_answer = answers.filter_map(|row| {
        let prompt = f64::from(row.prompt_tokens.or(row.prompt_tokens_planned)?);
        let times = token_times(row);
        let mut gaps = times.windows(2).zip(1_u32..).filter_map(|(pair, token)| {
            let (from, to) = (pair[0], pair[1]);
            steady(from, to).then(|| ((to - from) as f64 / 1e9, prompt + f64::from(token)))
        });
        let mut gaps = gaps.by_ref().collect::<Vec<_>>();
        gaps.sort_by(|a, b| a.0.total_cmp(&b.0));
        let (seconds, _) = *gaps.get(gaps.len() / 2)?;
        let context = gaps.iter().map(|(_, context)| context).sum::<f64>() / gaps.len() as f64;
        Some(Observation {
            steps: 1.0,
            batch: f64::from(batch),
            context_tokens: f64::from(batch) * context,
            seconds,
            ..Observation::default()
        })
    });
    of_answer.collect()
}

/// One observation for each answer: from its send to its first token, with nobody else there.
pub(crate) fn from_first_tokens(rows: &[Record], step_tokens: u32) -> Vec<Observation> {
    let answers = rows.iter().filter(|row| row.outcome == Outcome::Ok);
    let of_answer = answers.filter_map(|row| {
        let prompt = row.prompt_tokens.or(row.prompt_tokens_planned)?;
        let seconds = row.first_token_ns()?.saturating_sub(row.sent_ns?) as f64 / 1e9;
        Some(Observation {
            steps: f64::from(prompt.div_ceil(step_tokens.max(1))),
            batch: 1.0,
            prefill_tokens: f64::from(prompt),
            context_tokens: prefill_context(prompt, step_tokens),
            answers: 1.0,
            seconds,
        })
    });
    of_answer.collect()
}

/// All steps between the first and the last sample, if the server counts them, and the tokens of
/// every answer.
pub(crate) fn from_steps(
    samples: &[Sample],
    rows: &[Record],
    step_tokens: u32,
) -> Option<Observation> {
    let (first, last) = (samples.first()?, samples.last()?);
    let grown = |of: fn(&Sample) -> Option<f64>| Some(of(last)? - of(first)?);
    let steps = grown(|sample| sample.steps)?;
    let answers = rows.iter().filter(|row| row.outcome == Outcome::Ok);
    let context = answers.map(|row| {
        let prompt = row.prompt_tokens.or(row.prompt_tokens_planned).unwrap_or(0);
        let decoded = row.output_tokens?.saturating_sub(1);
        let later = (1..=decoded)
            .map(|token| f64::from(prompt + token))
            .sum::<f64>();
        Some(prefill_context(prompt, step_tokens) + later)
    });
    let observation = Observation {
        steps,
        batch: grown(|sample| sample.step_sequences)? / steps,
        prefill_tokens: grown(|sample| sample.prompt_tokens)?,
        context_tokens: context.sum::<Option<f64>>()?,
        answers: 0.0,
        seconds: grown(|sample| sample.step_seconds)?,
    };
    (steps > 0.0).then_some(observation)
}

/// Positions that the chunks of a prompt attend to: each to its own end.
fn prefill_context(prompt: u32, step_tokens: u32) -> f64 {
    let chunks = 1..=prompt.div_ceil(step_tokens.max(1));
    chunks
        .map(|chunk| f64::from((chunk * step_tokens).min(prompt)))
        .sum()
}

/// From the first token to the last.
fn span(row: &Record) -> Option<(u64, u64)> {
    Some((row.first_token_ns()?, row.chunks.last()?.at_ns))
}

/// When each token was there. Tokens that came together, in one piece or in pieces of one read, are spread
/// evenly since the read before, as a reader would have them.
fn token_times(row: &Record) -> Vec<u64> {
    let mut times = Vec::new();
    let mut before = None;
    for read in row.chunks.chunk_by(|a, b| a.at_ns == b.at_ns) {
        let at_ns = read[0].at_ns;
        let tokens = read.iter().map(|chunk| chunk.tokens.unwrap_or(1).max(1));
        let tokens = tokens.map(u64::from).sum::<u64>();
        let step = (at_ns - before.unwrap_or(at_ns)) / tokens;
        times.extend((1..=tokens).map(|token| at_ns - (tokens - token) * step));
        before = Some(at_ns);
    }
    times
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::record::Chunk;

    fn row(first_ms: u64, gaps_ms: &[u64]) -> Record {
        let mut at_ns = first_ms * 1_000_000;
        let mut chunks = vec![Chunk {
            at_ns,
            tokens: None,
        }];
        for gap in gaps_ms {
            at_ns += gap * 1_000_000;
            chunks.push(Chunk {
                at_ns,
                tokens: None,
            });
        }
        Record {
            sent_ns: Some(0),
            end_ns: Some(at_ns),
            outcome: Outcome::Ok,
            prompt_tokens: Some(100),
            output_tokens: Some(chunks.len() as u32),
            chunks,
            ..Record::default()
        }
    }

    #[test]
    fn only_steps_with_everybody_in_them_count() {
        // The second answer starts later and is held up by nobody; the first runs alone at its ends.
        let rows = [row(10, &[5, 9, 9, 9, 5]), row(24, &[9, 9])];
        let observations = from_tokens(&rows, 2);
        assert_eq!(observations.len(), 2);
        for observation in &observations {
            assert!(
                (observation.seconds - 0.009).abs() < 1e-9,
                "{observation:?}"
            );
        }
        assert!((observations[0].context_tokens - 2.0 * 103.5).abs() < 1e-9);
        assert!(from_tokens(&rows, 3).is_empty());
    }

    #[test]
    fn tokens_of_one_read_took_as_long_as_those_that_came_alone() {
        for gaps in [
            &[9, 9, 9, 9, 9, 9][..],
            &[9, 18, 0, 18, 0, 9],
            &[18, 0, 36, 0, 0, 0],
        ] {
            let rows = [row(10, gaps)];
            let observed = from_tokens(&rows, 1);
            assert!(
                (observed[0].seconds - 0.009).abs() < 1e-9,
                "{gaps:?}: {observed:?}"
            );
        }
    }

    #[test]
    fn a_first_token_is_its_chunks_and_the_edge() {
        let observation = from_first_tokens(&[row(30, &[])], 64)[0];
        assert_eq!((observation.steps, observation.answers), (2.0, 1.0));
        assert!((observation.context_tokens - (64.0 + 100.0)).abs() < 1e-9);
        assert!((observation.seconds - 0.03).abs() < 1e-9);
    }

    #[test]
    fn counters_say_what_lies_between_two_samples() {
        let sample = |steps: f64| Sample {
            steps: Some(steps),
            step_seconds: Some(steps * 0.01),
            step_sequences: Some(steps * 2.0),
            prompt_tokens: Some(100.0 + steps),
            ..Sample::default()
        };
        let observation = from_steps(&[sample(3.0), sample(5.0), sample(13.0)], &[], 64).unwrap();
        assert_eq!((observation.steps, observation.batch), (10.0, 2.0));
        assert!((observation.seconds - 0.1).abs() < 1e-9);
        assert!((observation.prefill_tokens - 10.0).abs() < 1e-9);
        assert!(from_steps(&[Sample::default()], &[], 64).is_none());
    }
}
