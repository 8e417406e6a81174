//! Where a simulation's inputs come from.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::fmt;
use std::iter::Peekable;

use serve_core::rng::Rng;
use serve_core::{CancelReason, Event, Request, RequestId, Span, Time};

use super::Row;

/// Something that happens to a scheduler from outside.
#[derive(Clone, Debug, PartialEq)]
pub enum Input {
    /// A request arrives.
    Submit(Request),
    /// A request is cancelled; nothing happens if it has ended.
    Cancel {
        /// Which.
        request: RequestId,
        /// By whom or what.
        reason: CancelReason,
    },
    /// Nothing is taken in any more.
    Drain,
}

/// A source of inputs in the order of their times.
pub trait Workload {
    /// When the next input comes; `None` if none comes before a request ends.
    fn next_at(&mut self) -> Option<Time>;

    /// The next input and its time.
    fn next_input(&mut self) -> Option<(Time, Input)>;

    /// Something has happened to a request, as a client that counts its tokens wants to know. Of
    /// tokens, only each request's first is told, unless
    /// [all are asked for](super::Simulation::with_every_token).
    fn happened(&mut self, event: &Event) {
        let _ = event;
    }

    /// A request has ended or was refused, as a closed loop wants to know.
    fn ended(&mut self, row: &Row) {
        let _ = row;
    }
}

/// An open loop: requests that arrive at their [`Request::arrival`], whatever becomes of others.
#[derive(Debug)]
pub struct Arrivals<I: Iterator<Item = Request>> {
    requests: Peekable<I>,
}

impl<I: Iterator<Item = Request>> Arrivals<I> {
    /// `requests` in the order of their arrival. One that is out of order arrives late, when its
    /// turn comes; its waiting is counted from its own arrival.
    pub fn new(requests: impl IntoIterator<IntoIter = I>) -> Self {
        Self {
            requests: requests.into_iter().peekable(),
        }
    }
}

impl<I: Iterator<Item = Request>> Workload for Arrivals<I> {
    fn next_at(&mut self) -> Option<Time> {
        self.requests.peek().map(Request::arrival)
    }

    fn next_input(&mut self) -> Option<(Time, Input)> {
        let request = self.requests.next()?;
        Some((request.arrival(), Input::Submit(request)))
    }
}

/// Inputs of every kind at given times.
#[derive(Debug)]
pub struct Script<I: Iterator<Item = (Time, Input)>> {
    inputs: Peekable<I>,
}

impl<I: Iterator<Item = (Time, Input)>> Script<I> {
    /// `inputs` in the order of their times.
    pub fn new(inputs: impl IntoIterator<IntoIter = I>) -> Self {
        Self {
            inputs: inputs.into_iter().peekable(),
        }
    }
}

impl<I: Iterator<Item = (Time, Input)>> Workload for Script<I> {
    fn next_at(&mut self) -> Option<Time> {
        self.inputs.peek().map(|&(at, _)| at)
    }

    fn next_input(&mut self) -> Option<(Time, Input)> {
        self.inputs.next()
    }
}

/// A closed loop: each of some clients sends a request, waits for its end, thinks, and sends the
/// next. Load cannot exceed the number of clients, which is why a closed loop never shows overload.
pub struct ClosedLoop<F, T> {
    due: BinaryHeap<Reverse<(Time, u64)>>,
    next: u64,
    request: F,
    think: T,
}

impl<F, T> ClosedLoop<F, T>
where
    F: FnMut(u64, Time) -> Option<Request>,
    T: FnMut() -> Span,
{
    /// `clients` clients that begin at time zero. `request` makes the n-th request at a time, with
    /// an id of its own, until it returns `None`; `think` draws the time that a client thinks.
    pub fn new(clients: u32, request: F, think: T) -> Self {
        let due = (0..u64::from(clients)).map(|n| Reverse((Time::ZERO, n)));
        Self {
            due: due.collect(),
            next: u64::from(clients),
            request,
            think,
        }
    }
}

impl<F, T> Workload for ClosedLoop<F, T>
where
    F: FnMut(u64, Time) -> Option<Request>,
    T: FnMut() -> Span,
{
    fn next_at(&mut self) -> Option<Time> {
        self.due.peek().map(|&Reverse((at, _))| at)
    }

    fn next_input(&mut self) -> Option<(Time, Input)> {
        let Reverse((at, n)) = self.due.pop()?;
        match (self.request)(n, at) {
            Some(request) => Some((at, Input::Submit(request))),
            None => {
                self.due.clear();
                None
            }
        }
    }

    fn ended(&mut self, row: &Row) {
        self.due
            .push(Reverse((row.end + (self.think)(), self.next)));
        self.next += 1;
    }
}

/// The times of a Poisson process: independent arrivals at a mean rate.
#[derive(Clone, Debug)]
pub struct Poisson {
    rng: Rng,
    gap_mean_secs: f64,
    secs: f64,
}

impl Poisson {
    /// `rate` arrivals a second in the mean, fixed by `seed`.
    pub fn new(seed: u64, rate: f64) -> Self {
        Self {
            rng: Rng::new(seed),
            gap_mean_secs: 1.0 / rate,
            secs: 0.0,
        }
    }
}

impl Iterator for Poisson {
    type Item = Time;

    fn next(&mut self) -> Option<Time> {
        self.secs += self.rng.exponential(self.gap_mean_secs);
        Some(Time::ZERO + Span::from_secs_f64(self.secs))
    }
}

impl<F, T> fmt::Debug for ClosedLoop<F, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut debug = f.debug_struct("ClosedLoop");
        debug.field("due", &self.due);
        debug.field("next", &self.next);
        debug.finish_non_exhaustive()
    }
}
