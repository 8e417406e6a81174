//! A serving layer that somebody built and measured on an NVIDIA L4, rebuilt from policies and run
//! in virtual time on nothing but its cost model: a pass over a batch of eight costs about what a
//! pass over one does. Beside each measured number stands the simulated one, and below them what
//! continuous batching makes of the same load.
//!
//! The measurements are those of github.com/Jay-41/llm-serving-project (README and build log):
//! Qwen2.5-1.5B-Instruct, static batches of 8 within 10 ms, every comparison one setting flipped.
//! The device is [`examples_support::l4`], measured apart from these experiments. One number was read
//! off their results, as no log has it: that the answers of the first and third ended after about 51
//! tokens, from the latency of one alone. So the line without batching agrees by construction; all
//! others are predictions.

mod batching;
mod first_token;
mod overload;
mod tiers;

use std::error::Error;

use examples_support::{Options, request};
use serve_core::{Request, Span, Time};
use serve_sched::batch::{Batch, Continuous, OneAtATime, Static, Window};

/// Tokens of the chat prompts.
const PROMPT_TOKENS: u32 = 30;
/// How long the measured server let a batch fill.
const WINDOW: Span = Span::from_millis(10);

fn main() -> Result<(), Box<dyn Error>> {
    let options = Options::of_command_line(env!("CARGO_PKG_DESCRIPTION"));
    let batching = batching::run()?;
    options.show(
        "Batching: 16 clients, 40 requests that end after 51 tokens",
        &batching.table(),
    )?;
    let overload = overload::run()?;
    options.show(
        "Overload: 18 requests/s, twice what batches of 8 can do, for 20 s",
        &overload.table(),
    )?;
    let first_token = first_token::run(options.seed())?;
    options.show("Time to first token, p50", &first_token.table())?;
    let tiers = tiers::run()?;
    options.show(
        "Longest wait of a free request: 1 a second, beside so many paid ones, for 30 s",
        &tiers.table(),
    )?;
    options.show(
        "Admitted of 13 paid and 5 free requests/s in 20 s",
        &tiers.admission_table(),
    )?;
    Ok(())
}

/// How requests share the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Batching {
    /// One at a time.
    Off,
    /// Static batches of so many, as the measured server formed them.
    Static(u32),
    /// So many at once, joining and leaving at every step.
    Continuous(u32),
}

impl Batching {
    fn policy(self) -> Box<dyn Batch> {
        match self {
            Self::Off => Box::new(OneAtATime),
            Self::Static(size) => Box::new(Static::new(size, Window::Fixed(WINDOW))),
            Self::Continuous(sequences) => Box::new(Continuous {
                sequences_max: Some(sequences),
                ..Continuous::default()
            }),
        }
    }

    fn name(self) -> String {
        match self {
            Self::Off => "off".to_owned(),
            Self::Static(size) => format!("static, {size}"),
            Self::Continuous(sequences) => format!("continuous, {sequences}"),
        }
    }
}

/// Requests at a steady rate, as the measured load was sent.
fn steady(per_sec: u64, secs: u64, output_tokens: u32) -> impl Iterator<Item = Request> {
    let gap = Span::from_secs(1) / per_sec;
    (0..per_sec * secs).map(move |n| request(n, Time::ZERO + gap * n, PROMPT_TOKENS, output_tokens))
}

/// A measured number, or a dash where nobody measured.
fn measured(number: Option<f64>, unit: &str) -> String {
    number.map_or_else(|| "-".to_owned(), |number| format!("{number} {unit}"))
}

#[cfg(test)]
fn assert_near(simulated: f64, measured: f64, tolerance: f64) {
    let off = (simulated / measured - 1.0).abs();
    assert!(
        off <= tolerance,
        "simulated {simulated:.3}, measured {measured:.3}"
    );
}
