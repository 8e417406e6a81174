//! A model of an engine that one cannot look into: slots side by side, a queue of its own, and requests
//! that it does not answer as it should.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fmt;
use std::sync::Arc;

use serve_core::{FinishReason, Request, RequestId, Span, Time, Usage};

use super::dispatch::{EngineModel, Reply};
use crate::dispatcher::Outcome;

/// An engine that serves some requests side by side, each at the same speed whatever the others do,
/// and keeps the rest in a queue of its own, first come, first served.
pub struct SlotEngine {
    /// What it is like from when on.
    eras: Vec<(Time, Slots)>,
    behaviour: Box<dyn FnMut(&Request) -> Behaviour>,
    queue: VecDeque<Waiting>,
    working: BTreeMap<RequestId, Work>,
    timers: BTreeSet<(Time, RequestId)>,
    replies: VecDeque<(RequestId, Reply)>,
    now: Time,
}

/// What a [`SlotEngine`] can do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Slots {
    /// Requests that it serves side by side.
    pub slots: u32,
    /// Requests that it keeps waiting at most; it refuses those beyond. `None` is all.
    pub queue_max: Option<u32>,
    /// What it says with a refusal.
    pub retry_after: Option<Span>,
    /// Time for each token of the prompt.
    pub prompt_token: Span,
    /// Time for each token of the answer.
    pub output_token: Span,
}

/// What an engine does with a request that it takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Behaviour {
    /// It answers it.
    Serve,
    /// It says at once that the client has made a mistake.
    Mistake,
    /// It keeps a slot and says nothing until it is told to stop.
    Hang,
}

#[derive(Debug)]
struct Waiting {
    request: Arc<Request>,
    hangs: bool,
}

#[derive(Debug)]
struct Work {
    request: Arc<Request>,
    first_token: Time,
    end: Time,
}

impl Default for Slots {
    /// Eight slots, 0.1 ms for a token of the prompt and 10 ms for one of the answer.
    fn default() -> Self {
        Self {
            slots: 8,
            queue_max: None,
            retry_after: None,
            prompt_token: Span::from_micros(100),
            output_token: Span::from_millis(10),
        }
    }
}

impl SlotEngine {
    /// An idle engine.
    pub fn new(slots: Slots) -> Self {
        Self {
            eras: vec![(Time::ZERO, slots)],
            behaviour: Box::new(|_| Behaviour::Serve),
            queue: VecDeque::new(),
            working: BTreeMap::new(),
            timers: BTreeSet::new(),
            replies: VecDeque::new(),
            now: Time::ZERO,
        }
    }

    /// Becomes another at `at`, later than what was said before. What it works at is not affected.
    #[must_use]
    pub fn becoming(mut self, at: Time, slots: Slots) -> Self {
        self.eras.push((at, slots));
        self
    }

    /// Does with each request that is sent to it as `behaviour` says.
    #[must_use]
    pub fn with_behaviour(
        mut self,
        behaviour: impl FnMut(&Request) -> Behaviour + 'static,
    ) -> Self {
        self.behaviour = Box::new(behaviour);
        self
    }

    fn slots(&self, now: Time) -> Slots {
        let past = self.eras.partition_point(|&(from, _)| from <= now);
        self.eras[past.saturating_sub(1)].1
    }

    fn begin(&mut self, now: Time) {
        let slots = self.slots(now);
        while self.working.len() < slots.slots as usize {
            let Some(Waiting { request, hangs }) = self.queue.pop_front() else {
                return;
            };
            let id = request.id();
            let prefill = slots.prompt_token * u64::from(request.prompt_tokens());
            let rest = u64::from(request.output_tokens_max() - 1);
            let first_token = match hangs {
                true => Time::MAX,
                false => now + prefill + slots.output_token,
            };
            let end = first_token + slots.output_token * rest;
            let work = Work {
                request,
                first_token,
                end,
            };
            self.timers.insert((work.first_token, id));
            self.working.insert(id, work);
        }
    }

    fn say(&mut self, id: RequestId, outcome: Outcome) {
        self.replies.push_back((id, Reply::Done(outcome)));
    }

    /// The first token of a request has come, or its last.
    fn due(&mut self, at: Time, id: RequestId) {
        let Some(work) = self.working.get(&id) else {
            return;
        };
        if at < work.end {
            self.timers.insert((work.end, id));
            self.replies.push_back((id, Reply::Tokens(1)));
            return;
        }
        if work.first_token == work.end {
            self.replies.push_back((id, Reply::Tokens(1)));
        }
        let usage = Usage {
            prompt_tokens: work.request.prompt_tokens(),
            output_tokens: work.request.output_tokens_max(),
            ..Usage::default()
        };
        self.working.remove(&id);
        let reason = FinishReason::Length;
        self.say(id, Outcome::Answered { reason, usage });
    }
}

impl EngineModel for SlotEngine {
    fn send(&mut self, now: Time, request: &Arc<Request>) {
        self.begin(now);
        let slots = self.slots(now);
        let full = self.working.len() >= slots.slots as usize;
        let refuses = slots
            .queue_max
            .is_some_and(|max| self.queue.len() >= max as usize);
        if full && refuses {
            let (cause, retry_after) = (Arc::from("429"), slots.retry_after);
            return self.say(request.id(), Outcome::PutBack { cause, retry_after });
        }
        let behaviour = (self.behaviour)(request);
        if behaviour == Behaviour::Mistake {
            let cause = Arc::from("400");
            return self.say(request.id(), Outcome::Ignored { cause });
        }
        self.queue.push_back(Waiting {
            request: Arc::clone(request),
            hangs: behaviour == Behaviour::Hang,
        });
        self.begin(now);
    }

    fn abort(&mut self, now: Time, id: RequestId) {
        let waits = self
            .queue
            .iter()
            .position(|waiting| waiting.request.id() == id);
        if let Some(index) = waits {
            self.queue.remove(index);
        } else if let Some(work) = self.working.remove(&id) {
            self.timers.remove(&(work.first_token, id));
            self.timers.remove(&(work.end, id));
        } else {
            return;
        }
        let cause = Arc::from("aborted");
        self.say(id, Outcome::Ignored { cause });
        self.begin(now);
    }

    fn reply(&mut self, now: Time) -> Option<(RequestId, Reply)> {
        self.now = now;
        while let Some(&(at, id)) = self.timers.first()
            && at <= now
        {
            self.timers.pop_first();
            self.due(at, id);
        }
        self.begin(now);
        self.replies.pop_front()
    }

    fn next_at(&self) -> Option<Time> {
        let timer = self.timers.first().map(|&(at, _)| at);
        // More slots are of interest to those that wait.
        let era = self.eras.iter().map(|&(from, _)| from);
        let era = era
            .filter(|&from| from > self.now && !self.queue.is_empty())
            .min();
        timer
            .into_iter()
            .chain(era)
            .filter(|&at| at < Time::MAX)
            .min()
    }
}

impl fmt::Debug for SlotEngine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut debug = f.debug_struct("SlotEngine");
        debug.field("eras", &self.eras);
        debug.field("now", &self.now);
        debug.finish_non_exhaustive()
    }
}
