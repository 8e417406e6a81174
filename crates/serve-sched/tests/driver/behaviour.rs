//! One thing at a time, on one thread.

use std::sync::{Arc, Mutex};

use serve_core::{EventKind, Limit, Refusal, Span, Time};
use serve_sched::Scheduler;
use serve_sched::driver::{EngineThread, Hooks, NotTaken, Runner, Ticket, TicketOutlet, Turn};

use crate::hand::{Device, Fault, HandClock, Owner, POISON, scheduler};
use crate::{assert_all_ended, request};

struct Stepped {
    clock: Arc<HandClock>,
    owner: Owner,
    engine: EngineThread,
    runner: Runner<Device, TicketOutlet, Owner>,
}

fn stepped(rebuilds: u32) -> Stepped {
    let (clock, owner) = (Arc::new(HandClock::default()), Owner::default());
    *owner.rebuilds_left.lock().unwrap() = rebuilds;
    let device = Device::new(&owner.fault);
    let (engine, runner) =
        EngineThread::new(scheduler(), device, Arc::clone(&clock) as _, owner.clone());
    Stepped {
        clock,
        owner,
        engine,
        runner,
    }
}

impl Stepped {
    /// Takes turns until there is nothing to do; how many.
    fn settle(&mut self) -> u32 {
        for turns in 1..1_000 {
            match self.runner.turn() {
                Turn::Sleep(until) | Turn::Wait(Some(until)) => {
                    self.clock
                        .advance(until.since(serve_sched::driver::Clock::now(&*self.clock)));
                }
                Turn::Wait(None) | Turn::Over => return turns,
            }
        }
        panic!("it does not settle");
    }
}

fn stopped_because(ticket: Ticket) -> String {
    let last = ticket.last().unwrap();
    last.unwrap_err().cause.to_string()
}

#[test]
fn a_panic_is_told_to_each_with_its_message_and_another_engine_goes_on() {
    let mut world = stepped(2);
    let tickets = [1, 2].map(|id| world.engine.submit(request(id, Time::ZERO, 4, 3)).unwrap());
    *world.owner.fault.lock().unwrap() = Some(Fault::Panic);
    world.settle();
    for ticket in tickets {
        let cause = stopped_because(ticket);
        assert_eq!(cause, "it panicked: the device has caught fire");
    }
    let ticket = world.engine.submit(request(3, Time::ZERO, 4, 3)).unwrap();
    world.settle();
    assert_eq!(
        ticket.map(Result::unwrap).count(),
        5,
        "started, three tokens, finished"
    );
    let stats = world.engine.scheduler().stats();
    assert_all_ended(&stats);
    assert_eq!((stats.counters.failed, stats.counters.finished), (2, 1));
}

#[test]
fn without_another_engine_nothing_is_taken_any_more() {
    for rebuilds in [0, 1] {
        let mut world = stepped(rebuilds);
        let ticket = world
            .engine
            .submit(request(1, Time::ZERO, POISON, 3))
            .unwrap();
        assert_eq!(world.runner.turn(), Turn::Over);
        assert!(stopped_because(ticket).contains("panicked"));
        drop(world.runner);
        let late = world.engine.submit(request(2, Time::ZERO, 4, 3)).err();
        assert_eq!(late, Some(NotTaken::Stopped));
        let stats = world.engine.scheduler().stats();
        assert_all_ended(&stats);
        assert_eq!(stats.counters.failed, 2);
    }
}

/// An owner that is asked for a request while it builds.
struct Asked(Arc<Mutex<Option<Arc<EngineThread>>>>, Vec<Option<NotTaken>>);

impl Hooks<Device> for Asked {
    fn lost(&mut self, _: &serve_sched::driver::Stopped) -> bool {
        true
    }

    fn rebuild(&mut self) -> Option<(Scheduler, Device)> {
        self.ask(8);
        assert_eq!(self.1, [Some(NotTaken::Rebuilding)]);
        Some((scheduler(), Device::new(&Arc::default())))
    }

    fn rebuilt(&mut self) {
        self.ask(9);
        assert_eq!(self.1[1], None);
    }
}

impl Asked {
    fn ask(&mut self, id: u64) {
        let engine = self.0.lock().unwrap().clone().unwrap();
        self.1
            .push(engine.submit(request(id, Time::ZERO, 1, 1)).err());
    }
}

#[test]
fn while_another_engine_is_built_requests_are_told_so() {
    let fault = Arc::new(Mutex::new(Some(Fault::Panic)));
    let handle = Arc::default();
    let hooks = Asked(Arc::clone(&handle), Vec::new());
    let clock = Arc::new(HandClock::default());
    let (engine, mut runner) = EngineThread::new(scheduler(), Device::new(&fault), clock, hooks);
    let engine = Arc::new(engine);
    *handle.lock().unwrap() = Some(Arc::clone(&engine));
    let _first = engine.submit(request(1, Time::ZERO, 1, 1)).unwrap();
    assert!(matches!(runner.turn(), Turn::Wait(Some(_))));
    // The one that was taken then was dropped, and so was cancelled.
    let counters = engine.scheduler().stats().counters;
    assert_eq!((counters.failed, counters.cancelled), (1, 1));
    assert_eq!(runner.turn(), Turn::Wait(None));
}

#[test]
fn a_ticket_that_has_ended_cancels_no_request_that_has_its_id_now() {
    let mut world = stepped(0);
    let old = world
        .engine
        .submit_to(request(1, Time::ZERO, 4, 1), drop)
        .unwrap();
    world.settle();
    let new = world.engine.submit(request(1, Time::ZERO, 4, 1)).unwrap();
    drop(old);
    world.settle();
    let last = new.map(Result::unwrap).last().unwrap();
    assert!(matches!(last.kind, EventKind::Finished { .. }));
    assert_eq!(world.engine.scheduler().stats().counters.cancelled, 0);
}

#[test]
fn a_request_that_is_refused_leaves_the_one_with_its_id_alone() {
    let mut world = stepped(0);
    let first = world.engine.submit(request(1, Time::ZERO, 4, 1)).unwrap();
    let limit = Limit::DuplicateId;
    let second = world.engine.submit(request(1, Time::ZERO, 4, 1)).err();
    assert_eq!(second, Some(NotTaken::Refused(Refusal::Never { limit })));
    world.settle();
    assert_eq!(first.map(Result::unwrap).count(), 3);
}

#[test]
fn a_request_that_makes_room_hears_of_it_while_the_device_runs() {
    let mut world = stepped(0);
    let running = [1, 2, 3].map(|id| world.engine.submit(request(id, Time::ZERO, 4, 9)).unwrap());
    assert!(matches!(world.runner.turn(), Turn::Sleep(_)));
    let low = |id| request(id, Time::ZERO, 4, 1).with_class(serve_core::Class::new(1));
    let waiting = [4, 5, 6, 7].map(|id| world.engine.submit(low(id)).unwrap());
    let _high = world.engine.submit(request(8, Time::ZERO, 4, 1)).unwrap();
    let [_, _, _, mut last] = waiting;
    let word = last.next().unwrap().unwrap();
    assert!(matches!(word.kind, EventKind::Displaced { .. }));
    drop(running);
}

#[test]
fn a_drain_cuts_off_what_is_left_at_its_end_and_then_waits_for_nothing() {
    let mut world = stepped(0);
    let tickets = [1, 2].map(|id| {
        world
            .engine
            .submit(request(id, Time::ZERO, 4, id as u32 * 8))
            .unwrap()
    });
    // The prompts take 18 ms, each further token 10.
    world
        .engine
        .scheduler()
        .drain(Some(Time::ZERO + Span::from_millis(120)));
    let refused = world.engine.submit(request(3, Time::ZERO, 4, 1)).err();
    assert!(matches!(
        refused,
        Some(NotTaken::Refused(Refusal::Later { .. }))
    ));
    world.settle();
    let ends = tickets.map(|ticket| ticket.map(Result::unwrap).last().unwrap().kind);
    assert!(matches!(ends[0], EventKind::Finished { .. }));
    assert!(
        matches!(ends[1], EventKind::Cancelled { usage, .. } if usage.output_tokens == 12),
        "{ends:?}"
    );
    assert_eq!(world.settle(), 1, "it asks for turns");
}

#[test]
fn what_a_listener_holds_may_be_its_own_guard() {
    let mut world = stepped(0);
    let own = Arc::new(Mutex::new(None));
    let held = Arc::clone(&own);
    let sink = move |_| drop(held.lock());
    let guard = world
        .engine
        .submit_to(request(1, Time::ZERO, 4, 1), sink)
        .unwrap();
    *own.lock().unwrap() = Some(guard);
    drop(own);
    world.settle();
    assert_all_ended(&world.engine.scheduler().stats());
}

#[test]
fn time_without_progress_counts_from_the_last_step_and_only_while_there_is_work() {
    let mut world = stepped(0);
    let without = |world: &Stepped| world.engine.scheduler().without_progress();
    world.clock.advance(Span::from_millis(50));
    assert_eq!(without(&world), Span::ZERO);
    let _ticket = world.engine.submit(request(1, Time::ZERO, 4, 9)).unwrap();
    world.clock.advance(Span::from_millis(20));
    assert_eq!(without(&world), Span::from_millis(20));
    world.runner.turn();
    world.runner.turn();
    assert_eq!(without(&world), Span::ZERO);
}
