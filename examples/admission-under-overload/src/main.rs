//! A server that is offered twice what it can do has two choices. It can say yes to everybody and
//! answer ever later, or say no at once to what it cannot answer in time. It does the same work
//! either way; what changes is whether anybody still wants the answer.

use std::error::Error;

use examples_support::{Options, Table, l4, percentile, request, secs, simulate};
use serve_core::{Refusal, Request, Span, Time};
use serve_sched::Policies;
use serve_sched::admit::{Admit, LatencyBudget, QueueCap};
use serve_sched::sim::{Poisson, Report, Row, Terminal};

/// How long a client waits before it gives up in its heart.
const TARGET: Span = Span::from_millis(2_500);
const LOAD: Span = Span::from_secs(60);

fn main() -> Result<(), Box<dyn Error>> {
    let options = Options::of_command_line(env!("CARGO_PKG_DESCRIPTION"));
    options.show_over_seeds(
        "14 requests/s at 8 slots that do 7.1, for a minute, virtual time",
        |seed| Ok(table(&run(seed)?)),
    )?;
    Ok(())
}

fn run(seed: u64) -> Result<Vec<(&'static str, Report)>, Box<dyn Error>> {
    let controls: [(&'static str, Vec<Box<dyn Admit>>); 4] = [
        ("everybody", Vec::new()),
        ("100 may wait", vec![Box::new(QueueCap::new(100))]),
        ("10 may wait", vec![Box::new(QueueCap::new(10))]),
        ("2.5 s budget", vec![Box::new(LatencyBudget::new(TARGET))]),
    ];
    let mut reports = Vec::new();
    for (name, admit) in controls {
        let policies = Policies {
            admit,
            ..Policies::default()
        };
        reports.push((name, simulate(&l4(8)?, policies, load(seed))?));
    }
    Ok(reports)
}

fn load(seed: u64) -> impl Iterator<Item = Request> {
    let arrivals = Poisson::new(seed + 8, 14.0).take_while(|&at| at < Time::ZERO + LOAD);
    (0..).zip(arrivals).map(|(id, at)| request(id, at, 30, 64))
}

fn latencies(report: &Report) -> impl Iterator<Item = Span> {
    report
        .rows
        .iter()
        .filter(|row| row.is_finished())
        .map(Row::response_time)
}

fn refusals(report: &Report) -> impl Iterator<Item = Refusal> {
    report.rows.iter().filter_map(|row| match row.terminal {
        Terminal::Refused(refusal) => Some(refusal),
        _ => None,
    })
}

/// Answers a second that came within the target.
fn goodput(report: &Report) -> f64 {
    let in_time = latencies(report)
        .filter(|&latency| latency <= TARGET)
        .count();
    in_time as f64 / report.end.as_secs_f64()
}

fn table(reports: &[(&'static str, Report)]) -> Table {
    let mut table = Table::new([
        "admission",
        "answered",
        "p50",
        "p99",
        "in 2.5 s",
        "refused",
        "told to come back in",
    ]);
    for (name, report) in reports {
        let hints = refusals(report).filter_map(|refusal| refusal.retry_after());
        table.row([
            (*name).to_owned(),
            latencies(report).count().to_string(),
            secs(percentile(50, latencies(report))),
            secs(percentile(99, latencies(report))),
            format!("{:.1} req/s", goodput(report)),
            refusals(report).count().to_string(),
            match refusals(report).count() {
                0 => "-".to_owned(),
                _ => secs(percentile(50, hints)),
            },
        ]);
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fast_no_protects_the_p99_and_the_goodput() {
        let reports = run(0).unwrap();
        let [(_, everybody), (_, hundred), (_, ten), (_, budget)] = &reports[..] else {
            panic!("four controls");
        };
        let p99 = |report| percentile(99, latencies(report));
        assert!(p99(everybody) > Span::from_secs(40));
        assert!(
            p99(hundred) > Span::from_secs(10),
            "a cap alone is no promise"
        );
        assert!(p99(ten) < Span::from_secs(4));
        assert!(p99(budget) < TARGET.mul_div(110, 100), "{}", p99(budget));
        assert!(goodput(budget) > 10.0 * goodput(everybody));
    }

    #[test]
    fn a_refusal_says_when_to_come_back() {
        for (_, report) in run(0).unwrap() {
            // What is refused after the first answer knows how fast the server is.
            let known = refusals(&report).filter(|refusal| refusal.retry_after().is_some());
            assert!(known.count() + 20 > refusals(&report).count());
        }
    }
}
