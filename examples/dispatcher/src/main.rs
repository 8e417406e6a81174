//! Admission and order in front of a service that is driven one request at a time, and that one
//! cannot change: another server behind HTTP, say. Sent everything at once, it keeps what it cannot
//! do yet in a queue of its own, where nobody is paid and no deadline passes. A dispatcher sends it as
//! much as it works at, and keeps the rest where policies decide.
//!
//! This one runs in real time, on tokio; its test runs the same code in paused time.

mod service;

use std::error::Error;
use std::time::Duration;

use examples_support::{Options, Table, ms, percentile};
use serve_core::{Class, Span};
use serve_sched::Dispatcher;
use serve_sched::adapter::{Ask, AsyncDispatcher, Rejection};
use serve_sched::admit::QueueCap;
use serve_sched::limit::{Fixed, Gradient};
use serve_sched::order::{Fifo, Order, StrictTiers};
use tokio::task::JoinSet;
use tokio::time::sleep_until;

use service::{SLOTS, Service};

const PAID: Class = Class::HIGHEST;
const FREE: Class = Class::new(1);
const REQUESTS: u64 = 300;
/// Three requests in 20 ms: one and a half times what four slots of 40 tokens each can do.
const GAP: Duration = Duration::from_micros(6_667);
const OUTPUT_TOKENS: u32 = 40;
/// A client that has no answer by then has gone away.
const PATIENCE: Span = Span::from_millis(400);

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn Error>> {
    let options = Options::of_command_line(env!("CARGO_PKG_DESCRIPTION"));
    options.show(
        "150 requests/s, a third of them paid, at a service that does 100; patience 400 ms; real time",
        &table(&run().await?),
    )?;
    Ok(())
}

struct Line {
    name: &'static str,
    /// Of each request that was answered in time: its class and latency.
    answered: Vec<(Class, Span)>,
    refused: usize,
    most_inside: u32,
}

async fn run() -> Result<Vec<Line>, Box<dyn Error>> {
    let cap = QueueCap::default().with_class(FREE, 12);
    let tiers = || -> Box<dyn Order> { Box::new(StrictTiers) };
    let slots = || Box::new(Fixed::new(SLOTS));
    let fronts = [
        (
            "sent at once",
            Dispatcher::new(Vec::new(), Box::new(Fifo), Box::new(Fixed::new(u32::MAX))),
        ),
        (
            "4 slots, paid first",
            Dispatcher::new(Vec::new(), tiers(), slots()),
        ),
        (
            "+ 12 of free may wait",
            Dispatcher::new(vec![Box::new(cap)], tiers(), slots()),
        ),
        (
            "adaptive, paid first",
            Dispatcher::new(Vec::new(), tiers(), Box::new(Gradient::default())),
        ),
    ];
    // Each has a service of its own, so they can run side by side.
    let running = fronts.map(|(name, dispatcher)| tokio::spawn(serve(name, dispatcher)));
    let mut lines = Vec::new();
    for line in running {
        lines.push(line.await?);
    }
    Ok(lines)
}

/// Sends the load to a front at its times and collects what comes of it.
async fn serve(name: &'static str, dispatcher: Dispatcher) -> Line {
    let service = Service::new();
    let front = AsyncDispatcher::spawn(dispatcher);
    let begin = tokio::time::Instant::now();
    let mut asking = JoinSet::new();
    for n in 0..REQUESTS {
        sleep_until(begin + GAP * n as u32).await;
        let (front, service) = (front.clone(), service.clone());
        asking.spawn(async move {
            let asked = front.now();
            let answer = answer(&front, &service, class_of(n)).await;
            (class_of(n), answer, front.now().since(asked))
        });
    }
    let mut line = Line {
        name,
        answered: Vec::new(),
        refused: 0,
        most_inside: 0,
    };
    while let Some(Ok((class, answer, took))) = asking.join_next().await {
        match answer {
            Ok(()) => line.answered.push((class, took)),
            Err(Rejection::Refused(_)) => line.refused += 1,
            Err(_) => {}
        }
    }
    line.most_inside = service.most_inside();
    line
}

/// Has a request answered when it is its turn, or learns why it is not. Work on it that has lost its
/// use is dropped, and its slot goes to the next.
async fn answer(front: &AsyncDispatcher, service: &Service, class: Class) -> Result<(), Rejection> {
    let ask = Ask::new(30, OUTPUT_TOKENS).with_class(class);
    let mut permit = front.admit(ask.with_patience(Some(PATIENCE))).await?;
    tokio::select! {
        biased;
        rejection = permit.ended() => return Err(rejection),
        () = service.complete(OUTPUT_TOKENS) => {}
    }
    permit.finish();
    Ok(())
}

fn class_of(n: u64) -> Class {
    if n.is_multiple_of(3) { PAID } else { FREE }
}

impl Line {
    fn answered(&self, class: Class) -> impl Iterator<Item = Span> {
        let of_class = self
            .answered
            .iter()
            .filter(move |(other, _)| *other == class);
        of_class.map(|&(_, took)| took)
    }
}

fn table(lines: &[Line]) -> Table {
    let mut table = Table::new([
        "front",
        "paid answered",
        "paid p95",
        "free answered",
        "free p95",
        "refused",
        "most in the service",
    ]);
    for line in lines {
        table.row([
            line.name.to_owned(),
            format!("{} of {}", line.answered(PAID).count(), REQUESTS / 3),
            ms(percentile(95, line.answered(PAID))),
            format!(
                "{} of {}",
                line.answered(FREE).count(),
                REQUESTS - REQUESTS / 3
            ),
            ms(percentile(95, line.answered(FREE))),
            line.refused.to_string(),
            line.most_inside.to_string(),
        ]);
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn policies_decide_about_what_the_service_does_not_hold() {
        let lines = run().await.unwrap();
        let [at_once, tiers, capped, adaptive] = &lines[..] else {
            panic!("four fronts");
        };
        assert!(at_once.most_inside > 30, "{}", at_once.most_inside);
        assert_eq!(tiers.most_inside, SLOTS);
        assert!(adaptive.most_inside < at_once.most_inside);
        // A service's own queue knows nobody; in front of it, paid goes first.
        for front in [tiers, capped, adaptive] {
            assert_eq!(front.answered(PAID).count(), 100, "{}", front.name);
            let p95 = |line: &Line| percentile(95, line.answered(PAID));
            assert!(
                p95(front) * 2 < p95(at_once),
                "{}: {}",
                front.name,
                p95(front)
            );
        }
        // A fast no for some is an answer in time for more.
        assert!(capped.refused > 0);
        assert!(
            capped.answered(FREE).count() > tiers.answered(FREE).count(),
            "{}",
            table(&lines)
        );
    }
}
