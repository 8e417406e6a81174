//! What batches buy. A decode step reads every weight once, whether one sequence shares it or
//! sixteen, so sixteen at once are served almost sixteen times as fast as one after the other.
//! Latency falls with it: what a client waits for is mostly the others.
//!
//! The price is paid by a request that is alone: the window in which a batch may fill.

use std::error::Error;

use examples_support::{Options, Table, clients, l4, percentile, request, secs};
use serve_core::Span;
use serve_sched::batch::{Batch, OneAtATime, Static, Window};
use serve_sched::sim::Row;
use serve_sched::{ConfigError, Policies};

const REQUESTS: u64 = 320;

fn main() -> Result<(), Box<dyn Error>> {
    let options = Options::of_command_line(env!("CARGO_PKG_DESCRIPTION"));
    options.show(
        "Closed loop, chat prompts, 64 tokens out, virtual time",
        &run()?.table(),
    )?;
    Ok(())
}

/// One line for each size of batch, the first being no batch.
struct Report {
    lines: Vec<Line>,
}

struct Line {
    size: u32,
    /// With 16 clients.
    requests_per_sec: f64,
    p50: Span,
    /// With one client.
    alone_p50: Span,
}

fn run() -> Result<Report, Box<dyn Error>> {
    let lines = [1, 2, 4, 8, 16].map(|size| -> Result<Line, Box<dyn Error>> {
        let (requests_per_sec, p50) = serve(size, 16)?;
        let (_, alone_p50) = serve(size, 1)?;
        Ok(Line {
            size,
            requests_per_sec,
            p50,
            alone_p50,
        })
    });
    Ok(Report {
        lines: lines.into_iter().collect::<Result<_, _>>()?,
    })
}

/// Throughput and median latency of some clients, each of which waits for its answer.
fn serve(size: u32, many: u32) -> Result<(f64, Span), Box<dyn Error>> {
    let batch: Box<dyn Batch> = match size {
        1 => Box::new(OneAtATime),
        _ => Box::new(Static::new(size, Window::Fixed(Span::from_millis(10)))),
    };
    let policies = Policies {
        batch,
        ..Policies::default()
    };
    let report: Result<_, ConfigError> =
        clients(&l4(16)?, policies, many, 0..REQUESTS, |id, now| {
            request(id, now, 30, 64)
        });
    let report = report?;
    let p50 = percentile(50, report.rows.iter().map(Row::response_time));
    Ok((REQUESTS as f64 / report.end.as_secs_f64(), p50))
}

impl Report {
    fn gain(&self, line: &Line) -> f64 {
        line.requests_per_sec / self.lines[0].requests_per_sec
    }

    fn table(&self) -> Table {
        let mut table = Table::new(["batch", "16 clients", "gain", "p50", "1 client: p50"]);
        for line in &self.lines {
            table.row([
                if line.size == 1 {
                    "off".to_owned()
                } else {
                    line.size.to_string()
                },
                format!("{:.2} req/s", line.requests_per_sec),
                format!("{:.1}x", self.gain(line)),
                secs(line.p50),
                secs(line.alone_p50),
            ]);
        }
        table
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_larger_batch_is_more_throughput_and_less_latency() {
        let report = run().unwrap();
        for pair in report.lines.windows(2) {
            assert!(pair[1].requests_per_sec > 1.5 * pair[0].requests_per_sec);
            assert!(pair[1].p50 < pair[0].p50);
        }
        let sixteen = report.lines.last().unwrap();
        assert!(report.gain(sixteen) > 13.0, "{}", report.gain(sixteen));
    }

    #[test]
    fn a_request_that_is_alone_pays_the_window_and_no_more() {
        let lines = run().unwrap().lines;
        let window = Span::from_millis(10);
        for line in &lines[1..] {
            assert_eq!(line.alone_p50, lines[0].alone_p50 + window);
        }
    }
}
