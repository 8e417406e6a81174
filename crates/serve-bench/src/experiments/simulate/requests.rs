//! A workload's conversations as inputs of a simulation: turns that follow answers, clients of a closed
//! loop that think, clients that hang up, deadlines, attempts that are made again. What [`drive`] does
//! with tasks and a clock is done here with a queue of times.
//!
//! [`drive`]: crate::transport::drive

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};

use serve_core::mock::Mock;
use serve_core::{CancelReason, Event, EventKind, RequestId, Span, Time};
use serve_sched::sim::{self, Input, Row};

use super::row::{Course, Left};
use crate::store::manifest::Source;
use crate::store::record::{Outcome, Record};
use crate::transport::drive::{Retries, row};
use crate::transport::engine::request::Asker;
use crate::workload::spec::Spec;
use crate::workload::{Conversation, HangUp, Planned, Workload};

/// The inputs of a simulation, and the rows that come of them.
pub(super) struct Requests {
    spec: Spec,
    asker: Asker,
    /// Knows what was answered.
    device: Mock,
    retries: Retries,
    /// What the way through a server's edge adds to whatever comes back.
    edge: Span,
    /// The start of the run's clock.
    origin: Time,
    /// Whether each token's time is kept.
    keeps_times: bool,
    plan: Box<dyn Iterator<Item = Conversation>>,
    /// The conversation of an open loop that begins next.
    next: Option<(Time, Conversation)>,
    /// Attempts whose time is known, hang-ups, and clients that are free.
    due: BinaryHeap<Reverse<(Time, u64)>>,
    later: BTreeMap<u64, Later>,
    numbered: u64,
    live: BTreeMap<RequestId, Live>,
    /// What has ended and is not fetched yet.
    rows: Vec<Record>,
    closed: bool,
    /// Clients that have had their first conversation, before which nobody thinks.
    begun: u32,
}

enum Later {
    Attempt(Box<Live>),
    /// Somebody leaves, and why.
    Leave(RequestId, Left),
    Client(u32),
}

/// One attempt at a turn.
struct Live {
    conversation: Conversation,
    turn: usize,
    client: Option<u32>,
    attempt: u32,
    scheduled: Time,
    /// When the answer is of no use any more, whichever attempt it comes from.
    deadline: Option<Time>,
    course: Course,
    /// Of each earlier turn that was answered: the attempt, and the tokens of its prompt.
    answered: Vec<(RequestId, u32)>,
}

/// How an open run goes on, beside its workload.
#[derive(Clone, Copy, Debug)]
pub(super) struct How {
    pub(super) edge: Span,
    pub(super) origin: Time,
    pub(super) keeps_times: bool,
}

impl Requests {
    pub(super) fn new(workload: &Workload, asker: Asker, device: Mock, how: How) -> Self {
        let spec = workload.spec().clone();
        let clients = spec.arrivals.clients();
        let mut requests = Self {
            asker,
            device,
            retries: Retries::new(&spec),
            edge: how.edge,
            origin: how.origin,
            keeps_times: how.keeps_times,
            plan: Box::new(workload.plan()),
            next: None,
            due: BinaryHeap::new(),
            later: BTreeMap::new(),
            numbered: 0,
            live: BTreeMap::new(),
            rows: Vec::new(),
            closed: clients.is_some(),
            begun: 0,
            spec,
        };
        for client in 0..clients.map_or(0, Into::into) {
            requests.at(how.origin, Later::Client(client));
        }
        requests.draw_next();
        requests
    }

    /// Rows of attempts that have ended since the last call.
    pub(super) fn take_rows(&mut self) -> Vec<Record> {
        std::mem::take(&mut self.rows)
    }

    /// The next conversation of an open loop.
    fn draw_next(&mut self) {
        if !self.closed {
            let next = self.plan.next();
            self.next = next.map(|next| (self.origin + next.due.unwrap_or(Span::ZERO), next));
        }
    }

    /// Sees to it that what is due first is an input: a free client has its next turn planned, which
    /// may be due later, and nobody leaves what has ended.
    fn settle(&mut self) {
        while let Some(&Reverse((at, number))) = self.due.peek() {
            let client = match self.later.get(&number) {
                Some(Later::Client(client)) => Some(*client),
                Some(Later::Leave(request, _)) if !self.live.contains_key(request) => None,
                _ => return,
            };
            self.due.pop();
            self.later.remove(&number);
            if let Some(client) = client {
                self.next_of_client(client, at);
            }
        }
    }

    fn next_of_client(&mut self, client: u32, at: Time) {
        let Some(conversation) = self.plan.next() else {
            return;
        };
        let is_first = client >= self.begun;
        self.begun = self.begun.max(client + 1);
        let due = match is_first {
            true => at,
            false => self.reaction(at, conversation.turns[0].think_ns),
        };
        let first = self.turn(conversation, 0, Some(client), due);
        self.at(due, Later::Attempt(Box::new(first)));
    }

    /// When a client acts on what it has seen. Whatever it does, the next step has begun by then.
    fn reaction(&self, seen: Time, think_ns: u64) -> Time {
        let at_once = self.edge.is_zero() && think_ns == 0;
        seen + Span::from_nanos(if at_once { 1 } else { think_ns })
    }

    fn at(&mut self, at: Time, later: Later) {
        self.due.push(Reverse((at, self.numbered)));
        self.later.insert(self.numbered, later);
        self.numbered += 1;
    }

    /// The first attempt at a turn.
    fn turn(
        &self,
        conversation: Conversation,
        turn: usize,
        client: Option<u32>,
        scheduled: Time,
    ) -> Live {
        let class = conversation.class.map(|class| &self.spec.classes[class]);
        let deadline = class.and_then(|class| Some(scheduled + class.deadline_ms?.millis()));
        Live {
            conversation,
            turn,
            client,
            attempt: 0,
            scheduled,
            deadline,
            course: Course::default(),
            answered: Vec::new(),
        }
    }

    /// Makes an attempt. `None` if it cannot be a request; then it has a row.
    fn submit(&mut self, at: Time, mut live: Live) -> Option<Input> {
        let id = RequestId::new(self.numbered);
        self.numbered += 1;
        if live.attempt == 0 {
            self.retries.original(&live.conversation);
        }
        live.course = Course::sent(at);
        let answer = |turn: usize| {
            let tokens = 0..live.conversation.turns[turn].output_tokens_max;
            let (attempt, prompt_tokens) = live.answered[turn];
            let token = |n| self.device.token(attempt, prompt_tokens + n);
            tokens.map(token).collect()
        };
        let prompt = self.asker.prompt(&live.conversation, live.turn, answer);
        let (conversation, turn, deadline) = (&live.conversation, live.turn, live.deadline);
        match self
            .asker
            .request((id, at), conversation, turn, prompt, deadline)
        {
            Ok(request) => {
                let patience = at + self.spec.measure.timeout_s.secs();
                self.at(patience, Later::Leave(id, Left::OutOfPatience));
                if let Some(deadline) = live.deadline {
                    self.at(deadline, Later::Leave(id, Left::Deadline));
                }
                if let Some(HangUp::AfterNanos(nanos)) = live.planned().hang_up {
                    let leaves = at + Span::from_nanos(nanos);
                    self.at(leaves, Later::Leave(id, Left::Planned));
                }
                self.live.insert(id, live);
                Some(Input::Submit(request))
            }
            Err(error) => {
                let row = live.course.invalid(self.unsent(&live), &error, self.origin);
                self.ended_with(id, live, row, at);
                None
            }
        }
    }

    /// The row of an attempt before anything has happened to it.
    fn unsent(&self, live: &Live) -> Record {
        let due_ns = live.scheduled.since(self.origin).as_nanos();
        let row = row::of_turn(
            &self.spec,
            &live.conversation,
            live.turn,
            live.client,
            due_ns,
        );
        Record {
            source: Source::Simulated,
            attempt: live.attempt,
            ..row
        }
    }

    /// An attempt has ended, as its client sees at `seen`: it is made again, or the next turn follows,
    /// or the conversation is over.
    fn ended_with(&mut self, id: RequestId, mut live: Live, mut row: Record, seen: Time) {
        let deadline_ns = live.deadline.map(Time::as_nanos);
        let again = self
            .retries
            .again(&live.conversation, &row, deadline_ns, seen.as_nanos());
        row.retried = again.is_some();
        let prompt_tokens = row.prompt_tokens.filter(|_| row.outcome == Outcome::Ok);
        self.rows.push(row);
        if let Some(again) = again.map(Time::from_nanos) {
            let attempt = Live {
                attempt: live.attempt + 1,
                scheduled: again,
                course: Course::default(),
                ..live
            };
            return self.at(again, Later::Attempt(Box::new(attempt)));
        }
        let next = live.turn + 1;
        let think_ns = live.conversation.turns.get(next).map(|turn| turn.think_ns);
        if let (Some(prompt_tokens), Some(think_ns)) = (prompt_tokens, think_ns) {
            live.answered.push((id, prompt_tokens));
            let due = self.reaction(seen, think_ns);
            let turn = Live {
                answered: live.answered,
                ..self.turn(live.conversation, next, live.client, due)
            };
            return self.at(due, Later::Attempt(Box::new(turn)));
        }
        // Nobody asks a second question of who has not answered the first.
        let client = live.client;
        let mut unasked = self.turn(live.conversation, next, client, seen);
        while unasked.turn < unasked.conversation.turns.len() {
            self.rows.push(Record {
                cause: Some("earlier_turn".to_owned()),
                ..self.unsent(&unasked)
            });
            unasked.turn += 1;
        }
        if let Some(client) = client {
            self.at(seen, Later::Client(client));
        }
    }
}

impl Live {
    fn planned(&self) -> &Planned {
        &self.conversation.turns[self.turn]
    }
}

impl sim::Workload for Requests {
    fn next_at(&mut self) -> Option<Time> {
        self.settle();
        let next = self.next.as_ref().map(|(at, _)| *at);
        let due = self.due.peek().map(|Reverse((at, _))| *at);
        [next, due].into_iter().flatten().min()
    }

    fn next_input(&mut self) -> Option<(Time, Input)> {
        self.settle();
        let due = self.due.peek().map(|Reverse((at, _))| *at);
        if let Some((at, _)) = &self.next
            && due.is_none_or(|due| *at <= due)
        {
            let (at, conversation) = self.next.take()?;
            self.draw_next();
            let first = self.turn(conversation, 0, None, at);
            return Some((at, self.submit(at, first)?));
        }
        let Reverse((at, number)) = self.due.pop()?;
        match self.later.remove(&number)? {
            Later::Attempt(live) => Some((at, self.submit(at, *live)?)),
            Later::Leave(request, why) => {
                self.live.get_mut(&request)?.course.leave(at, why);
                let reason = CancelReason::Client;
                Some((at, Input::Cancel { request, reason }))
            }
            // Settled above.
            Later::Client(_) => None,
        }
    }

    fn happened(&mut self, event: &Event) {
        let (EventKind::Token { index, .. }, Some(live)) =
            (&event.kind, self.live.get_mut(&event.request))
        else {
            return;
        };
        let seen = event.at + self.edge;
        if self.keeps_times {
            live.course.token(seen);
        }
        let hang_up = live.planned().hang_up;
        if hang_up == Some(HangUp::AfterTokens(index + 1)) {
            live.course.leave(seen, Left::Planned);
            let leaves = self.reaction(seen, 0);
            self.at(leaves, Later::Leave(event.request, Left::Planned));
        }
    }

    fn ended(&mut self, said: &Row) {
        let Some(mut live) = self.live.remove(&said.request) else {
            return;
        };
        let course = std::mem::take(&mut live.course);
        let stream = self.spec.request.stream;
        let (row, seen) = course.ended(self.unsent(&live), said, (self.edge, self.origin), stream);
        self.ended_with(said.request, live, row, seen);
    }
}
