//! Limits in front of engines that one cannot look into, in virtual time.

mod behaviour;
mod books;
mod table;

use std::sync::{Arc, Mutex, PoisonError};

use serve_core::{Request, RequestId, Span, Time, TokenId};
use serve_sched::Dispatcher;
use serve_sched::admit::{Admit, QueueCap};
use serve_sched::limit::{Concurrency, Departure, Fixed, Signal};
use serve_sched::order::Fifo;
use serve_sched::sim::{Arrivals, DispatcherSimulation, EngineModel, Poisson, Report, Slots};

/// A request of these sizes.
fn request(id: u64, at: Time, prompt: u32, output: u32) -> Request {
    let prompt = vec![TokenId::new(1); prompt as usize];
    Request::new(RequestId::new(id), at, prompt, output).unwrap()
}

/// `count` requests that all come at once, with answers of 10 to 16 tokens.
fn backlog(count: u64) -> Vec<Request> {
    let each = |id| request(id, Time::ZERO, 4, 10 + (id % 7) as u32);
    (0..count).map(each).collect()
}

/// `count` requests in the mean `rate` times a second, of these sizes.
fn arrivals(rate: f64, count: u64, sizes: impl Fn(u64) -> (u32, u32)) -> Vec<Request> {
    let times = Poisson::new(1, rate).zip(0..count);
    let each = times.map(|(at, id)| {
        let (prompt, output) = sizes(id);
        request(id, at, prompt, output)
    });
    each.collect()
}

fn slots(slots: u32) -> Slots {
    Slots {
        slots,
        prompt_token: Span::ZERO,
        ..Slots::default()
    }
}

/// What a limit was after each departure that it heard of.
#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<(Departure, u32)>>>);

impl Log {
    fn read(&self) -> Vec<(Departure, u32)> {
        let log = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        log.clone()
    }

    fn limits(&self) -> Vec<u32> {
        self.read().iter().map(|&(_, limit)| limit).collect()
    }

    /// The limit that was not exceeded for half of the time, over the last half of all departures.
    fn settled(&self) -> u32 {
        let limits = self.limits();
        let mut late = limits[limits.len() / 2..].to_vec();
        late.sort_unstable();
        late[late.len() / 2]
    }
}

/// A limit that is watched.
struct Watched {
    limit: Box<dyn Concurrency>,
    log: Log,
}

impl Concurrency for Watched {
    fn name(&self) -> &'static str {
        self.limit.name()
    }

    fn limit(&self) -> u32 {
        self.limit.limit()
    }

    fn left(&mut self, now: Time, departure: &Departure) {
        self.limit.left(now, departure);
        let mut log = self.log.0.lock().unwrap_or_else(PoisonError::into_inner);
        log.push((*departure, self.limit.limit()));
    }
}

/// Runs `requests` through a dispatcher with `limit`, and gives what the limit was on the way.
fn watch(
    limit: impl Concurrency + 'static,
    engine: impl EngineModel,
    requests: Vec<Request>,
) -> (Report, Log) {
    let log = Log::default();
    let watched = Watched {
        limit: Box::new(limit),
        log: log.clone(),
    };
    let (report, _) = run(Box::new(watched), Vec::new(), engine, requests);
    (report, log)
}

/// Runs `requests` through a dispatcher, and gives the mean limit.
fn run(
    limit: Box<dyn Concurrency>,
    admit: Vec<Box<dyn Admit>>,
    engine: impl EngineModel,
    requests: Vec<Request>,
) -> (Report, f64) {
    let dispatcher = Dispatcher::new(admit, Box::new(Fifo), limit);
    let mut simulation = DispatcherSimulation::new(dispatcher, engine);
    let mut rows = Vec::new();
    let mut report = simulation.run_with(&mut Arrivals::new(requests), |row| rows.push(*row));
    report.rows = rows;
    (report, simulation.limit_mean())
}
