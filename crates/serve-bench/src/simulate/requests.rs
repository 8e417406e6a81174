//! A workload's conversations as inputs of a simulation: turns that follow answers, clients of a
//! closed loop that think, clients that hang up, deadlines.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};

use serve_core::{CancelReason, Class, Request, RequestId, Span, TenantId, Time, TokenId};
use serve_sched::sim::{self, Input, Row, Terminal};

use super::SimulateError;
use super::server::ServerModel;
use crate::record::Record;
use crate::spec::Spec;
use crate::workload::{Conversation, HangUp, Planned, Prompt, Workload};

/// The inputs of a simulation, and the beginnings of the rows that come of them.
pub(super) struct Requests {
    spec: Spec,
    classes: Vec<Class>,
    server_limit: Option<Span>,
    plan: Box<dyn Iterator<Item = Conversation>>,
    /// The conversation of an open loop that begins next.
    next: Option<(Time, Conversation)>,
    /// Turns whose time is known, hang-ups, and clients that are free.
    due: BinaryHeap<Reverse<(Time, u64)>>,
    later: BTreeMap<u64, Later>,
    numbered: u64,
    live: BTreeMap<RequestId, Live>,
    /// What has ended and is not fetched yet.
    ended: Vec<Ended>,
    closed: bool,
    /// Clients that have had their first conversation, before which nobody thinks.
    begun: u32,
}

/// A request whose fate is known.
pub(super) struct Ended {
    /// What was asked.
    pub(super) asked: Record,
    /// What came of it; nothing of a turn that was never asked.
    pub(super) row: Option<Row>,
    /// Whether its client lost patience.
    pub(super) gave_up: bool,
}

enum Later {
    Turn(Box<Live>),
    HangUp(RequestId),
    /// The client's patience is at its end.
    GiveUp(RequestId),
    Client(u32),
}

/// A turn that was asked.
struct Live {
    conversation: Conversation,
    turn: usize,
    client: Option<u32>,
    scheduled: Time,
    gave_up: bool,
}

impl Requests {
    pub(super) fn new(workload: &Workload, server: &ServerModel) -> Result<Self, SimulateError> {
        let spec = workload.spec().clone();
        let classes = spec.classes.iter().map(|class| {
            let known = server.class(Some(&class.name));
            known.ok_or_else(|| SimulateError::Class {
                name: class.name.clone(),
                known: server.classes.clone(),
            })
        });
        let classes = classes.collect::<Result<_, _>>()?;
        if spec.retry.is_some() || spec.classes.iter().any(|class| class.retry.is_some()) {
            return Err(SimulateError::NotSimulated("retry"));
        }
        let after_tokens = |cancel: &crate::spec::Cancel| cancel.after_tokens.is_some();
        if spec
            .classes
            .iter()
            .filter_map(|class| class.cancel.as_ref())
            .any(after_tokens)
        {
            return Err(SimulateError::NotSimulated("cancel.after_tokens"));
        }
        let clients = spec.arrivals.clients();
        let mut requests = Self {
            classes,
            server_limit: server.request_timeout,
            plan: Box::new(workload.plan()),
            next: None,
            due: BinaryHeap::new(),
            later: BTreeMap::new(),
            numbered: 0,
            live: BTreeMap::new(),
            ended: Vec::new(),
            closed: clients.is_some(),
            begun: 0,
            spec,
        };
        for client in 0..clients.map_or(0, Into::into) {
            requests.client_is_free(client, Time::ZERO);
        }
        requests.draw_next();
        Ok(requests)
    }

    /// Rows of turns that have ended since the last call.
    pub(super) fn take_ended(&mut self) -> Vec<Ended> {
        std::mem::take(&mut self.ended)
    }

    /// The next conversation of an open loop.
    fn draw_next(&mut self) {
        if !self.closed {
            let next = self.plan.next();
            self.next = next.map(|next| (Time::ZERO + next.due.unwrap_or(Span::ZERO), next));
        }
    }

    fn client_is_free(&mut self, client: u32, at: Time) {
        self.at(at, Later::Client(client));
    }

    /// Sees to it that what is due first is an input: a free client has its next turn planned, which
    /// may be due later, and nobody hangs up on what has ended.
    fn settle(&mut self) {
        while let Some(&Reverse((at, number))) = self.due.peek() {
            let client = match self.later.get(&number) {
                Some(Later::Client(client)) => Some(*client),
                Some(Later::HangUp(request) | Later::GiveUp(request))
                    if !self.live.contains_key(request) =>
                {
                    None
                }
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
        let think = match is_first {
            true => Span::ZERO,
            false => Span::from_nanos(conversation.turns[0].think_ns),
        };
        let live = Live {
            conversation,
            turn: 0,
            client: Some(client),
            scheduled: at + think,
            gave_up: false,
        };
        self.at(at + think, Later::Turn(Box::new(live)));
    }

    fn at(&mut self, at: Time, later: Later) {
        self.due.push(Reverse((at, self.numbered)));
        self.later.insert(self.numbered, later);
        self.numbered += 1;
    }

    fn submit(&mut self, at: Time, live: Live) -> (Time, Input) {
        let planned = &live.conversation.turns[live.turn];
        let id = RequestId::new(planned.index);
        let hang_up = planned.hang_up;
        let class = live
            .conversation
            .class
            .map_or(Class::default(), |class| self.classes[class]);
        let own = live
            .conversation
            .class
            .and_then(|class| self.spec.classes[class].deadline_ms);
        let limits = [own.map(|own| own.millis()), self.server_limit];
        let limit = limits.into_iter().flatten().min();
        let tenant = live
            .conversation
            .tenant
            .map_or(0, |tenant| tenant as u32 + 1);
        let tokens = prompt(&live.conversation, live.turn);
        self.live.insert(id, live);
        self.at(at + self.spec.measure.timeout_s.secs(), Later::GiveUp(id));
        if let Some(HangUp::AfterNanos(nanos)) = hang_up {
            self.at(at + Span::from_nanos(nanos), Later::HangUp(id));
        }
        let planned_output = self.live[&id].planned().output_tokens_max.max(1);
        let request = Request::new(id, at, tokens, planned_output);
        // Prompts have a token and answers may have one, which is all that a request must have.
        let request = request.map(|request| {
            let request = request.with_class(class).with_tenant(TenantId::new(tenant));
            request.with_deadline(limit.map(|limit| at + limit))
        });
        match request {
            Ok(request) => (at, Input::Submit(request)),
            Err(_) => (
                at,
                Input::Cancel {
                    request: id,
                    reason: CancelReason::Client,
                },
            ),
        }
    }

    fn row(&self, live: &Live) -> Record {
        let planned = live.planned();
        let conversation = &live.conversation;
        let class = conversation.class.map(|class| &self.spec.classes[class]);
        let tenant = conversation
            .tenant
            .map(|tenant| self.spec.tenants[tenant].name.clone());
        Record {
            simulated: true,
            client: live.client,
            session: conversation.is_session.then_some(conversation.number),
            turn: conversation.is_session.then_some(live.turn as u32),
            prompt_set: Some(conversation.prompt_set.to_string()),
            tenant,
            class: class.map(|class| class.name.clone()),
            prompt_tokens_planned: Some(planned.prompt_tokens),
            output_tokens_max: Some(planned.output_tokens_max),
            deadline_ns: class.and_then(|class| Some(class.deadline_ms?.millis().as_nanos())),
            ..Record::not_sent(planned.index, live.scheduled.as_nanos())
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
            let live = Live {
                conversation,
                turn: 0,
                client: None,
                scheduled: at,
                gave_up: false,
            };
            return Some(self.submit(at, live));
        }
        let Reverse((at, number)) = self.due.pop()?;
        let request = match self.later.remove(&number)? {
            Later::Turn(live) => return Some(self.submit(at, *live)),
            Later::HangUp(request) => request,
            Later::GiveUp(request) => {
                self.live.get_mut(&request)?.gave_up = true;
                request
            }
            // Settled above.
            Later::Client(_) => return None,
        };
        let reason = CancelReason::Client;
        Some((at, Input::Cancel { request, reason }))
    }

    fn ended(&mut self, row: &Row) {
        let Some(mut live) = self.live.remove(&row.request) else {
            return;
        };
        let asked = self.row(&live);
        self.ended.push(Ended {
            asked,
            row: Some(*row),
            gave_up: live.gave_up,
        });
        let answered = matches!(row.terminal, Terminal::Finished(_));
        let last = live.turn + 1 == live.conversation.turns.len();
        if answered && !last {
            live.turn += 1;
            live.scheduled = row.end + Span::from_nanos(live.planned().think_ns);
            self.at(live.scheduled, Later::Turn(Box::new(live)));
            return;
        }
        // Nobody asks a second question of who has not answered the first.
        for turn in live.turn + 1..live.conversation.turns.len() {
            let unasked = Live {
                turn,
                conversation: live.conversation.clone(),
                ..live
            };
            let mut asked = self.row(&unasked);
            asked.scheduled_ns = row.end.as_nanos();
            asked.cause = Some("earlier_turn".to_owned());
            self.ended.push(Ended {
                asked,
                row: None,
                gave_up: false,
            });
        }
        if let Some(client) = live.client {
            self.client_is_free(client, row.end);
        }
    }
}

/// The tokens of a turn's whole prompt. Words become tokens of a fixed hash, so that prompts which
/// begin alike share their prefix; their number is the planned one.
fn prompt(conversation: &Conversation, turn: usize) -> Vec<TokenId> {
    let mut tokens = Vec::new();
    if let Some(shared) = &conversation.shared {
        push(shared, &mut tokens);
    }
    for before in &conversation.turns[..turn] {
        push(&before.prompt, &mut tokens);
        match &before.scripted_answer {
            Some(text) => push(&Prompt::Text(text.clone()), &mut tokens),
            None => {
                let answer = 0..before.output_tokens_max;
                tokens.extend(answer.map(|n| TokenId::new(hash(&[before.index, u64::from(n)]))));
            }
        }
    }
    push(&conversation.turns[turn].prompt, &mut tokens);
    let planned = conversation.turns[turn].prompt_tokens.max(1) as usize;
    let own = conversation.turns[turn].index;
    let missing = tokens.len()..planned;
    tokens.extend(missing.map(|at| TokenId::new(hash(&[own, at as u64]))));
    tokens.truncate(planned);
    tokens
}

fn push(prompt: &Prompt, tokens: &mut Vec<TokenId>) {
    match prompt {
        Prompt::Ids(ids) => tokens.extend(ids.iter().map(|id| TokenId::new(*id))),
        Prompt::Text(text) => tokens.extend(text.split_whitespace().map(|word| {
            let letters = word.bytes().map(u64::from).collect::<Vec<_>>();
            TokenId::new(hash(&letters))
        })),
    }
}

fn hash(parts: &[u64]) -> u32 {
    let mixed = parts
        .iter()
        .fold(0, |mixed, part| serve_core::rng::mix2(mixed, *part));
    (mixed >> 32) as u32
}
