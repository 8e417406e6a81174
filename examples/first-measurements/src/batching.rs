//! Batching on and off, in a closed loop: each client sends its next request when it has its answer.

use std::error::Error;

use examples_support::{Table, clients, l4, percentile, request, secs};
use serve_core::Span;
use serve_sched::Policies;
use serve_sched::sim::Row;

use crate::{Batching, PROMPT_TOKENS, measured};

/// Tokens until the measured answers ended by themselves: one alone took 826 ms.
const OUTPUT_TOKENS: u32 = 51;
const REQUESTS: u64 = 40;
const CLIENTS: u32 = 16;

pub(crate) struct Report {
    lines: Vec<Line>,
}

#[derive(Clone, Copy, Debug)]
struct Line {
    batching: Batching,
    measured: Option<Measured>,
    requests_per_sec: f64,
    p50: Span,
}

#[derive(Clone, Copy, Debug)]
struct Measured {
    requests_per_sec: f64,
    p50_secs: f64,
}

pub(crate) fn run() -> Result<Report, Box<dyn Error>> {
    let off = Measured {
        requests_per_sec: 1.21,
        p50_secs: 13.23,
    };
    let batches_of_8 = Measured {
        requests_per_sec: 9.02,
        p50_secs: 1.76,
    };
    let lines = [
        (Batching::Off, Some(off)),
        (Batching::Static(8), Some(batches_of_8)),
        (Batching::Static(16), None),
        (Batching::Continuous(8), None),
        (Batching::Continuous(16), None),
    ];
    let lines = lines.map(|(batching, measured)| closed_loop(batching, measured));
    Ok(Report {
        lines: lines.into_iter().collect::<Result<_, _>>()?,
    })
}

fn closed_loop(batching: Batching, measured: Option<Measured>) -> Result<Line, Box<dyn Error>> {
    let policies = Policies {
        admit: Vec::new(),
        batch: batching.policy(),
        ..Policies::default()
    };
    let shape = |id, now| request(id, now, PROMPT_TOKENS, OUTPUT_TOKENS);
    let report = clients(&l4(16)?, policies, CLIENTS, 0..REQUESTS, shape)?;
    Ok(Line {
        batching,
        measured,
        requests_per_sec: REQUESTS as f64 / report.end.as_secs_f64(),
        p50: percentile(50, report.rows.iter().map(Row::response_time)),
    })
}

impl Report {
    fn gain(&self, line: &Line) -> f64 {
        line.requests_per_sec / self.lines[0].requests_per_sec
    }

    pub(crate) fn table(&self) -> Table {
        let headings = [
            "batching",
            "measured",
            "simulated",
            "gain",
            "measured p50",
            "simulated p50",
        ];
        let mut table = Table::new(headings);
        for line in &self.lines {
            table.row([
                line.batching.name(),
                measured(line.measured.map(|it| it.requests_per_sec), "req/s"),
                format!("{:.2} req/s", line.requests_per_sec),
                format!("{:.2}x", self.gain(line)),
                measured(line.measured.map(|it| it.p50_secs), "s"),
                secs(line.p50),
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
    fn throughput_and_latency_are_the_measured_ones_within_a_tenth() {
        for line in run().unwrap().lines {
            if let Some(measured) = line.measured {
                assert_near(line.requests_per_sec, measured.requests_per_sec, 0.1);
                assert_near(line.p50.as_secs_f64(), measured.p50_secs, 0.1);
            }
        }
    }

    #[test]
    fn batches_of_8_gain_about_7_5_times() {
        let report = run().unwrap();
        assert_near(report.gain(&report.lines[1]), 7.47, 0.05);
    }

    #[test]
    fn nothing_joins_late_so_continuous_gains_what_static_does() {
        // Equal lengths in a closed loop start and end together whatever the policy; room for all
        // sixteen clients is what helps.
        let report = run().unwrap();
        let [_, eight, sixteen, joining_8, joining_16] = &report.lines[..] else {
            panic!("five lines");
        };
        assert_near(joining_8.requests_per_sec, eight.requests_per_sec, 0.05);
        assert!(joining_16.requests_per_sec >= sixteen.requests_per_sec);
        assert!(report.gain(joining_16) > 11.0);
    }
}
