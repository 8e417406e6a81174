//! What a policy may know of the moment: who is ahead, what the engine has for them, and what follows of it.
//!
//! One model serves every policy. Requests ask for slots and KV blocks, each for so many steps, and for step tokens;
//! what there is least of sets the pace, whichever that is at the moment:
//!
//! ```text
//! steps = max over {slots, blocks, step tokens} of what is ahead / what there is
//! wait  = factor x (steps x time of a step without prompts + prompt tokens ahead x time of a prompt token)
//! ```
//!
//! What is ahead is what those who wait ask for and what those who run have left. The times are measured, and so
//! is for how many steps a slot is held for each step's worth of tokens, which takes in what is run again after a
//! preemption, and prompts found in the prefix cache. The *factor* is the 99th percentile of actual over predicted
//! waits, as under overload everybody is admitted exactly at what is predicted to be in time.

use serve_core::{Class, Request, RequestId, Span, Time};

use crate::Pace;
use crate::demand::{Demand, Underway};
use crate::lengths::Lengths;
use crate::pace::{Ahead, Capacity, Lacking, Queued};

/// What a policy may know of the moment.
#[derive(Clone, Copy)]
pub struct Load<'a> {
    /// The time.
    pub now: Time,
    /// Requests waiting.
    pub waiting: u32,
    /// Requests started and not ended.
    pub running: u32,
    /// Requests that can run side by side at most.
    pub slots: u32,
    /// Whether a waiting request may join what runs; not in a static batch.
    pub joinable: bool,
    /// How fast the engine has been.
    pub pace: &'a Pace,
    /// What the requests that wait and go before the one that is asked about will occupy.
    pub ahead: Demand,
    /// What the request that is asked about is expected to occupy.
    pub own: Demand,
    /// Whose waits tell by how much its own will be longer than predicted.
    pub(crate) queued: Queued,
    pub(crate) lengths: &'a dyn Lengths,
    pub(crate) room: Room,
    /// When each running request started, the longest-running first.
    pub(crate) started: &'a [(Time, RequestId)],
    pub(crate) underway: Underway,
    pub(crate) waiting_by_class: &'a [u32],
    /// How often the policy that is asked has said *later* since a request last ended.
    pub(crate) refused: u32,
    /// Positions in a block of the KV cache; 1 where the engine's blocks are not known.
    pub block_size: u32,
}

/// What the engine has beside slots, as of its last plan.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Room {
    /// Blocks of which those who wait can be given some; 0 where blocks are not counted.
    pub(crate) blocks: u32,
    /// Of those, how many could be given now.
    pub(crate) available: u32,
    /// Tokens that a step can run.
    pub(crate) step_tokens: u32,
    /// Prompt tokens that those who run will have left when the step in flight has run.
    pub(crate) prompt_tokens: u64,
    /// What the next in line was lacking; `None` if nobody was left waiting.
    pub(crate) lacking: Option<Lacking>,
}

impl<'a> Load<'a> {
    /// The load of an idle engine at the origin of time, to start from in a test of a policy.
    pub fn idle(slots: u32, pace: &'a Pace) -> Self {
        const NOTHING: &crate::lengths::SeenLengths = &crate::lengths::SeenLengths::new();
        Self {
            now: Time::ZERO,
            waiting: 0,
            running: 0,
            slots,
            joinable: true,
            pace,
            ahead: Demand::default(),
            own: Demand::default(),
            queued: Queued::default(),
            lengths: NOTHING,
            room: Room::default(),
            started: &[],
            underway: Underway::default(),
            waiting_by_class: &[],
            refused: 0,
            block_size: 1,
        }
    }

    /// Requests of `class` waiting.
    pub fn waiting_of(&self, class: Class) -> u32 {
        let rank = usize::from(class.rank());
        self.waiting_by_class.get(rank).copied().unwrap_or(0)
    }

    /// Requests that can start as soon as the engine looks, those that wait included. None while the next in
    /// line lacks something, be it a slot or memory.
    pub fn slots_free(&self) -> u32 {
        let free = match self.is_crowded() {
            true => 0,
            false => self.open_slots(),
        };
        let free = match self.own.prompt_blocks {
            0 => free,
            own if self.room.blocks > 0 && self.running > 0 => {
                free.min((u64::from(self.room.available) / own) as u32)
            }
            _ => free,
        };
        // A prompt starts as soon as there is one token of a step for it.
        match self.tokens_free() {
            Some(tokens) => {
                let prompts = tokens.div_ceil(self.own.prompt_tokens.max(1));
                free.min(u32::try_from(prompts).unwrap_or(u32::MAX))
            }
            None => free,
        }
    }

    /// Requests that wait for others to end: those beyond the free slots. A burst that comes to an
    /// idle engine all at once is not yet a queue.
    pub fn queued(&self) -> u32 {
        self.waiting.saturating_sub(self.slots_free())
    }

    /// How long the engine takes to end `requests`, from the measured drain rate; `None` while no
    /// request has ended yet.
    pub fn time_to_drain(&self, requests: u32) -> Option<Span> {
        let rate = self.pace.drain_rate()?;
        Some(Span::from_secs_f64(f64::from(requests) / rate))
    }

    /// When to come back, for a refusal: `first` for the first that a policy refuses after a request
    /// has ended, and one departure later for each that it has refused since. So those that come
    /// back when they were told find room one by one, and not all the room of one.
    ///
    /// A departure takes [what the engine takes to end one](Self::time_to_drain).
    pub fn retry_after(&self, first: Option<Span>) -> Option<Span> {
        let turn = self.time_to_drain(self.refused);
        first.map(|first| first + turn.unwrap_or_default())
    }

    /// How long a request that comes now waits until it starts, behind those that are
    /// [`ahead`](Self::ahead): 99 of 100 wait no longer. `None` while nothing is measured to tell it from.
    ///
    /// In tiers a request waits for its own class and those above it, among fair tenants for what is served
    /// while its tenant catches up. Those who come later and overtake it are known as far as they have made
    /// waits longer than predicted before.
    ///
    /// In a static batch, which nobody joins, and before an engine that does not run in steps, it is instead
    /// the time that whole rounds of `slots` requests take, and what the one that makes room has left.
    pub fn time_to_start(&self) -> Option<Span> {
        let plain = self.plain_wait()?.as_secs_f64();
        Some(Span::from_secs_f64(
            plain * self.pace.wait_factor(self.queued),
        ))
    }

    /// How long this request takes from its start to its end, by its prompt and the tokens that are expected
    /// of it: 99 of 100 that use as many take no longer. `None` while that is not known.
    pub fn time_to_serve(&self) -> Option<Span> {
        let usual = self.usual_time_to_serve()?.as_secs_f64();
        Some(Span::from_secs_f64(usual * self.pace.service_factor()))
    }

    /// The same in the mean.
    pub fn usual_time_to_serve(&self) -> Option<Span> {
        let (prompt, output) = (self.own.prompt_tokens, self.own.output_tokens);
        let secs = self.pace.service_secs(prompt, output, &self.capacity());
        let secs = secs.map(Span::from_secs_f64);
        secs.or_else(|| self.pace.service_time())
    }

    /// How long this request takes from its start to its first token; `None` while that is not known.
    pub fn time_to_first_token(&self) -> Option<Span> {
        let capacity = self.capacity();
        let secs = self
            .pace
            .first_token_secs(self.own.prompt_tokens, &capacity);
        secs.map(Span::from_secs_f64)
    }

    /// The chance, from 0 to 1, that a request which has generated `done` tokens, and has what
    /// [`own`](Self::own) says of its prompt left, ends within `time` of its start; 1 while nothing is known.
    pub fn chance_to_end(&self, request: &Request, done: u32, time: Span) -> f64 {
        let (prompt, capacity) = (self.own.prompt_tokens, self.capacity());
        let prompt = self.pace.service_secs(prompt, 0, &capacity);
        let step = self.pace.service_secs(0, 1, &capacity);
        let (Some(prompt), Some(step)) = (prompt, step) else {
            return 1.0;
        };
        let tokens = (time.as_secs_f64() - prompt) / step.max(1e-9);
        match tokens < 1.0 {
            true => 0.0,
            false => self.lengths.chance(request, done, tokens as u32),
        }
    }

    /// The wait as the law has it, by which predictions are held against what came of them.
    pub(crate) fn plain_wait(&self) -> Option<Span> {
        if self.starts_at_once() {
            return Some(Span::ZERO);
        }
        if !self.joinable || !self.pace.knows_steps() {
            return self.rounds();
        }
        let ahead = Ahead {
            others: self.ahead,
            own: self.own,
        };
        let capacity = self.capacity();
        let secs = self.pace.wait_secs(&ahead, &self.underway, &capacity)?;
        Some(Span::from_secs_f64(secs))
    }

    /// What there is of everything.
    pub(crate) fn capacity(&self) -> Capacity {
        Capacity {
            slots: self.slots,
            blocks: self.room.blocks,
            step_tokens: self.room.step_tokens,
        }
    }

    /// Whether the engine, when it last looked, left somebody waiting who still waits.
    fn is_crowded(&self) -> bool {
        self.joinable && self.waiting > 0 && self.room.lacking.is_some()
    }

    /// Tokens of the next step for prompts that wait; `None` where a step runs any number.
    fn tokens_free(&self) -> Option<u64> {
        let all = u64::from(self.room.step_tokens);
        let taken = self.room.prompt_tokens + u64::from(self.running);
        (all > 0).then(|| all.saturating_sub(taken))
    }

    /// Slots that nobody has, and that may be taken now.
    fn open_slots(&self) -> u32 {
        match self.joinable || self.running == 0 {
            true => self.slots.saturating_sub(self.running),
            false => 0,
        }
    }

    fn starts_at_once(&self) -> bool {
        let blocks = self.ahead.prompt_blocks + self.own.prompt_blocks;
        // One that runs alone is given blocks that others must leave free.
        let alone = self.running == 0 && self.ahead.requests == 0;
        let fits = self.room.blocks == 0 || alone || blocks <= u64::from(self.room.available);
        let tokens = self.tokens_free();
        let prompts = tokens.is_none_or(|tokens| self.ahead.prompt_tokens < tokens);
        let slot = self.ahead.requests < u64::from(self.open_slots());
        !self.is_crowded() && fits && prompts && slot
    }

    /// `floor(k / n)` rounds of the mean service time for `k` requests ahead on `n` slots, and what the
    /// `(k mod n)`-th of those that run has left.
    fn rounds(&self) -> Option<Span> {
        let (ahead, free) = (self.ahead.requests, u64::from(self.open_slots()));
        if ahead < free {
            return Some(Span::ZERO);
        }
        let (ahead, slots) = (ahead - free, u64::from(self.slots.max(1)));
        let service = self.pace.service_time()?;
        Some(service * (ahead / slots) + self.left_of_running((ahead % slots) as usize, service))
    }

    /// What the `index`-th of the running requests has left, the longest-running first.
    fn left_of_running(&self, index: usize, service: Span) -> Span {
        let last = self.started.last();
        let since = match self.started.get(index) {
            Some(&(started, _)) => started,
            // A slot that is free now starts its next request now; a static batch ends as one.
            None if self.joinable => self.now,
            None => last.map_or(self.now, |&(started, _)| started),
        };
        service.saturating_sub(self.now.since(since))
    }
}

impl std::fmt::Debug for Load<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Load")
            .field("now", &self.now)
            .field("waiting", &self.waiting)
            .field("running", &self.running)
            .field("slots", &self.slots)
            .field("ahead", &self.ahead)
            .field("own", &self.own)
            .field("room", &self.room)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::lengths::Expected;
    use crate::pace::StepDone;

    /// Steps of 10 ms and 1 ms for each prompt token.
    pub(crate) fn steps_of_ten_ms() -> Pace {
        let mut pace = Pace::default();
        for n in 0..2_000 {
            // Prompts now and then, and none of late.
            let prefill_tokens = if n % 250 == 0 { 100 } else { 0 };
            pace.waited(Queued::default(), Span::from_secs(1), Span::from_secs(1));
            pace.stepped(&StepDone {
                running: 1,
                prefill_tokens,
                prompt_tokens: prefill_tokens.into(),
                step_tokens: 100_000,
                output_tokens: 1,
                elapsed: Span::from_millis(10 + u64::from(prefill_tokens)),
                ..StepDone::default()
            });
        }
        pace
    }

    /// An engine whose `slots` are all taken and have left somebody waiting.
    pub(crate) fn crowded(pace: &Pace, slots: u32) -> Load<'_> {
        Load {
            waiting: 1,
            running: slots,
            room: Room {
                lacking: Some(Lacking::Slots),
                step_tokens: 100_000,
                ..Room::default()
            },
            ..Load::idle(slots, pace)
        }
    }

    /// An engine without steps that takes so long for a request.
    pub(crate) fn rounds_of(service: Span) -> Pace {
        let mut pace = Pace::default();
        pace.served(service, 0, 0, &Capacity::default());
        pace
    }

    /// The same load with so many requests waiting ahead.
    pub(crate) fn waiting(ahead: u32, load: Load<'_>) -> Load<'_> {
        Load {
            waiting: ahead,
            ahead: Demand {
                requests: ahead.into(),
                ..Demand::default()
            },
            ..load
        }
    }

    /// Two slots in rounds, each taking 100 ms for a request; the time is 1,000 ms.
    fn wait_ms(ahead: u32, started_ms: &[u64], joinable: bool) -> Option<u64> {
        let pace = rounds_of(Span::from_millis(100));
        let started: Vec<_> = started_ms
            .iter()
            .map(|&at| (Time::from_millis(at), RequestId::new(at)))
            .collect();
        let load = Load {
            now: Time::from_millis(1_000),
            running: started.len() as u32,
            started: &started,
            joinable,
            ..waiting(ahead, Load::idle(2, &pace))
        };
        load.time_to_start().map(Span::as_millis)
    }

    #[test]
    fn a_free_slot_is_no_wait() {
        assert_eq!(wait_ms(0, &[], true), Some(0));
        assert_eq!(wait_ms(1, &[], true), Some(0));
        assert_eq!(wait_ms(0, &[930], true), Some(0));
        assert_eq!(wait_ms(1, &[930], true), Some(30));
    }

    #[test]
    fn slots_that_are_joined_at_any_time_end_one_by_one() {
        assert_eq!(wait_ms(0, &[930, 980], true), Some(30));
        assert_eq!(wait_ms(1, &[930, 980], true), Some(80));
        assert_eq!(wait_ms(2, &[930, 980], true), Some(130));
        assert_eq!(wait_ms(0, &[800, 980], true), Some(0), "it is overdue");
    }

    #[test]
    fn a_batch_that_nobody_joins_ends_as_one() {
        assert_eq!(wait_ms(0, &[930, 930], false), Some(30));
        assert_eq!(
            wait_ms(1, &[930], false),
            Some(30),
            "the free slot is not to be had"
        );
        assert_eq!(wait_ms(2, &[930, 930], false), Some(130));
        assert_eq!(wait_ms(1, &[], false), Some(0));
    }

    #[test]
    fn nothing_measured_is_nothing_predicted() {
        let pace = Pace::default();
        let load = Load::idle(1, &pace);
        assert_eq!(load.time_to_start(), Some(Span::ZERO));
        let ahead = Demand::of(1, Expected::certain(1), 16);
        assert_eq!(Load { ahead, ..load }.time_to_start(), None);
    }

    #[test]
    fn memory_that_is_taken_leaves_no_slot_free() {
        let pace = steps_of_ten_ms();
        let load = Load {
            running: 17,
            waiting: 150,
            own: Demand::of(480, Expected::certain(32), 16),
            room: Room {
                blocks: 528,
                available: 3,
                step_tokens: 4_096,
                ..Room::default()
            },
            ..Load::idle(256, &pace)
        };
        assert_eq!((load.slots_free(), load.queued()), (0, 150));
        let room = Room {
            available: 65,
            ..load.room
        };
        assert_eq!(Load { room, ..load }.slots_free(), 2, "30 blocks each");
        let room = Room {
            lacking: Some(Lacking::Blocks { held: 500 }),
            ..room
        };
        assert_eq!(
            Load { room, ..load }.slots_free(),
            0,
            "the next in line did not fit"
        );
    }

    #[test]
    fn a_request_takes_as_long_as_its_own_tokens() {
        let pace = steps_of_ten_ms();
        let near = |prompt, output, expected: f64| {
            let own = Demand::of(prompt, Expected::certain(output), 16);
            let load = Load {
                own,
                ..Load::idle(1, &pace)
            };
            let took = load.usual_time_to_serve().unwrap().as_millis_f64();
            assert!((took / expected - 1.0).abs() < 0.05, "{took} of {expected}");
        };
        near(200, 11, 200.0 + 110.0);
        near(20, 1_000, 20.0 + 10_000.0);
    }
}
