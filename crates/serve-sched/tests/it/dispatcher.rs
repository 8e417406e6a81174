//! The dispatcher: every request is answered once, slots are never exceeded, and an adaptive limit
//! finds what an engine can do.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use proptest::prelude::*;
use serve_core::{
    CancelReason, EventKind, FinishReason, Limit, Refusal, Request, RequestId, Span, TenantId,
    Time, TokenId, Usage,
};
use serve_sched::admit::{Admit, ConcurrencyLimit, QueueCap};
use serve_sched::limit::{Concurrency, Fixed, Gradient, GradientSettings};
use serve_sched::order::{FairTenants, Fifo};
use serve_sched::sim::{Arrivals, DispatcherSimulation, SlotEngine, Slots};
use serve_sched::{Dispatcher, Outcome};

use crate::quoted::quoted;

fn request(id: u64, at: Time) -> Request {
    Request::new(RequestId::new(id), at, vec![TokenId::new(1); 4], 10).unwrap()
}

fn finished(output_tokens: u32) -> Outcome {
    let usage = Usage {
        prompt_tokens: 4,
        output_tokens,
        ..Usage::default()
    };
    Outcome::Answered {
        reason: FinishReason::Length,
        usage,
    }
}

fn failed() -> Outcome {
    Outcome::Overloaded {
        cause: Arc::from("503"),
        retry_after: None,
    }
}

fn mistake() -> Outcome {
    Outcome::Ignored {
        cause: Arc::from("400"),
    }
}

fn refused(retry_after_ms: Option<u64>) -> Outcome {
    Outcome::PutBack {
        cause: Arc::from("429"),
        retry_after: retry_after_ms.map(Span::from_millis),
    }
}

fn fixed(limit: u32) -> Dispatcher {
    Dispatcher::new(Vec::new(), Box::new(Fifo), Box::new(Fixed::new(limit)))
}

#[derive(Clone, Copy, Debug)]
enum Op {
    Wait(u64),
    Submit {
        deadline_ms: Option<u64>,
    },
    Next,
    Timeout,
    /// Of the requests with the engine, the n-th is done.
    Done {
        index: usize,
        how: How,
    },
    /// Of all requests ever submitted, the n-th is cancelled.
    Cancel(usize),
    Drain,
}

/// How the engine lets go of a request.
#[derive(Clone, Copy, Debug)]
enum How {
    Answers,
    Fails,
    Mistake,
    /// With what hint.
    PutsBack(Option<u64>),
}

fn how() -> impl Strategy<Value = How> {
    prop_oneof![
        5 => Just(How::Answers),
        1 => Just(How::Fails),
        1 => Just(How::Mistake),
        3 => prop::option::of(0_u64..300).prop_map(How::PutsBack),
    ]
}

fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        4 => (0_u64..200).prop_map(Op::Wait),
        8 => prop::option::of(0_u64..500).prop_map(|deadline_ms| Op::Submit { deadline_ms }),
        8 => Just(Op::Next),
        2 => Just(Op::Timeout),
        5 => (any::<usize>(), how()).prop_map(|(index, how)| Op::Done { index, how }),
        3 => any::<usize>().prop_map(Op::Cancel),
        1 => prop::bool::weighted(0.1).prop_map(|drain| if drain { Op::Drain } else { Op::Next }),
    ]
}

/// What has to be true of a dispatcher, kept beside it.
struct Model {
    dispatcher: Dispatcher,
    limit: u32,
    now: Time,
    ids: u64,
    deadlines: BTreeMap<RequestId, Option<Time>>,
    live: BTreeSet<RequestId>,
    sent: Vec<RequestId>,
    /// Those never sent so far go in the order of their arrival.
    last_sent: Option<RequestId>,
    /// How often, and not before when.
    put_back: BTreeMap<RequestId, (u32, Time)>,
    /// Until when nothing is to be sent.
    paused_until: Option<Time>,
    draining: bool,
}

const PUT_BACKS_MAX: u32 = 2;

impl Model {
    fn apply(&mut self, op: Op) -> Result<(), TestCaseError> {
        match op {
            Op::Wait(ms) => self.now += Span::from_millis(ms),
            Op::Submit { deadline_ms } => self.submit(deadline_ms)?,
            Op::Next => self.next()?,
            Op::Timeout => self.dispatcher.handle_timeout(self.now),
            Op::Done { index, how } => {
                if !self.sent.is_empty() {
                    let id = self.sent.remove(index % self.sent.len());
                    self.done(id, how)?;
                }
            }
            Op::Cancel(index) => {
                if self.ids > 0 {
                    let id = RequestId::new(index as u64 % self.ids);
                    let was_live = self.live.contains(&id);
                    let done = self.dispatcher.cancel(self.now, id, CancelReason::Client);
                    prop_assert_eq!(done, was_live);
                }
            }
            Op::Drain => {
                self.dispatcher.drain(self.now);
                self.draining = true;
            }
        }
        self.check(matches!(op, Op::Next | Op::Timeout))
    }

    fn submit(&mut self, deadline_ms: Option<u64>) -> Result<(), TestCaseError> {
        let deadline = deadline_ms.map(|ms| self.now + Span::from_millis(ms));
        let request = request(self.ids, self.now).with_deadline(deadline);
        let id = request.id();
        self.ids += 1;
        let taken = self.dispatcher.submit(self.now, request);
        let passed = deadline.is_some_and(|deadline| deadline <= self.now);
        prop_assert_eq!(taken.is_ok(), !passed && !self.draining);
        if taken.is_ok() {
            self.live.insert(id);
            self.deadlines.insert(id, deadline);
        }
        Ok(())
    }

    fn done(&mut self, id: RequestId, how: How) -> Result<(), TestCaseError> {
        self.paused_until = None;
        let outcome = match how {
            How::Answers => finished(3),
            How::Fails => failed(),
            How::Mistake => mistake(),
            How::PutsBack(hint) => {
                let expired = self.deadlines[&id].is_some_and(|at| at <= self.now);
                let (times, _) = self.put_back.get(&id).copied().unwrap_or_default();
                let pause = Span::from_millis(hint.unwrap_or(100 << times));
                let until = self.now + pause;
                self.paused_until = Some(until);
                if self.live.contains(&id) && !expired && times < PUT_BACKS_MAX {
                    self.put_back.insert(id, (times + 1, until));
                }
                refused(hint)
            }
        };
        prop_assert!(self.dispatcher.done(self.now, id, outcome.clone()));
        prop_assert!(!self.dispatcher.done(self.now, id, outcome), "only once");
        Ok(())
    }

    fn next(&mut self) -> Result<(), TestCaseError> {
        let waiting = self.dispatcher.stats().waiting;
        let paused = self.paused_until.is_some_and(|until| self.now < until);
        match self.dispatcher.next(self.now) {
            Some(request) => {
                let id = request.id();
                prop_assert!(!paused, "the engine wants nothing");
                match self.put_back.get(&id) {
                    Some(&(_, until)) => prop_assert!(until <= self.now, "too early"),
                    None => {
                        prop_assert!(self.last_sent < Some(id), "first come, first served");
                        self.last_sent = Some(id);
                    }
                }
                // Who was put back has kept its place ahead of all that came later.
                let ready = self
                    .put_back_and_waiting()
                    .find(|&(_, until)| until <= self.now);
                prop_assert!(ready.is_none_or(|(other, _)| id <= other), "passed");
                self.sent.push(id);
            }
            None => {
                let full = self.sent.len() as u32 >= self.limit;
                let held = self.put_back_and_waiting();
                let held = held.filter(|&(_, until)| until > self.now);
                let empty = self.dispatcher.stats().waiting == held.count() as u32;
                let reason = full || empty || paused;
                prop_assert!(reason, "{waiting} waited and a slot was free");
            }
        }
        Ok(())
    }

    /// Those that the engine has refused and that wait, by their age, and until when.
    fn put_back_and_waiting(&self) -> impl Iterator<Item = (RequestId, Time)> {
        let all = self.put_back.iter().map(|(&id, &(_, until))| (id, until));
        all.filter(|(id, _)| {
            let late = self.deadlines[id].is_some_and(|at| at <= self.now);
            self.live.contains(id) && !late && !self.sent.contains(id)
        })
    }

    fn check(&mut self, timeouts_handled: bool) -> Result<(), TestCaseError> {
        while let Some(event) = self.dispatcher.poll_event() {
            prop_assert!(self.live.contains(&event.request), "nothing after the end");
            if event.kind.is_terminal() {
                self.live.remove(&event.request);
            }
            if let EventKind::Cancelled { reason, .. } = event.kind {
                let deadline = self.deadlines[&event.request];
                let passed = deadline.is_some_and(|deadline| deadline <= self.now);
                prop_assert!(reason != CancelReason::Deadline || passed);
            }
        }
        let stats = self.dispatcher.stats();
        let counters = stats.counters;
        let ended = counters.finished + counters.refused + counters.cancelled + counters.failed;
        let held = u64::from(stats.waiting + stats.running);
        prop_assert_eq!(counters.arrived, ended + held);
        prop_assert_eq!(held, self.live.len() as u64);
        prop_assert_eq!(stats.running + stats.aborting, self.sent.len() as u32);
        prop_assert!(self.sent.len() as u32 <= self.limit);
        if timeouts_handled {
            for id in &self.live {
                let deadline = self.deadlines[id].unwrap_or(Time::MAX);
                prop_assert!(deadline > self.now, "{} is late", id);
            }
        }
        Ok(())
    }

    fn finish(mut self) -> Result<(), TestCaseError> {
        self.apply(Op::Drain)?;
        while self.dispatcher.stats().waiting > 0 || !self.sent.is_empty() {
            self.apply(Op::Next)?;
            let (index, how) = (0, How::Answers);
            self.apply(Op::Done { index, how })?;
            if let Some(wake) = self.dispatcher.next_timeout() {
                self.now = self.now.max(wake);
            }
        }
        prop_assert!(self.live.is_empty());
        prop_assert!(self.dispatcher.is_drained());
        Ok(())
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn every_request_is_answered_once(
        limit in 1_u32..5,
        ops in prop::collection::vec(op(), 1..150),
    ) {
        let mut model = Model {
            dispatcher: fixed(limit).with_put_backs_max(PUT_BACKS_MAX),
            limit,
            now: Time::ZERO,
            ids: 0,
            deadlines: BTreeMap::new(),
            live: BTreeSet::new(),
            sent: Vec::new(),
            last_sent: None,
            put_back: BTreeMap::new(),
            paused_until: None,
            draining: false,
        };
        for op in ops {
            model.apply(op)?;
        }
        model.finish()?;
    }
}

#[test]
fn a_slot_is_taken_until_the_engine_has_let_go() {
    let mut dispatcher = fixed(1);
    let (now, later) = (Time::ZERO, Time::from_millis(50));
    dispatcher.submit(now, request(1, now)).unwrap();
    dispatcher.submit(now, request(2, now)).unwrap();
    let first = dispatcher.next(now).unwrap().id();
    assert!(dispatcher.cancel(now, first, CancelReason::Client));
    assert!(!dispatcher.cancel(now, first, CancelReason::Client));
    assert!(
        dispatcher.next(now).is_none(),
        "the engine still works on it"
    );
    let refusal = dispatcher.submit(now, request(1, now)).unwrap_err();
    assert_eq!(refusal.limit(), Limit::DuplicateId);

    assert!(dispatcher.done(later, first, finished(1)));
    assert_eq!(dispatcher.next(later).unwrap().id(), RequestId::new(2));
    let kinds = std::iter::from_fn(|| dispatcher.poll_event());
    let terminal = kinds.filter(|event| event.kind.is_terminal());
    assert_eq!(terminal.count(), 1);
}

#[test]
fn a_deadline_counts_while_waiting_and_while_sent() {
    let mut dispatcher = fixed(1);
    let at = Time::from_millis;
    for id in 1..=2 {
        let request = request(id, at(0)).with_deadline(Some(at(100 * id)));
        dispatcher.submit(at(0), request).unwrap();
    }
    dispatcher.next(at(0)).unwrap();
    assert_eq!(dispatcher.next_timeout(), Some(at(100)));
    dispatcher.handle_timeout(at(100));
    assert_eq!(dispatcher.next_timeout(), Some(at(200)));
    dispatcher.handle_timeout(at(200));
    assert_eq!(dispatcher.next_timeout(), None);
    let stats = dispatcher.stats();
    assert_eq!((stats.waiting, stats.running, stats.aborting), (0, 0, 1));
    assert_eq!(stats.counters.cancelled, 2);
}

#[test]
fn tokens_that_come_in_between_count_for_fairness() {
    let order = FairTenants::new(1, 1);
    let mut dispatcher = Dispatcher::new(Vec::new(), Box::new(order), Box::new(Fixed::new(2)));
    let now = Time::ZERO;
    for id in 1..=6 {
        let tenant = TenantId::new(1 + (id % 2) as u32);
        let request = request(id, now).with_tenant(tenant);
        dispatcher.submit(now, request).unwrap();
    }
    let first = dispatcher.next(now).unwrap();
    let second = dispatcher.next(now).unwrap();
    assert_ne!(first.tenant(), second.tenant());
    // The second's answer is long. Its tenant is next only when the other has had as much.
    dispatcher.served(now, second.id(), 9);
    dispatcher.done(now, first.id(), finished(2));
    let third = dispatcher.next(now).unwrap();
    assert_eq!(third.tenant(), first.tenant());
}

#[test]
fn tokens_are_counted_once_whenever_they_are_told() {
    for told in [0, 4, 10] {
        let order = FairTenants::new(1, 1);
        let mut dispatcher = Dispatcher::new(Vec::new(), Box::new(order), Box::new(Fixed::new(1)));
        let now = Time::ZERO;
        // Prompts of 4 and answers of 10: the tenants take turns exactly if nothing counts twice.
        for id in 0..20 {
            let request = request(id, now).with_tenant(TenantId::new(id as u32 / 10));
            dispatcher.submit(now, request).unwrap();
        }
        let turns: Vec<u32> = (0..20)
            .map(|n| {
                let sent = dispatcher.next(now).unwrap();
                // Only one of the tenants' engines tells of tokens as they come.
                if sent.tenant().get() == 0 {
                    dispatcher.served(now, sent.id(), told);
                }
                assert!(dispatcher.done(now, sent.id(), finished(10)), "{n}");
                sent.tenant().get()
            })
            .collect();
        assert_eq!(turns, [0, 1].repeat(10), "{told} told before the end");
    }
}

#[test]
fn the_drain_rate_counts_busy_time_only() {
    let mut dispatcher = fixed(1);
    for n in 0..10 {
        // A request every ten seconds, each with the engine for half of one.
        let at = Time::from_secs(10 * n);
        dispatcher.submit(at, request(n, at)).unwrap();
        let id = dispatcher.next(at).unwrap().id();
        dispatcher.done(at + Span::from_millis(500), id, finished(10));
    }
    let rate = dispatcher.pace().drain_rate().unwrap();
    assert!((rate - 2.0).abs() < 1e-9, "{rate}");
    assert_eq!(
        dispatcher.pace().service_time(),
        Some(Span::from_millis(500))
    );
}

/// Sends `requests` at twice what an engine of `slots` slots can do, each of about 100 ms. Returns the
/// rate at which requests end and the mean time that one spends in the engine.
fn overload(limit: Box<dyn Concurrency>, slots: u32, requests: u64) -> (f64, f64) {
    let admit: Vec<Box<dyn Admit>> = vec![Box::new(QueueCap::new(200))];
    let engine = SlotEngine::new(Slots {
        slots,
        prompt_token: Span::ZERO,
        ..Slots::default()
    });
    let gap = Span::from_millis(50) / u64::from(slots);
    let requests = (0..requests).map(|n| {
        // Lengths differ by up to a half, and the order of ending is not that of starting.
        let output = 8 + (n * 37 % 5) as u32;
        let prompt = vec![TokenId::new(1); 4];
        Request::new(RequestId::new(n), Time::ZERO + gap * n, prompt, output).unwrap()
    });
    let dispatcher = Dispatcher::new(admit, Box::new(Fifo), limit);
    let report = DispatcherSimulation::new(dispatcher, engine).run(&mut Arrivals::new(requests));
    let ended: Vec<_> = report.rows.iter().filter(|row| row.is_finished()).collect();
    let inside = ended.iter().map(|row| row.end.since(row.started.unwrap()));
    let inside: Span = inside.sum();
    let count = ended.len() as f64;
    (
        count / report.end.as_secs_f64(),
        inside.as_secs_f64() / count,
    )
}

#[test]
fn an_adaptive_limit_keeps_the_engine_busy_and_its_own_queue_short() {
    let slots = 8;
    let capacity = f64::from(slots) / 0.1;
    let (rate, all) = overload(Box::new(Fixed::new(1_000)), slots, 10_000);
    assert!(rate > 0.97 * capacity && all > 1.0, "{rate} {all}");
    let (half, few) = overload(Box::new(Fixed::new(4)), slots, 10_000);
    assert!(half < 0.55 * capacity && few < 0.11, "{half} {few}");

    let (rate, adapted) = overload(Box::new(Gradient::default()), slots, 10_000);
    assert!(rate > 0.95 * capacity, "{rate} of {capacity}");
    assert!(adapted < 0.25, "{adapted} s in an engine that needs 0.1");
    let said = format!(
        "{rate:.1} requests a second of {capacity:.0}, and {adapted:.2} s spent in the engine by \
         each"
    );
    quoted("gradient", &said);
    let said = format!(
        "it holds each for {all:.1} s; given four at a time it does {:.0}% of its work",
        100.0 * half / capacity,
    );
    quoted("gradient", &said);
}

#[test]
fn where_nobody_waits_the_limit_is_what_is_refused_beyond() {
    let settings = GradientSettings {
        limit_initial: 2,
        ..GradientSettings::default()
    };
    let limit = Box::new(Gradient::new(settings).unwrap());
    let admit: Vec<Box<dyn Admit>> = vec![Box::new(ConcurrencyLimit)];
    let mut dispatcher = Dispatcher::new(admit, Box::new(Fifo), limit);
    let now = Time::ZERO;
    let taken = |id| dispatcher.submit(now, request(id, now));
    let results: Vec<_> = (0..3).map(taken).collect();
    let limit = Limit::Concurrency {
        in_flight: 2,
        max: 2,
    };
    let refusal = Refusal::Later {
        limit,
        retry_after: None,
    };
    assert_eq!(results, [Ok(()), Ok(()), Err(refusal)]);

    // Failures bring the limit down, and admission follows it.
    while let Some(request) = dispatcher.next(now) {
        dispatcher.done(now, request.id(), failed());
    }
    let stats = dispatcher.stats();
    assert_eq!((stats.limit, stats.waiting, stats.running), (1, 0, 0));
    assert!(dispatcher.submit(now, request(3, now)).is_ok());
    assert!(dispatcher.submit(now, request(4, now)).is_err());
}

/// A full queue in front of an engine: the flood's newest makes room, is told that it was refused, and counts as refused.
#[test]
fn a_full_queue_displaces_the_newest_of_the_flood() {
    let admit: Vec<Box<dyn Admit>> = vec![Box::new(QueueCap::new(4))];
    let order = Box::new(FairTenants::default());
    let mut dispatcher = Dispatcher::new(admit, order, Box::new(Fixed::new(1)));
    let now = Time::ZERO;
    let of = |id, tenant| request(id, now).with_tenant(TenantId::new(tenant));
    dispatcher.submit(now, of(0, 1)).unwrap();
    assert!(dispatcher.next(now).is_some());
    let flood = (1..10).filter(|&id| dispatcher.submit(now, of(id, 1)).is_ok());
    assert_eq!(flood.count(), 4);
    dispatcher
        .submit(now, of(10, 2).with_committed(true))
        .unwrap();
    dispatcher.submit(now, of(11, 3)).unwrap();
    // Each has a place now that the first has two: the next of them waits for a slot to be free.
    assert!(dispatcher.submit(now, of(12, 3)).is_err());
    let mut displaced = Vec::new();
    while let Some(event) = dispatcher.poll_event() {
        if let EventKind::Displaced { refusal } = event.kind {
            let full = Limit::QueueDepth { waiting: 4, max: 4 };
            assert_eq!(refusal.limit(), full);
            displaced.push(event.request.get());
        }
    }
    assert_eq!(displaced, [4, 3]);
    let stats = dispatcher.stats();
    assert_eq!((stats.waiting, stats.running), (4, 1));
    assert_eq!((stats.counters.arrived, stats.counters.refused), (13, 8));
    // Two of them wait in one lane each; of those that come back, nobody is displaced.
    let next: Vec<_> = std::iter::from_fn(|| {
        dispatcher.done(now, RequestId::new(0), finished(10));
        dispatcher.next(now).map(|request| request.id().get())
    })
    .collect();
    assert_eq!(next, [10]);
}

/// Sends one request and lets the engine refuse it at 10 ms, with this hint.
fn put_back(dispatcher: &mut Dispatcher, request: Request, hint_ms: Option<u64>) -> RequestId {
    dispatcher.submit(Time::ZERO, request).unwrap();
    let id = dispatcher.next(Time::ZERO).unwrap().id();
    assert!(dispatcher.done(Time::from_millis(10), id, refused(hint_ms)));
    id
}

fn terminal_events(dispatcher: &mut Dispatcher) -> Vec<EventKind> {
    let events = std::iter::from_fn(|| dispatcher.poll_event());
    let kinds = events.map(|event| event.kind);
    kinds.filter(EventKind::is_terminal).collect()
}

#[test]
fn a_refused_request_waits_in_its_old_place_until_the_engine_wants_it() {
    let at = Time::from_millis;
    let mut dispatcher = fixed(1);
    let lines = serve_sched::journal::Lines::new();
    dispatcher.set_journal(Some(Box::new(lines.clone())));
    let first = put_back(&mut dispatcher, request(1, at(0)), Some(500));
    dispatcher.submit(at(20), request(2, at(20))).unwrap();
    assert_eq!(dispatcher.stats().waiting, 2);
    assert!(dispatcher.next(at(509)).is_none());
    assert_eq!(dispatcher.next_timeout(), Some(at(510)));
    assert_eq!(dispatcher.next(at(510)).unwrap().id(), first);
    let text = lines.text();
    assert!(
        text.contains("put back: 429, 1 times, not before 510"),
        "{text}"
    );
    assert_eq!(dispatcher.stats().counters.preempted, 1);
}

#[test]
fn one_that_leaves_makes_room_for_others_but_not_for_whom_the_engine_refused() {
    let at = Time::from_millis;
    let mut dispatcher = fixed(4);
    for id in 0..4 {
        dispatcher.submit(at(0), request(id, at(0))).unwrap();
    }
    let sent: Vec<_> = std::iter::from_fn(|| dispatcher.next(at(0))).collect();
    dispatcher.submit(at(1), request(4, at(1))).unwrap();
    dispatcher.done(at(1), sent[3].id(), refused(Some(1_000)));
    assert!(dispatcher.next(at(2)).is_none(), "it is full");
    dispatcher.done(at(3), sent[0].id(), finished(10));
    assert_eq!(dispatcher.next(at(3)).unwrap().id(), RequestId::new(4));
    assert!(dispatcher.next(at(3)).is_none(), "its hint has not passed");
    assert_eq!(dispatcher.next(at(1_001)).unwrap().id(), sent[3].id());
}

#[test]
fn who_is_put_back_keeps_its_deadline_and_can_be_cancelled() {
    let at = Time::from_millis;
    for hint in [Some(1_000), Some(u64::MAX / 2_000_000), None] {
        let late = request(1, at(0)).with_deadline(Some(at(50)));
        let mut dispatcher = fixed(1);
        put_back(&mut dispatcher, late, hint);
        assert_eq!(dispatcher.next_timeout(), Some(at(50)));
        dispatcher.handle_timeout(at(50));
        let ends = terminal_events(&mut dispatcher);
        assert!(matches!(
            ends[..],
            [EventKind::Cancelled {
                reason: CancelReason::Deadline,
                ..
            }]
        ));
        assert_eq!(dispatcher.stats().waiting, 0);

        let mut dispatcher = fixed(1);
        let id = put_back(&mut dispatcher, request(1, at(0)), hint);
        let refusal = dispatcher.submit(at(20), request(1, at(20))).unwrap_err();
        assert_eq!(refusal.limit(), Limit::DuplicateId);
        assert!(dispatcher.cancel(at(20), id, CancelReason::Client));
        assert!(!dispatcher.cancel(at(20), id, CancelReason::Client));
        assert_eq!(terminal_events(&mut dispatcher).len(), 1);

        let mut dispatcher = fixed(1);
        put_back(&mut dispatcher, request(1, at(0)), hint);
        dispatcher.drain(at(20));
        assert!(!dispatcher.is_drained());
        dispatcher.cancel_all(at(20), CancelReason::Drain);
        assert_eq!(terminal_events(&mut dispatcher).len(), 1);
        assert!(dispatcher.is_drained());
    }
}

/// With nothing under way a hint of any length would otherwise be an outage of that length.
#[test]
fn an_engine_that_asks_for_a_year_is_asked_again_after_a_minute() {
    let at = Time::from_millis;
    let year = Span::from_secs(31_536_000);
    for hint in [Some(year), Some(Span::MAX), Some(Span::from_secs(61))] {
        let cause = Arc::from("503");
        let overloaded = Outcome::Overloaded {
            cause: Arc::clone(&cause),
            retry_after: hint,
        };
        let put_back = Outcome::PutBack {
            cause,
            retry_after: hint,
        };
        for outcome in [overloaded, put_back] {
            let mut dispatcher = fixed(1);
            dispatcher.submit(at(0), request(1, at(0))).unwrap();
            dispatcher.next(at(0)).unwrap();
            dispatcher.submit(at(1), request(2, at(1))).unwrap();
            assert!(dispatcher.done(at(10), RequestId::new(1), outcome));
            assert!(dispatcher.next(at(10)).is_none());
            assert_eq!(dispatcher.next_timeout(), Some(at(60_010)));
            dispatcher.handle_timeout(at(60_010));
            assert!(dispatcher.next(at(60_010)).is_some());
        }
    }
}

#[test]
fn it_is_put_back_a_bounded_number_of_times_and_not_after_it_began() {
    for times in [0, 1, 5] {
        let mut dispatcher = fixed(1).with_put_backs_max(times);
        dispatcher
            .submit(Time::ZERO, request(1, Time::ZERO))
            .unwrap();
        let (mut now, mut sent) = (Time::ZERO, 0);
        while let Some(request) = dispatcher.next(now) {
            sent += 1;
            dispatcher.done(now, request.id(), refused(None));
            now = dispatcher.next_timeout().unwrap_or(now);
        }
        assert_eq!(sent, times + 1);
        // 100 ms, 200 ms, 400 ms ..
        assert_eq!(now, Time::from_millis(100 * ((1 << times) - 1)));
        let stats = dispatcher.stats();
        assert_eq!((stats.counters.failed, stats.waiting), (1, 0));
        assert_eq!(stats.counters.preempted, u64::from(times));
    }
    let mut dispatcher = fixed(1);
    dispatcher
        .submit(Time::ZERO, request(1, Time::ZERO))
        .unwrap();
    let id = dispatcher.next(Time::ZERO).unwrap().id();
    dispatcher.served(Time::ZERO, id, 1);
    dispatcher.done(Time::ZERO, id, refused(None));
    let ends = terminal_events(&mut dispatcher);
    assert!(matches!(ends[..], [EventKind::Failed { .. }]));
}

#[test]
fn a_queue_that_the_engine_refuses_is_not_poured_over_it() {
    let mut dispatcher = fixed(64);
    for id in 0..1_000 {
        dispatcher
            .submit(Time::ZERO, request(id, Time::ZERO))
            .unwrap();
    }
    let mut refusals = 0;
    while let Some(request) = dispatcher.next(Time::ZERO) {
        refusals += 1;
        dispatcher.done(Time::ZERO, request.id(), refused(None));
    }
    assert_eq!(refusals, 1);
}

#[test]
fn tenants_pay_once_for_what_is_put_back() {
    let mut dispatcher = Dispatcher::new(
        Vec::new(),
        Box::new(FairTenants::new(1, 1)),
        Box::new(Fixed::new(1)),
    );
    let mut now = Time::ZERO;
    for id in 0..20 {
        let tenant = TenantId::new(id as u32 % 2);
        dispatcher
            .submit(now, request(id, now).with_tenant(tenant))
            .unwrap();
    }
    // The engine refuses each request of one tenant three times before it takes it.
    let mut turns = Vec::new();
    let mut refusals = BTreeMap::new();
    while dispatcher.stats().waiting > 0 {
        now = dispatcher.next_timeout().unwrap_or(now).max(now);
        let Some(sent) = dispatcher.next(now) else {
            continue;
        };
        let times = refusals.entry(sent.id()).or_insert(0);
        if sent.tenant().get() == 0 && *times < 3 {
            *times += 1;
            dispatcher.done(now, sent.id(), refused(Some(1)));
            continue;
        }
        turns.push(sent.tenant().get());
        dispatcher.done(now, sent.id(), finished(10));
    }
    let of_0 = turns[..10].iter().filter(|&&tenant| tenant == 0).count();
    assert!((4..=6).contains(&of_0), "{turns:?}");
}

#[test]
fn a_deadline_is_forgotten_with_its_request() {
    let at = Time::from_millis;
    let mut dispatcher = fixed(1);
    let due = |id| request(id, at(0)).with_deadline(Some(at(100)));
    type End = fn(&mut Dispatcher, RequestId);
    let ends: [End; 4] = [
        |dispatcher, id| assert!(dispatcher.cancel(Time::from_millis(1), id, CancelReason::Client)),
        |dispatcher, id| assert!(dispatcher.done(Time::from_millis(1), id, finished(1))),
        |dispatcher, id| assert!(dispatcher.done(Time::from_millis(1), id, mistake())),
        |dispatcher, id| assert!(dispatcher.done(Time::from_millis(1), id, refused(None))),
    ];
    for (n, end) in ends.into_iter().enumerate() {
        let id = RequestId::new(n as u64);
        dispatcher.submit(at(0), due(n as u64)).unwrap();
        dispatcher.next(at(0)).unwrap();
        end(&mut dispatcher, id);
        if n == 3 {
            assert!(
                dispatcher.cancel(at(1), id, CancelReason::Client),
                "it waits"
            );
        } else {
            assert_eq!(
                dispatcher.next_timeout(),
                None,
                "{n}: nothing to wake up for"
            );
            dispatcher.done(at(1), id, finished(1));
        }
        // The same id again, without a deadline: it lives past the old one.
        dispatcher.submit(at(1), request(n as u64, at(1))).unwrap();
        assert!(
            dispatcher.next_timeout().is_none_or(|wake| wake > at(100)),
            "{n}"
        );
        dispatcher.handle_timeout(at(101));
        assert_eq!(dispatcher.stats().waiting, 1, "{n}");
        assert!(dispatcher.cancel(at(101), id, CancelReason::Client));
        dispatcher = fixed(1);
    }
}
