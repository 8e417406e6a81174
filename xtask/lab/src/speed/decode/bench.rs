//! How often a step is measured, and which steps: medians of repeated ones.

use std::error::Error;

use serve_core::{RequestId, Span};
use serve_model::measure::{TimedSteps, median};

/// Steps are repeated until both are reached, unless a number is asked for.
const SAMPLES_MIN: usize = 9;
const SAMPLED_MIN: Span = Span::from_millis(1_000);
/// No batch is measured at more than this many positions, so that sizes stay comparable.
pub(crate) const DECODE_STEPS_MAX: u32 = 64;

/// The median step that runs one whole prompt of `context` tokens; of `samples`, where given.
pub(crate) fn prefill(
    steps: &mut TimedSteps,
    context: u32,
    samples: Option<usize>,
) -> Result<Span, Box<dyn Error>> {
    let mut times = Vec::new();
    while !enough(&times, samples) {
        let (id, time) = prompt(steps, context)?;
        times.push(time);
        steps.release(id);
    }
    Ok(median(times))
}

/// The median step that runs one position of each of `batch` sequences, from `context` on; of
/// `samples`, where given.
pub(crate) fn decode(
    steps: &mut TimedSteps,
    batch: u32,
    context: u32,
    samples: Option<usize>,
) -> Result<Span, Box<dyn Error>> {
    let mut times = Vec::new();
    while !enough(&times, samples) {
        let mut ids = Vec::new();
        for _ in 0..batch {
            ids.push(prompt(steps, context)?.0);
        }
        // The first step of a batch meets cold buffers.
        steps.run(&ids)?;
        for _ in 1..DECODE_STEPS_MAX {
            times.push(steps.run(&ids)?);
            if enough(&times, samples) {
                break;
            }
        }
        ids.into_iter().for_each(|id| steps.release(id));
    }
    Ok(median(times))
}

/// Starts a request and runs its prompt.
fn prompt(steps: &mut TimedSteps, context: u32) -> Result<(RequestId, Span), Box<dyn Error>> {
    let id = steps.start(context, DECODE_STEPS_MAX + 1)?;
    let time = steps.run(&[id])?;
    Ok((id, time))
}

fn enough(times: &[Span], samples: Option<usize>) -> bool {
    match samples {
        Some(samples) => times.len() >= samples,
        None => times.len() >= SAMPLES_MIN && times.iter().copied().sum::<Span>() >= SAMPLED_MIN,
    }
}
