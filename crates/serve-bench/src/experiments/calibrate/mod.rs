//! A server's step times as the mock's cost model: [measured](plan) under loads that isolate them,
//! [observed](observe) in rows and counters, [fitted](fit), and put to the test on a load that was not
//! measured.

pub(crate) mod fit;
pub(crate) mod observe;
pub(crate) mod plan;
mod verdict;

pub(crate) use fit::{Fit, Observation, Term};
pub(crate) use plan::Range;
pub(crate) use verdict::Verdict;

use serve_core::Span;

/// The fit as settings of `serve` and of a simulation, in TOML.
pub(crate) fn settings_file(fit: &Fit, max_batch: u32, about: &str) -> String {
    let us = |span: Span| span.as_nanos() as f64 / 1e3;
    let points = fit
        .decode
        .iter()
        .map(|&(batch, time)| format!("\"{batch}={}\"", us(time)));
    let points = points.collect::<Vec<_>>().join(", ");
    let about = about
        .lines()
        .map(|line| format!("# {line}\n"))
        .collect::<String>();
    format!(
        "{about}backend = \"mock\"\nmax_batch = {max_batch}\nmock_decode_us = [{points}]\n\
         mock_prefill_us = {}\nmock_context_us = {}\n",
        us(fit.prefill_per_token),
        us(fit.context_per_token),
    )
}
