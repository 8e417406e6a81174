//! When the first token comes, under and over capacity.

use std::error::Error;

use examples_support::{Table, clients, l4, ms, percentile, request, simulate};
use serve_core::Span;
use serve_sched::Policies;
use serve_sched::sim::{Poisson, Report as SimReport, Row};

use crate::{Batching, PROMPT_TOKENS, measured};

const OUTPUT_TOKENS: u32 = 51;

pub(crate) struct Report {
    lines: Vec<Line>,
}

#[derive(Clone, Copy, Debug)]
struct Line {
    load: Load,
    /// The measured p50 in milliseconds, of static batches of 8.
    measured_ms: Option<f64>,
    static_8: Span,
    continuous_16: Span,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Load {
    /// So many clients, each waiting for its answer.
    Clients(u32),
    /// So many requests a second at random times, whatever becomes of them.
    PerSec(u32),
}

pub(crate) fn run(seed: u64) -> Result<Report, Box<dyn Error>> {
    let lines = [
        (Load::Clients(1), Some(31.0)),
        (Load::Clients(4), Some(36.0)),
        (Load::Clients(8), Some(44.0)),
        (Load::Clients(16), Some(919.0)),
        (Load::PerSec(4), None),
        (Load::PerSec(8), None),
    ];
    let line = |(load, measured_ms)| -> Result<Line, Box<dyn Error>> {
        Ok(Line {
            load,
            measured_ms,
            static_8: first_token(seed, load, Batching::Static(8))?,
            continuous_16: first_token(seed, load, Batching::Continuous(16))?,
        })
    };
    Ok(Report {
        lines: lines.into_iter().map(line).collect::<Result<_, _>>()?,
    })
}

fn first_token(seed: u64, load: Load, batching: Batching) -> Result<Span, Box<dyn Error>> {
    let policies = Policies {
        admit: Vec::new(),
        batch: batching.policy(),
        ..Policies::default()
    };
    let device = l4(16)?;
    let shape = |id, now| request(id, now, PROMPT_TOKENS, OUTPUT_TOKENS);
    let report: SimReport = match load {
        Load::Clients(many) => clients(&device, policies, many, 0..40, shape)?,
        Load::PerSec(rate) => {
            let arrivals = (0..).zip(Poisson::new(seed + 7, f64::from(rate))).take(400);
            simulate(&device, policies, arrivals.map(|(id, at)| shape(id, at)))?
        }
    };
    Ok(percentile(
        50,
        report.rows.iter().filter_map(Row::first_token_time),
    ))
}

impl Report {
    pub(crate) fn table(&self) -> Table {
        let mut table = Table::new(["load", "measured, static 8", "static, 8", "continuous, 16"]);
        for line in &self.lines {
            let load = match line.load {
                Load::Clients(1) => "1 client".to_owned(),
                Load::Clients(many) => format!("{many} clients"),
                Load::PerSec(rate) => format!("{rate} requests/s at random"),
            };
            table.row([
                load,
                measured(line.measured_ms, "ms"),
                ms(line.static_8),
                ms(line.continuous_16),
            ]);
        }
        table
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::assert_near;

    #[test]
    fn under_capacity_it_is_the_window_and_a_prefill() {
        let lines = run(0).unwrap().lines;
        assert_near(lines[0].static_8.as_millis_f64(), 31.0, 0.15);
        assert_near(lines[1].static_8.as_millis_f64(), 36.0, 0.15);
        // Eight clients that answer at the same moment fill their batch at once here. On the device
        // they came milliseconds apart, which the simulation knows nothing of.
        assert_near(lines[2].static_8.as_millis_f64(), 44.0, 0.35);
    }

    #[test]
    fn over_capacity_a_static_batch_makes_everybody_wait_for_one_more() {
        let line = run(0).unwrap().lines[3];
        assert_near(line.static_8.as_millis_f64(), 919.0, 0.1);
    }

    #[test]
    fn joining_at_the_next_step_is_tens_of_milliseconds_at_any_load() {
        for line in run(0).unwrap().lines {
            assert!(line.continuous_16 < Span::from_millis(60), "{line:?}");
        }
    }
}
