//! The dispatcher's limits, in front of an engine whose capacity changes.

use std::cell::RefCell;
use std::error::Error;
use std::rc::Rc;
use std::sync::{Arc, Mutex, PoisonError};

use examples_support::request;
use serve_core::{Request, RequestId, Span, Time};
use serve_sched::Dispatcher;
use serve_sched::limit::{Aimd, Concurrency, Departure, Fixed, Gradient};
use serve_sched::order::Fifo;
use serve_sched::sim::{
    Arrivals, DispatcherSimulation, EngineModel, Reply, Report, SlotEngine, Slots,
};

use super::load::arrivals;
use crate::chart::{Axis, Chart, Role, Series};

const OUTPUT_TOKENS: u32 = 20;
const SECS: u64 = 120;

/// An engine of 16 slots, 200 ms for a request, and of only 8 in the middle third of the run.
fn changing(queue_max: Option<u32>) -> SlotEngine {
    let many = Slots {
        slots: 16,
        prompt_token: Span::ZERO,
        queue_max,
        ..Slots::default()
    };
    let few = Slots { slots: 8, ..many };
    let third = SECS / 3;
    SlotEngine::new(many)
        .becoming(Time::from_secs(third), few)
        .becoming(Time::from_secs(2 * third), many)
}

/// An engine that notes every half second how many requests are inside, those in its own queue included.
struct Watched {
    engine: SlotEngine,
    inside: usize,
    read_at: Time,
    points: Rc<RefCell<Vec<(f64, f64)>>>,
}

impl Watched {
    fn new(points: Rc<RefCell<Vec<(f64, f64)>>>) -> Self {
        Self {
            engine: changing(None),
            inside: 0,
            read_at: Time::ZERO,
            points,
        }
    }

    fn note(&mut self, now: Time) {
        while self.read_at <= now && self.read_at <= Time::from_secs(SECS) {
            let point = (self.read_at.as_secs_f64(), self.inside as f64);
            self.points.borrow_mut().push(point);
            self.read_at += Span::from_millis(500);
        }
    }
}

impl EngineModel for Watched {
    fn send(&mut self, now: Time, request: &Arc<Request>) {
        self.note(now);
        self.inside += 1;
        self.engine.send(now, request);
    }

    fn abort(&mut self, now: Time, id: RequestId) {
        self.engine.abort(now, id);
    }

    fn reply(&mut self, now: Time) -> Option<(RequestId, Reply)> {
        let reply = self.engine.reply(now)?;
        if matches!(reply, (_, Reply::Done(_))) {
            self.note(now);
            self.inside -= 1;
        }
        Some(reply)
    }

    fn next_at(&self) -> Option<Time> {
        self.engine.next_at()
    }
}

/// A limit that notes what it is each time that it may have changed.
struct Noted {
    limit: Box<dyn Concurrency>,
    points: Arc<Mutex<Vec<(f64, f64)>>>,
}

impl Concurrency for Noted {
    fn name(&self) -> &'static str {
        self.limit.name()
    }

    fn limit(&self) -> u32 {
        self.limit.limit()
    }

    fn left(&mut self, now: Time, departure: &Departure) {
        self.limit.left(now, departure);
        let point = (now.as_secs_f64(), f64::from(self.limit.limit()));
        let mut points = self.points.lock().unwrap_or_else(PoisonError::into_inner);
        points.push(point);
    }
}

/// Offers an engine more than it can do.
fn offer(limit: Box<dyn Concurrency>, engine: impl EngineModel) -> Report {
    let load = arrivals(11, 100.0, SECS);
    let load = load.map(|(id, at)| request(id, at, 30, OUTPUT_TOKENS));
    let dispatcher = Dispatcher::new(Vec::new(), Box::new(Fifo), limit);
    DispatcherSimulation::new(dispatcher, engine).run(&mut Arrivals::new(load))
}

/// How many requests are inside the engine, every half second.
fn inside(limit: Box<dyn Concurrency>) -> Vec<(f64, f64)> {
    let points = Rc::default();
    offer(limit, Watched::new(Rc::clone(&points)));
    points.take()
}

/// What the limit is in front of an engine that refuses what it cannot begin.
fn limits(limit: Box<dyn Concurrency>) -> Vec<(f64, f64)> {
    let points = Arc::<Mutex<_>>::default();
    let noted = Noted {
        limit,
        points: Arc::clone(&points),
    };
    offer(Box::new(noted), changing(Some(0)));
    let points = points.lock().unwrap_or_else(PoisonError::into_inner);
    // As many as a chart can show.
    let until = |&&(at, _): &&(f64, f64)| at <= SECS as f64;
    points
        .iter()
        .take_while(until)
        .step_by(20)
        .copied()
        .collect()
}

fn slots() -> Series {
    let third = SECS as f64 / 3.0;
    let slots = vec![
        (0.0, 16.0),
        (third, 16.0),
        (third, 8.0),
        (2.0 * third, 8.0),
        (2.0 * third, 16.0),
        (SECS as f64, 16.0),
    ];
    Series::new("the engine's slots", Role::Guide, slots)
}

pub(super) fn fixed() -> Result<Chart, Box<dyn Error>> {
    let (mut rate, mut waiting) = (Vec::new(), Vec::new());
    for limit in (2..=40).step_by(2) {
        let engine = SlotEngine::new(Slots {
            slots: 16,
            prompt_token: Span::ZERO,
            ..Slots::default()
        });
        let report = offer(Box::new(Fixed::new(limit)), engine);
        let answered = report.rows.len() as f64 / report.end.as_secs_f64();
        let inside = report
            .rows
            .iter()
            .filter_map(|row| Some(row.end.since(row.started?)));
        let inside = inside.sum::<Span>().as_secs_f64() / report.end.as_secs_f64();
        // What is inside and not being worked at: 200 ms are work.
        let queued = (inside - 0.2 * answered).max(0.0);
        rate.push((f64::from(limit), answered));
        waiting.push((f64::from(limit), queued));
    }
    Ok(Chart {
        title: "A fixed limit is right in one place",
        setting: "an engine of 16 slots, 200 ms for a request, offered more than it can do",
        x: Axis::to(40.0, "limit"),
        y: Axis::to(90.0, "answers a second; requests queued"),
        series: vec![
            Series::new("answers a second", Role::Policy, rate),
            Series::new("requests queued in the engine", Role::Control, waiting),
        ],
    })
}

pub(super) fn gradient() -> Result<Chart, Box<dyn Error>> {
    Ok(Chart {
        title: "The gradient follows what the engine can do",
        setting: "an engine of 16 slots, of 8 for a while, offered more than it can do",
        x: Axis::to(SECS as f64, "time (s)"),
        y: Axis::to(70.0, "requests inside the engine"),
        series: vec![
            Series::new(
                "gradient",
                Role::Policy,
                inside(Box::new(Gradient::default())),
            ),
            Series::new(
                "fixed at 64",
                Role::Control,
                inside(Box::new(Fixed::new(64))),
            ),
            slots(),
        ],
    })
}

pub(super) fn aimd() -> Result<Chart, Box<dyn Error>> {
    Ok(Chart {
        title: "AIMD stays below what the engine refuses",
        setting: "an engine of 16 slots, of 8 for a while, that refuses what it cannot begin",
        x: Axis::to(SECS as f64, "time (s)"),
        y: Axis::to(40.0, "limit"),
        series: vec![
            Series::new("aimd", Role::Policy, limits(Box::new(Aimd::default()))),
            Series::new(
                "gradient",
                Role::Control,
                limits(Box::new(Gradient::default())),
            ),
            slots(),
        ],
    })
}
