//! What becomes of a crowd that is refused at one instant and comes back when it was told.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::sync::Arc;

use serve_core::{Limit, Refusal, Request, RequestId, Span, Time, TokenId};
use serve_sched::admit::{Admit, ConcurrencyLimit, Load, QueueCap};
use serve_sched::order::Fifo;
use serve_sched::sim::{Input, Poisson, Row, Simulation, Terminal, Workload};
use serve_sched::{FailedAttempt, Gate, Policies, RetryBudget, RetrySettings, Scheduler};

use super::device;
use crate::quoted::quoted;

const CROWD: u64 = 200;
const TOGETHER: Time = Time::from_secs(20);
const WAITING_MAX: u32 = 16;
const ATTEMPTS_MAX: u32 = 6;

/// The queue cap, telling everybody who is refused what it tells the first.
struct OneHint(QueueCap);

impl Admit for OneHint {
    fn name(&self) -> &'static str {
        "one-hint"
    }

    fn admit(&mut self, request: &Request, load: &Load<'_>) -> Result<(), Refusal> {
        self.0.admit(request, load).map_err(|refusal| {
            let Limit::QueueDepth { waiting, max } = refusal.limit() else {
                panic!("{refusal}");
            };
            Refusal::Later {
                limit: refusal.limit(),
                retry_after: load.time_to_drain(waiting - max + 1),
            }
        })
    }
}

/// The queue cap, as those hear it who read a header of whole seconds.
struct WholeSeconds(QueueCap);

impl Admit for WholeSeconds {
    fn name(&self) -> &'static str {
        "whole-seconds"
    }

    fn admit(&mut self, request: &Request, load: &Load<'_>) -> Result<(), Refusal> {
        self.0.admit(request, load).map_err(|refusal| {
            let whole = |wait: Span| Span::from_secs(wait.as_nanos().div_ceil(1_000_000_000));
            Refusal::Later {
                limit: refusal.limit(),
                retry_after: refusal.retry_after().map(whole),
            }
        })
    }
}

/// Clients, each with a budget of retries of its own, which is never empty.
struct Clients {
    due: BinaryHeap<Reverse<(Time, u64, u32)>>,
    budgets: Vec<RetryBudget>,
    attempts: u32,
    given_up: u32,
    retries: Vec<Time>,
}

impl Clients {
    /// A steady load for 20 s, from which the server learns how fast it is, and then a crowd.
    fn new(backoff: Span) -> Self {
        let settings = RetrySettings {
            attempts_max: ATTEMPTS_MAX,
            retries_percent: 10_000,
            reserve: 0,
            backoff,
            ..RetrySettings::default()
        };
        let steady = Poisson::new(3, 6.0).take_while(|&at| at < TOGETHER);
        let arrivals = steady.chain((0..CROWD).map(|_| TOGETHER));
        let due = arrivals
            .zip(0..)
            .map(|(at, client)| Reverse((at, client, 1)));
        let due: BinaryHeap<_> = due.collect();
        let mut budgets: Vec<_> = (0..due.len() as u64)
            .map(|seed| RetryBudget::new(settings, seed))
            .collect();
        budgets.iter_mut().for_each(RetryBudget::original);
        Self {
            due,
            budgets,
            attempts: 0,
            given_up: 0,
            retries: Vec::new(),
        }
    }

    /// The most retries that come within a tenth of a second.
    fn wave(&self) -> usize {
        let together = |&from: &Time| {
            let until = from + Span::from_millis(100);
            let within = self.retries.iter().filter(|&&at| from <= at && at < until);
            within.count()
        };
        self.retries.iter().map(together).max().unwrap_or(0)
    }
}

impl Workload for Clients {
    fn next_at(&mut self) -> Option<Time> {
        self.due.peek().map(|&Reverse((at, ..))| at)
    }

    fn next_input(&mut self) -> Option<(Time, Input)> {
        let Reverse((at, client, number)) = self.due.pop()?;
        self.attempts += 1;
        if number > 1 {
            self.retries.push(at);
        }
        let id = RequestId::new(client * u64::from(ATTEMPTS_MAX) + u64::from(number - 1));
        let prompt = vec![TokenId::new(client as u32); 8];
        Some((
            at,
            Input::Submit(Request::new(id, at, prompt, 100).unwrap()),
        ))
    }

    fn ended(&mut self, row: &Row) {
        let Terminal::Refused(refusal) = row.terminal else {
            return;
        };
        let client = row.request.get() / u64::from(ATTEMPTS_MAX);
        let number = (row.request.get() % u64::from(ATTEMPTS_MAX)) as u32 + 1;
        let failed = FailedAttempt {
            number,
            deadline: None,
            refusal: Some(refusal),
        };
        match self.budgets[client as usize].retry(row.end, &failed) {
            Some(at) => self.due.push(Reverse((at, client, number + 1))),
            None => self.given_up += 1,
        }
    }
}

/// A server of 8 slots that ends 8 requests a second; what its clients went through.
fn crowd(admit: Box<dyn Admit>, backoff: Span) -> Clients {
    let mock = device(8, 10);
    let policies = Policies {
        admit: vec![admit],
        ..Policies::default()
    };
    let limits = serve_core::Backend::limits(&mock);
    let scheduler = Scheduler::new(limits, policies).unwrap();
    let mut clients = Clients::new(backoff);
    Simulation::new(scheduler, mock).run_with(&mut clients, |_| {});
    clients
}

/// A queue cap that gives hints of a kind.
type Hints = fn(QueueCap) -> Box<dyn Admit>;

#[test]
fn a_crowd_that_is_refused_at_one_instant_comes_back_one_by_one() {
    let cap = || QueueCap::new(WAITING_MAX);
    let hints: [(&str, Hints); 3] = [
        ("one for all", |cap| Box::new(OneHint(cap))),
        ("a departure later for each", |cap| Box::new(cap)),
        ("the same, in whole seconds", |cap| {
            Box::new(WholeSeconds(cap))
        }),
    ];
    let backoffs = [("no", Span::ZERO), ("yes", Span::from_secs(1))];
    let runs = hints.map(|(hints, admit)| {
        backoffs.map(|(jitter, backoff)| {
            let clients = crowd(admit(cap()), backoff);
            let per_original = f64::from(clients.attempts) / clients.budgets.len() as f64;
            let (wave, given_up) = (clients.wave(), clients.given_up);
            let row = format!("| {hints} | {jitter} | {wave} | {per_original:.2} | {given_up} |");
            quoted("retry-budget", &row);
            quoted("queue-cap", &row);
            (wave, per_original, given_up)
        })
    });
    let [[one, one_with_jitter], spread, [whole, whole_with_jitter]] = runs;
    // Who was refused at once comes back at once: the control.
    assert!(one.0 > CROWD as usize * 4 / 5, "{one:?}");
    assert!(one_with_jitter.0 < one.0 / 2 && one_with_jitter.2 > 0);
    for spread in spread {
        assert!(spread.0 < 5, "{spread:?}");
        assert!(spread.1 < one_with_jitter.1 - 1.0 && spread.1 < one.1 - 1.0);
        assert_eq!(spread.2, 0, "everybody is served in the end");
    }
    assert!(
        whole_with_jitter.0 < whole.0,
        "{whole:?} {whole_with_jitter:?}"
    );
}

/// What those are told who are refused together, in departures.
fn told(scheduler: &mut Scheduler, now: Time, ids: std::ops::Range<u64>) -> Vec<u64> {
    let rate = scheduler.pace().drain_rate().unwrap();
    let told = |id| {
        let prompt = [TokenId::new(1); 4];
        let request = Request::new(RequestId::new(id), now, prompt, 5).unwrap();
        let refusal = scheduler.submit(now, request).unwrap_err();
        let hint = refusal.retry_after().expect("something has ended");
        (hint.as_secs_f64() * rate).round() as u64
    };
    ids.map(told).collect()
}

/// One slot, one place in the queue, and both are taken; some have been served before.
fn full(admit: impl Admit + 'static) -> (Scheduler, impl FnMut(&mut Scheduler) -> Time) {
    let mut mock = device(1, 10);
    let policies = Policies {
        admit: vec![Box::new(admit)],
        ..Policies::default()
    };
    let limits = serve_core::Backend::limits(&mock);
    let mut scheduler = Scheduler::new(limits, policies).unwrap();
    let (mut now, mut outcome) = (Time::ZERO, serve_core::StepOutcome::new());
    let mut step = move |scheduler: &mut Scheduler| {
        if let Some(plan) = scheduler.plan(now) {
            serve_core::Backend::execute(&mut mock, &plan, &mut outcome).unwrap();
            now += outcome.elapsed;
            scheduler.complete(now, &outcome);
        }
        now
    };
    for id in 0..5 {
        let at = step(&mut scheduler);
        let prompt = [TokenId::new(1); 4];
        let request = Request::new(RequestId::new(id), at, prompt, 5).unwrap();
        let _ = scheduler.submit(at, request);
        (0..if id < 3 { 5 } else { 1 }).for_each(|_| {
            step(&mut scheduler);
        });
    }
    (scheduler, step)
}

#[test]
fn a_full_queue_says_when() {
    let (mut scheduler, mut step) = full(QueueCap::new(1));
    let now = step(&mut scheduler);
    assert_eq!(
        (scheduler.stats().running, scheduler.stats().waiting),
        (1, 1)
    );
    assert_eq!(told(&mut scheduler, now, 10..14), [1, 2, 3, 4]);
    assert_eq!(
        told(&mut scheduler, now, 14..16),
        [5, 6],
        "nothing has ended since"
    );
    // The one that runs ends, the one that waits starts, and another takes its place.
    let finished = scheduler.stats().counters.finished;
    while scheduler.stats().counters.finished == finished {
        step(&mut scheduler);
    }
    let now = step(&mut scheduler);
    let prompt = [TokenId::new(1); 4];
    let request = Request::new(RequestId::new(20), now, prompt, 5).unwrap();
    scheduler.submit(now, request).unwrap();
    assert_eq!(told(&mut scheduler, now, 30..32), [1, 2]);
    // Who is cancelled while waiting makes room too.
    assert!(scheduler.cancel(now, RequestId::new(20), serve_core::CancelReason::Client));
    let request = Request::new(RequestId::new(21), now, prompt, 5).unwrap();
    scheduler.submit(now, request).unwrap();
    assert_eq!(told(&mut scheduler, now, 40..42), [1, 2]);
}

#[test]
fn where_nobody_may_wait_each_is_told_one_departure_more_too() {
    let (mut scheduler, mut step) = full(ConcurrencyLimit);
    let now = step(&mut scheduler);
    assert_eq!(scheduler.stats().running, 1);
    // One was refused before these, as nobody may wait.
    assert_eq!(told(&mut scheduler, now, 10..13), [2, 3, 4]);
}

#[test]
fn a_policy_counts_those_whom_it_has_refused_and_not_those_of_others() {
    /// Refuses every other id before the queue cap is asked.
    struct EveryOther;
    impl Admit for EveryOther {
        fn name(&self) -> &'static str {
            "every-other"
        }
        fn admit(&mut self, request: &Request, load: &Load<'_>) -> Result<(), Refusal> {
            let refusal = Refusal::Later {
                limit: Limit::GlobalRate,
                retry_after: load.retry_after(load.time_to_drain(7)),
            };
            let refused = request.id().get() >= 10 && request.id().get().is_multiple_of(2);
            if refused { Err(refusal) } else { Ok(()) }
        }
    }
    let mock = device(1, 10);
    let mut gate = Gate::new(
        vec![Box::new(EveryOther), Box::new(QueueCap::new(1))],
        Box::new(Fifo),
        serve_core::Backend::limits(&mock).sequences_max,
    );
    gate.pace_mut().finished(1, Span::from_secs(1));
    let mut ask = |id| {
        let prompt = [TokenId::new(1); 4];
        let request = Request::new(RequestId::new(id), Time::ZERO, prompt, 5).unwrap();
        let refusal = gate.submit(Time::ZERO, Arc::new(request)).err();
        refusal.and_then(|refusal| refusal.retry_after())
    };
    assert_eq!([ask(1), ask(3)], [None, None], "a slot and a place");
    let told: Vec<_> = (10..16)
        .map(|id| ask(id).unwrap().as_millis() / 1_000)
        .collect();
    assert_eq!(told, [7, 1, 8, 2, 9, 3]);
}
