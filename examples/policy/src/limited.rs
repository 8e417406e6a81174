//! The limits of a dispatcher, in front of an engine of 16 slots that has only 8 for a while, and is offered more than it can
//! do.

use std::cell::Cell;
use std::rc::Rc;
use std::sync::Arc;

use examples_support::{Table, percentile, request, secs};
use serve_core::{Request, RequestId, Span, Time};
use serve_sched::limit::{Aimd, Concurrency, Fixed, Gradient};
use serve_sched::order::Fifo;
use serve_sched::sim::{
    Arrivals, DispatcherSimulation, EngineModel, Poisson, Reply, Report, SlotEngine, Slots,
};
use serve_sched::{Dispatcher, Outcome};

type Make = fn() -> Box<dyn Concurrency>;

/// A limit and what it is compared with, in front of which engine.
pub(crate) struct Limited {
    pub(crate) name: &'static str,
    pub(crate) title: &'static str,
    /// Requests that the engine keeps waiting; it refuses those beyond, if it refuses any.
    queue_max: Option<u32>,
    choices: [(&'static str, Make); 2],
}

const QUEUES: &str = "100 requests/s of 200 ms for 2 min, at an engine that queues: 16 slots, and 8 from 40 s to 80 s";
const REFUSES: &str = "100 requests/s of 200 ms for 2 min, at an engine that refuses: 16 slots, and 8 from 40 s to 80 s";

pub(crate) const LIMITS: &[Limited] = &[
    Limited {
        name: "fixed",
        title: QUEUES,
        queue_max: None,
        choices: [
            ("fixed at 16", || Box::new(Fixed::new(16))),
            ("fixed at 64", || Box::new(Fixed::new(64))),
        ],
    },
    Limited {
        name: "gradient",
        title: QUEUES,
        queue_max: None,
        choices: [
            ("gradient", || Box::new(Gradient::default())),
            ("fixed at 64", || Box::new(Fixed::new(64))),
        ],
    },
    Limited {
        name: "aimd",
        title: REFUSES,
        queue_max: Some(0),
        choices: [
            ("aimd", || Box::new(Aimd::default())),
            ("gradient", || Box::new(Gradient::default())),
        ],
    },
];

/// An engine that counts what it refuses, to be sent again.
struct Counting {
    engine: SlotEngine,
    refused: Rc<Cell<u32>>,
}

impl EngineModel for Counting {
    fn send(&mut self, now: Time, request: &Arc<Request>) {
        self.engine.send(now, request);
    }

    fn abort(&mut self, now: Time, id: RequestId) {
        self.engine.abort(now, id);
    }

    fn reply(&mut self, now: Time) -> Option<(RequestId, Reply)> {
        let reply = self.engine.reply(now)?;
        if matches!(reply.1, Reply::Done(Outcome::PutBack { .. })) {
            self.refused.set(self.refused.get() + 1);
        }
        Some(reply)
    }

    fn next_at(&self) -> Option<Time> {
        self.engine.next_at()
    }
}

impl Limited {
    pub(crate) fn table(&self, seed: u64) -> Table {
        let mut table = Table::new([
            "limit, then its control",
            "answered",
            "all done after",
            "in the engine p50",
            "in the engine p99",
            "sent in vain",
        ]);
        for (name, limit) in self.choices {
            let (report, refused) = self.run(limit(), seed);
            let answered = || report.rows.iter().filter(|row| row.is_finished());
            let inside = || answered().filter_map(|row| Some(row.end.since(row.started?)));
            table.row([
                name.to_owned(),
                format!("{} of {}", answered().count(), report.rows.len()),
                secs(report.end.since(Time::ZERO)),
                secs(percentile(50, inside())),
                secs(percentile(99, inside())),
                refused.to_string(),
            ]);
        }
        table
    }

    /// What came of it, and how many times the engine refused.
    fn run(&self, limit: Box<dyn Concurrency>, seed: u64) -> (Report, u32) {
        let many = Slots {
            slots: 16,
            prompt_token: Span::ZERO,
            queue_max: self.queue_max,
            ..Slots::default()
        };
        let few = Slots { slots: 8, ..many };
        let engine = SlotEngine::new(many)
            .becoming(Time::from_secs(40), few)
            .becoming(Time::from_secs(80), many);
        let refused = Rc::new(Cell::new(0));
        let engine = Counting {
            engine,
            refused: Rc::clone(&refused),
        };
        let minutes = Poisson::new(seed + 11, 100.0).take_while(|&at| at < Time::from_secs(120));
        let load = (0..).zip(minutes).map(|(id, at)| request(id, at, 30, 20));
        let dispatcher = Dispatcher::new(Vec::new(), Box::new(Fifo), limit);
        let report = DispatcherSimulation::new(dispatcher, engine).run(&mut Arrivals::new(load));
        (report, refused.get())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_limit_does_something_else_than_its_control_whatever_the_seed() {
        for limited in LIMITS {
            let [(_, policy), (_, control)] = limited.choices;
            for seed in [0, 1_000] {
                let run = |make: Make| limited.run(make(), seed).0.rows;
                assert_ne!(run(policy), run(control), "{}", limited.name);
            }
        }
    }
}
