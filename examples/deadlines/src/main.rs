//! Earliest deadline first meets deadlines that first come, first served misses, as long as they can
//! all be met. Overloaded it spends its time on requests that are about to be late anyway; a prediction in
//! front of it refuses at once what would be late, and the rest is on time.

use std::error::Error;

use examples_support::{Options, Table, l4, request, simulate};
use serve_core::{Request, Span};
use serve_sched::admit::{Admit, DeadlinePrediction};
use serve_sched::order::{EarliestDeadline, Fifo, Order};
use serve_sched::sim::{Poisson, Report, Terminal};
use serve_sched::{ConfigError, Policies};

const REQUESTS: usize = 1_000;

fn main() -> Result<(), Box<dyn Error>> {
    let options = Options::of_command_line(env!("CARGO_PKG_DESCRIPTION"));
    options.show_over_seeds(
        "8 slots that do 7.1 requests/s; half are due in 2 s, half in 10 s; virtual time",
        |seed| Ok(table(&run(seed)?)),
    )?;
    Ok(())
}

struct Line {
    rate: f64,
    name: &'static str,
    met_percent: f64,
    refused: usize,
    expired: usize,
    /// Tokens of answers that were cut off at their deadline.
    wasted_tokens: u32,
}

fn run(seed: u64) -> Result<Vec<Line>, Box<dyn Error>> {
    let device = l4(8)?;
    let mut lines = Vec::new();
    for rate in [6.5, 7.5, 10.0] {
        let mut serve = |name, order: Box<dyn Order>, admit| -> Result<(), ConfigError> {
            let policies = Policies {
                admit,
                order,
                ..Policies::default()
            };
            lines.push(Line::new(
                rate,
                name,
                &simulate(&device, policies, load(seed, rate))?,
            ));
            Ok(())
        };
        let prediction =
            || -> Vec<Box<dyn Admit>> { vec![Box::new(DeadlinePrediction::default())] };
        serve("fifo", Box::new(Fifo), Vec::new())?;
        serve("earliest", Box::new(EarliestDeadline), Vec::new())?;
        serve("fifo + prediction", Box::new(Fifo), prediction())?;
        serve(
            "earliest + prediction",
            Box::new(EarliestDeadline),
            prediction(),
        )?;
    }
    Ok(lines)
}

fn load(seed: u64, rate: f64) -> impl Iterator<Item = Request> {
    (0..)
        .zip(Poisson::new(seed + 5, rate))
        .take(REQUESTS)
        .map(|(id, at)| {
            let patience = Span::from_secs(if u64::is_multiple_of(id, 2) { 2 } else { 10 });
            request(id, at, 30, 64).with_deadline(Some(at + patience))
        })
}

impl Line {
    fn new(rate: f64, name: &'static str, report: &Report) -> Self {
        let rows = || report.rows.iter();
        let expired = || rows().filter(|row| matches!(row.terminal, Terminal::Cancelled(_)));
        let met = rows().filter(|row| row.is_finished()).count();
        Self {
            rate,
            name,
            met_percent: 100.0 * met as f64 / REQUESTS as f64,
            refused: rows()
                .filter(|row| matches!(row.terminal, Terminal::Refused(_)))
                .count(),
            expired: expired().count(),
            wasted_tokens: expired().map(|row| row.usage.output_tokens).sum(),
        }
    }
}

fn table(lines: &[Line]) -> Table {
    let mut table = Table::new([
        "policy",
        "offered",
        "met",
        "refused",
        "expired",
        "tokens wasted",
    ]);
    for line in lines {
        table.row([
            line.name.to_owned(),
            format!("{} req/s", line.rate),
            format!("{:.1}%", line.met_percent),
            line.refused.to_string(),
            line.expired.to_string(),
            line.wasted_tokens.to_string(),
        ]);
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The lines of one rate: first come, earliest, and both with a prediction in front.
    fn at(rate: f64) -> [Line; 4] {
        let lines = run(0).unwrap().into_iter().filter(|line| line.rate == rate);
        let lines: Vec<Line> = lines.collect();
        lines.try_into().ok().unwrap()
    }

    #[test]
    fn earliest_first_meets_all_deadlines_that_can_be_met() {
        let [fifo, earliest, _, _] = at(6.5);
        assert_eq!(earliest.met_percent, 100.0);
        assert!(fifo.met_percent < 95.0, "{}", fifo.met_percent);
    }

    #[test]
    fn overloaded_it_is_worse_than_first_come_until_a_prediction_refuses_what_would_be_late() {
        let [fifo, earliest, _, predicted] = at(10.0);
        assert!(earliest.met_percent < fifo.met_percent);
        assert!(predicted.met_percent > fifo.met_percent + 10.0);
        // 7.1 of 10 a second is all that the device can do.
        assert!(predicted.met_percent > 70.0, "{}", predicted.met_percent);
        assert_eq!(predicted.wasted_tokens, 0);
    }

    #[test]
    fn everybody_is_answered_once() {
        for line in run(0).unwrap() {
            let met = (line.met_percent * REQUESTS as f64 / 100.0).round() as usize;
            assert_eq!(met + line.refused + line.expired, REQUESTS);
        }
    }
}
