//! Twice the load that the server can carry, in an open loop, with admission off and on.

use std::error::Error;

use examples_support::{Table, l4, percentile, request, secs, simulate};
use serve_core::{Request, Span, Time};
use serve_sched::Policies;
use serve_sched::admit::{Admit, LatencyBudget, QueueCap};
use serve_sched::sim::Row;

use crate::{Batching, PROMPT_TOKENS, measured, steady};

/// Tokens of an answer: here the measured ones ran to their limit.
const OUTPUT_TOKENS: u32 = 64;
/// The target that the measured queue depth was derived from.
const TARGET: Span = Span::from_millis(2_500);
/// When the load begins. Before, one request warms the server up, as in the measurement.
const BEGIN: Span = Span::from_secs(5);

pub(crate) struct Report {
    lines: Vec<Line>,
}

#[derive(Clone, Copy, Debug)]
struct Line {
    batching: Batching,
    admission: Admission,
    /// The measured p99 in seconds.
    measured: Option<f64>,
    admitted: usize,
    p50: Span,
    p99: Span,
    /// The longest of those that came in the second half.
    settled_max: Span,
    goodput: f64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Admission {
    Off,
    Depth,
    Budget,
}

impl Admission {
    fn policies(self) -> Vec<Box<dyn Admit>> {
        match self {
            Self::Off => Vec::new(),
            // (2,500 ms - 1,090 ms) x 8 / 1,090 ms, as the measured server had it.
            Self::Depth => vec![Box::new(QueueCap::new(10))],
            Self::Budget => vec![Box::new(LatencyBudget::new(TARGET))],
        }
    }

    fn name(self) -> &'static str {
        match self {
            Self::Off => "off",
            Self::Depth => "10 may wait",
            Self::Budget => "2.5 s budget",
        }
    }
}

pub(crate) fn run() -> Result<Report, Box<dyn Error>> {
    let lines = [
        (Batching::Static(8), Admission::Off, Some(30.96)),
        (Batching::Static(8), Admission::Depth, Some(2.98)),
        (Batching::Static(8), Admission::Budget, None),
        (Batching::Continuous(8), Admission::Off, None),
        (Batching::Continuous(8), Admission::Depth, None),
        (Batching::Continuous(8), Admission::Budget, None),
        (Batching::Continuous(16), Admission::Off, None),
        (Batching::Continuous(16), Admission::Budget, None),
    ];
    let lines =
        lines.map(|(batching, admission, measured)| open_loop(batching, admission, measured));
    Ok(Report {
        lines: lines.into_iter().collect::<Result<_, _>>()?,
    })
}

fn open_loop(
    batching: Batching,
    admission: Admission,
    measured: Option<f64>,
) -> Result<Line, Box<dyn Error>> {
    let policies = Policies {
        admit: admission.policies(),
        batch: batching.policy(),
        ..Policies::default()
    };
    let report = simulate(&l4(16)?, policies, load())?;
    let load = || {
        report
            .rows
            .iter()
            .filter(|row| row.arrival >= Time::ZERO + BEGIN)
    };
    let latencies = || {
        load()
            .filter(|row| row.is_finished())
            .map(Row::response_time)
    };
    let settled = load().filter(|row| row.arrival >= Time::ZERO + BEGIN + Span::from_secs(10));
    let settled = settled
        .filter(|row| row.is_finished())
        .map(Row::response_time);
    let in_time = latencies().filter(|&latency| latency <= TARGET).count();
    Ok(Line {
        batching,
        admission,
        measured,
        admitted: latencies().count(),
        p50: percentile(50, latencies()),
        p99: percentile(99, latencies()),
        settled_max: settled.max().unwrap_or_default(),
        goodput: in_time as f64 / report.end.since(Time::ZERO + BEGIN).as_secs_f64(),
    })
}

fn load() -> impl Iterator<Item = Request> {
    let warm_up = request(1_000, Time::ZERO, PROMPT_TOKENS, OUTPUT_TOKENS);
    let later = |arrival: Time| arrival + BEGIN;
    let load = steady(18, 20, OUTPUT_TOKENS).map(move |it| {
        request(
            it.id().get(),
            later(it.arrival()),
            PROMPT_TOKENS,
            OUTPUT_TOKENS,
        )
    });
    std::iter::once(warm_up).chain(load)
}

impl Report {
    pub(crate) fn table(&self) -> Table {
        let mut table = Table::new([
            "batching",
            "admission",
            "admitted",
            "p50",
            "measured p99",
            "simulated p99",
            "longest after 10 s",
            "within 2.5 s",
        ]);
        for line in &self.lines {
            table.row([
                line.batching.name(),
                line.admission.name().to_owned(),
                format!("{} of 360", line.admitted),
                secs(line.p50),
                measured(line.measured, "s"),
                secs(line.p99),
                secs(line.settled_max),
                format!("{:.1} req/s", line.goodput),
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
    fn the_unprotected_queue_grows_to_the_measured_latency() {
        let line = run().unwrap().lines[0];
        assert_near(line.p99.as_secs_f64(), 30.96, 0.1);
        assert_near(line.p50.as_secs_f64(), 16.40, 0.1);
    }

    #[test]
    fn the_derived_depth_misses_its_target_as_it_did_on_the_device() {
        let line = run().unwrap().lines[1];
        assert_near(line.p99.as_secs_f64(), 2.98, 0.15);
        assert!(line.p99 > TARGET.mul_div(115, 100), "{}", line.p99);
        assert_near(line.admitted as f64, 149.0, 0.1);
    }

    #[test]
    fn a_budget_that_counts_the_batch_in_flight_keeps_its_target() {
        for line in run().unwrap().lines {
            if line.admission == Admission::Budget {
                // Off by a tenth while it learns from batches that are not full yet, then exact.
                assert!(line.p99 <= TARGET.mul_div(110, 100), "{line:?}");
                assert!(line.settled_max <= TARGET.mul_div(101, 100), "{line:?}");
            }
        }
    }

    #[test]
    fn admission_turns_a_slow_yes_into_a_fast_no_at_no_cost_in_goodput() {
        let lines = run().unwrap().lines;
        let goodput = |batching, admission| {
            let line = lines
                .iter()
                .find(|it| (it.batching, it.admission) == (batching, admission));
            line.unwrap().goodput
        };
        for batching in [Batching::Static(8), Batching::Continuous(8)] {
            assert!(goodput(batching, Admission::Budget) > 5.0 * goodput(batching, Admission::Off));
        }
    }
}
