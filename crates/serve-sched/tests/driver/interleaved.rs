//! Any order of requests, drops, drains, faults of the device, of a policy and of a listener, and time
//! that passes: one thread takes the engine's turns, and only when the engine has asked for one.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use proptest::prelude::*;
use serve_core::{CancelReason, Class, EventKind, RequestId, Span, Time};
use serve_sched::driver::{
    Clock, EngineThread, Guard, NotTaken, Runner, Ticket, TicketOutlet, Turn, Word,
};

use crate::hand::{Device, Fault, HandClock, Owner, POISON, panic_silently, scheduler};
use crate::{assert_all_ended, assert_conserved, request};

#[derive(Clone, Copy, Debug)]
enum Op {
    Submit {
        prompt: u32,
        output: u32,
        class: u8,
        deadline_ms: Option<u64>,
        listener: Listener,
        /// Asks with an id that has been used.
        again: bool,
    },
    /// Drops one of the requests that are held.
    Drop(usize),
    /// Cancels one that has been asked, behind its listener's back.
    Cancel(u64),
    CancelAll,
    Drain(u64),
    Fault(Fault),
    Advance(u64),
    Close,
}

#[derive(Clone, Copy, Debug)]
enum Listener {
    Ticket,
    Function,
    /// Panics at its n-th word.
    Panicking(usize),
}

fn op() -> impl Strategy<Value = Op> {
    let listener = prop_oneof![
        3 => Just(Listener::Ticket),
        3 => Just(Listener::Function),
        1 => (0..4_usize).prop_map(Listener::Panicking),
    ];
    let prompt = prop_oneof![30 => 1..12_u32, 1 => Just(POISON), 1 => Just(80_u32)];
    let deadline = proptest::option::weighted(0.2, 0..60_u64);
    let again = proptest::bool::weighted(0.1);
    let submit = (prompt, 1..6_u32, 0..2_u8, deadline, listener, again);
    let submit =
        submit.prop_map(
            |(prompt, output, class, deadline_ms, listener, again)| Op::Submit {
                prompt,
                output,
                class,
                deadline_ms,
                listener,
                again,
            },
        );
    let fault = prop_oneof![Just(Fault::Step), Just(Fault::Lost), Just(Fault::Panic)];
    prop_oneof![
        40 => submit,
        15 => (0..8_usize).prop_map(Op::Drop),
        5 => (0..20_u64).prop_map(Op::Cancel),
        1 => Just(Op::CancelAll),
        1 => (0..100_u64).prop_map(Op::Drain),
        6 => fault.prop_map(Op::Fault),
        30 => (0..25_u64).prop_map(Op::Advance),
        1 => Just(Op::Close),
    ]
}

/// How a request has ended, as it was told.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum End {
    Finished,
    Refused,
    Cancelled,
    Failed,
    /// Its listener panicked before.
    Unheard,
}

/// How a request has ended of which this was heard.
fn end_of(words: &[Word]) -> Option<End> {
    let (mut end, mut tokens) = (None, 0);
    for word in words {
        assert_eq!(end, None, "{word:?} after the end");
        end = match word.as_ref().map(|event| &event.kind) {
            Ok(EventKind::Started) => None,
            Ok(EventKind::Token { index, .. }) => {
                assert_eq!(*index, tokens);
                tokens += 1;
                None
            }
            Ok(EventKind::Finished { usage, .. }) => {
                assert_eq!(usage.output_tokens, tokens);
                Some(End::Finished)
            }
            Ok(EventKind::Cancelled { .. }) => Some(End::Cancelled),
            Ok(EventKind::Displaced { .. }) => Some(End::Refused),
            Ok(EventKind::Failed { .. }) | Err(_) => Some(End::Failed),
        };
    }
    end
}

/// What a function was told, and after how many words it panicked.
#[derive(Default)]
struct Heard {
    words: Mutex<Vec<Word>>,
    panics_at: Option<usize>,
}

impl Heard {
    fn hear(&self, word: Word) {
        let mut words = self.words.lock().unwrap();
        words.push(word);
        let panics = self.panics_at.is_some_and(|at| words.len() > at);
        drop(words);
        if panics {
            panic_silently("nobody listens");
        }
    }

    fn end(&self) -> Option<End> {
        let words = self.words.lock().unwrap();
        let end = end_of(&words);
        match self.panics_at {
            Some(at) if end.is_none() && words.len() == at + 1 => Some(End::Unheard),
            Some(at) => {
                assert!(words.len() <= at + 1, "{words:?}");
                end
            }
            None => end,
        }
    }
}

enum Held {
    Ticket(Ticket),
    Guard(Guard),
}

struct World {
    clock: Arc<HandClock>,
    owner: Owner,
    engine: EngineThread,
    /// None when the loop is over.
    runner: Option<Runner<Device, TicketOutlet, Owner>>,
    /// What the engine waits for.
    turn: Turn,
    next_id: u64,
    held: Vec<Held>,
    heard: Vec<Arc<Heard>>,
    ends: BTreeMap<End, u64>,
    /// Tickets that were dropped before their end was looked at.
    unread: u64,
}

impl World {
    fn new(rebuilds: u32) -> Self {
        let clock = Arc::new(HandClock::default());
        let owner = Owner::default();
        *owner.rebuilds_left.lock().unwrap() = rebuilds;
        let device = Device::new(&owner.fault);
        let (engine, runner) =
            EngineThread::new(scheduler(), device, Arc::clone(&clock) as _, owner.clone());
        Self {
            clock,
            owner,
            engine,
            runner: Some(runner),
            turn: Turn::Wait(Some(Time::ZERO)),
            next_id: 0,
            held: Vec::new(),
            heard: Vec::new(),
            ends: BTreeMap::new(),
            unread: 0,
        }
    }

    fn end(&mut self, end: End) {
        *self.ends.entry(end).or_default() += 1;
    }

    /// Takes the turns that the engine has asked for.
    fn go_on(&mut self) {
        for _ in 0..1_000 {
            let now = self.clock.now();
            let due = match self.turn {
                Turn::Sleep(until) => now >= until,
                Turn::Wait(until) => {
                    self.clock.take_woken() || until.is_some_and(|until| now >= until)
                }
                Turn::Over => false,
            };
            if !due {
                return;
            }
            self.turn = self.runner.as_mut().map_or(Turn::Over, Runner::turn);
            if self.turn == Turn::Over {
                self.runner = None;
            }
            assert_conserved(&self.engine.scheduler().stats());
        }
        panic!("it does not stand still: {:?}", self.turn);
    }

    fn act(&mut self, op: Op) {
        match op {
            Op::Submit { .. } => self.submit(op),
            Op::Drop(_) if self.held.is_empty() => {}
            Op::Drop(index) => match self.held.swap_remove(index % self.held.len()) {
                Held::Ticket(ticket) => {
                    self.unread += 1;
                    drop(ticket);
                }
                Held::Guard(guard) => drop(guard),
            },
            Op::Cancel(id) => {
                let id = RequestId::new(id);
                self.engine.scheduler().cancel(id, CancelReason::Client);
            }
            Op::CancelAll => self.engine.scheduler().cancel_all(CancelReason::Drain),
            Op::Drain(ms) => {
                let until = self.clock.now() + Span::from_millis(ms);
                self.engine.scheduler().drain(Some(until));
            }
            Op::Fault(fault) => *self.owner.fault.lock().unwrap() = Some(fault),
            Op::Advance(ms) => self.clock.advance(Span::from_millis(ms)),
            Op::Close => self.engine.scheduler().close(),
        }
        assert_conserved(&self.engine.scheduler().stats());
    }

    fn submit(&mut self, op: Op) {
        let Op::Submit {
            prompt,
            output,
            class,
            deadline_ms,
            listener,
            again,
        } = op
        else {
            return;
        };
        let now = self.clock.now();
        let id = self.next_id - u64::from(again && self.next_id > 0);
        self.next_id = id + 1;
        let deadline = deadline_ms.map(|ms| now + Span::from_millis(ms));
        let request = request(id, now, prompt, output)
            .with_class(Class::new(class))
            .with_deadline(deadline);
        let heard = Arc::new(Heard {
            panics_at: match listener {
                Listener::Panicking(at) => Some(at),
                Listener::Ticket | Listener::Function => None,
            },
            ..Heard::default()
        });
        let taken = match listener {
            Listener::Ticket => self.engine.submit(request).map(Held::Ticket),
            Listener::Function | Listener::Panicking(_) => {
                let heard = Arc::clone(&heard);
                let sink = move |word| heard.hear(word);
                self.engine.submit_to(request, sink).map(Held::Guard)
            }
        };
        match taken {
            Ok(held) => {
                if let Held::Guard(_) = held {
                    self.heard.push(heard);
                }
                self.held.push(held);
            }
            Err(NotTaken::Refused(_)) => self.end(End::Refused),
            Err(NotTaken::Stopped) => self.end(End::Failed),
            // After a panic of the policy, until the next turn; it counts for nothing.
            Err(NotTaken::Rebuilding) => {}
        }
    }

    /// Time passes until nobody is live any more, then everything is compared.
    fn finish(mut self) {
        // Only what the engine has asked for: an input that did not wake it would never be seen to.
        self.go_on();
        while let Turn::Sleep(until) | Turn::Wait(Some(until)) = self.turn {
            self.clock.advance(until.since(self.clock.now()));
            self.go_on();
        }
        let stats = self.engine.scheduler().stats();
        assert_all_ended(&stats);
        for heard in std::mem::take(&mut self.heard) {
            self.end(heard.end().expect("a request without an end"));
        }
        for held in std::mem::take(&mut self.held) {
            if let Held::Ticket(ticket) = held {
                let words: Vec<_> = ticket.collect();
                self.end(end_of(&words).expect("a ticket without an end"));
            }
        }
        assert_eq!(
            self.engine.scheduler().stats(),
            stats,
            "a dropped ticket has changed something"
        );
        let counters = stats.counters;
        let told = |end| self.ends.get(&end).copied().unwrap_or(0);
        let known = [
            (told(End::Finished), counters.finished),
            (told(End::Refused), counters.refused),
            (told(End::Cancelled), counters.cancelled),
            (told(End::Failed), counters.failed),
        ];
        let unknown = known.map(|(told, counted)| counted.checked_sub(told).expect("counted"));
        assert_eq!(
            unknown.iter().sum::<u64>(),
            told(End::Unheard) + self.unread,
            "{known:?}"
        );
        let seen = self.owner.seen.lock().unwrap();
        let burnt = seen.losses.iter().filter(|why| why.cause.contains("fire"));
        let ran = seen.steps + seen.steps_failed + burnt.count() as u64;
        assert_eq!(ran, counters.steps, "{seen:?}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1_000, ..ProptestConfig::default() })]

    #[test]
    fn each_request_ends_once_whatever_happens(
        ops in proptest::collection::vec((op(), any::<bool>()), 1..60),
        rebuilds in 0..4_u32,
    ) {
        let mut world = World::new(rebuilds);
        for (op, turns) in ops {
            world.act(op);
            if turns {
                world.go_on();
            }
        }
        world.finish();
    }
}
