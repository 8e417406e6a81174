//! The dispatcher's concurrency, in front of an engine whose capacity changes.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};
use std::error::Error;

use examples_support::request;
use serve_core::{FinishReason, RequestId, Span, Time, Usage};
use serve_sched::order::Fifo;
use serve_sched::{Concurrency, Dispatcher, Gradient, Outcome};

use super::load::arrivals;
use crate::chart::{Axis, Chart, Role, Series};

const OUTPUT_TOKENS: u32 = 20;
const SERVICE: Span = Span::from_millis(200);
const SECS: u64 = 120;

/// An engine that one cannot look into: it works at some requests side by side and keeps the rest in
/// a queue of its own.
struct Engine {
    working: BinaryHeap<Reverse<(Time, RequestId)>>,
    queue: VecDeque<RequestId>,
}

impl Engine {
    /// 16 at once, but only 8 in the middle third of the run.
    fn slots(now: Time) -> usize {
        let middle = Time::from_secs(SECS / 3)..Time::from_secs(2 * SECS / 3);
        if middle.contains(&now) { 8 } else { 16 }
    }

    fn take(&mut self, now: Time, id: RequestId) {
        self.queue.push_back(id);
        self.begin(now);
    }

    fn begin(&mut self, now: Time) {
        while self.working.len() < Self::slots(now) {
            let Some(id) = self.queue.pop_front() else {
                return;
            };
            self.working.push(Reverse((now + SERVICE, id)));
        }
    }

    fn next_end(&self) -> Option<Time> {
        self.working.peek().map(|Reverse((end, _))| *end)
    }

    fn inside(&self) -> usize {
        self.working.len() + self.queue.len()
    }
}

/// How many requests are inside the engine, every half second, when it is offered more than it can
/// do.
fn inside(concurrency: Concurrency) -> Result<Vec<(f64, f64)>, Box<dyn Error>> {
    let mut dispatcher = Dispatcher::new(Vec::new(), Box::new(Fifo), concurrency);
    let mut engine = Engine {
        working: BinaryHeap::new(),
        queue: VecDeque::new(),
    };
    let mut load = arrivals(11, 100.0, SECS).peekable();
    let mut points = Vec::new();
    let mut read_at = Time::ZERO;
    loop {
        let next = load.peek().map(|&(_, at)| at);
        let Some(now) = next.into_iter().chain(engine.next_end()).min() else {
            break;
        };
        while read_at <= now && read_at <= Time::from_secs(SECS) {
            points.push((read_at.as_secs_f64(), engine.inside() as f64));
            read_at += Span::from_millis(500);
        }
        if now > Time::from_secs(SECS) {
            break;
        }
        if engine.next_end() == Some(now) {
            if let Some(Reverse((_, id))) = engine.working.pop() {
                engine.begin(now);
                dispatcher.done(now, id, answered());
            }
        } else if let Some((id, at)) = load.next() {
            dispatcher.submit(at, request(id, at, 30, OUTPUT_TOKENS))?;
        }
        while let Some(sent) = dispatcher.next(now) {
            engine.take(now, sent.id());
        }
        while dispatcher.poll_event().is_some() {}
    }
    Ok(points)
}

fn answered() -> Outcome {
    Outcome::Finished {
        reason: FinishReason::Length,
        usage: Usage {
            prompt_tokens: 30,
            output_tokens: OUTPUT_TOKENS,
            ..Usage::default()
        },
    }
}

pub(super) fn adaptive() -> Result<Chart, Box<dyn Error>> {
    let third = SECS as f64 / 3.0;
    let slots = vec![
        (0.0, 16.0),
        (third, 16.0),
        (third, 8.0),
        (2.0 * third, 8.0),
        (2.0 * third, 16.0),
        (SECS as f64, 16.0),
    ];
    Ok(Chart {
        title: "Adaptive concurrency follows what the engine can do",
        setting: "an engine of 16 slots, of 8 for a while, offered more than it can do",
        x: Axis::to(SECS as f64, "time (s)"),
        y: Axis::to(70.0, "requests inside the engine"),
        series: vec![
            Series::new(
                "adaptive",
                Role::Policy,
                inside(Concurrency::Adaptive(Gradient::default()))?,
            ),
            Series::new(
                "fixed at 64",
                Role::Control,
                inside(Concurrency::Fixed(64))?,
            ),
            Series::new("the engine's slots", Role::Guide, slots),
        ],
    })
}
