//! Several engines behind routers in virtual time: what a routing policy does with a load, before anybody has to wait for it.
//!
//! Routers share nothing but the engines: requests go to them in turn, or a conversation always to the same. They hear of an
//! engine what it says of itself now and then, late by as much, or nothing.

use std::collections::BTreeMap;
use std::sync::Arc;

use serve_core::{Request, RequestId, Span, Time, Usage};

use super::dispatch::{EngineModel, Reply};
use crate::dispatcher::Outcome;
use crate::route::{Attempt, End, Router, Terms, UpstreamId, View, Work};

/// A request and what a router is told of it besides.
#[derive(Clone, Debug)]
pub struct Routed {
    /// The request; it comes at its [`Request::arrival`].
    pub request: Arc<Request>,
    /// The [chain](crate::route::chain) of its prompt.
    pub chain: Vec<u64>,
    /// Tokens in a block of the chain.
    pub block_tokens: u32,
    /// Its conversation.
    pub session: Option<u64>,
}

/// What came of a request, as its client has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
pub struct RoutedRow {
    /// Which.
    pub request: RequestId,
    /// Where it was sent last; `None` if there was no upstream for it.
    pub upstream: Option<UpstreamId>,
    /// When it arrived.
    pub arrival: Time,
    /// When its first token came.
    pub first_token: Option<Time>,
    /// When it ended.
    pub end: Time,
    /// What it used, if it was answered.
    pub usage: Option<Usage>,
    /// How often it was sent.
    pub attempts: u32,
}

impl RoutedRow {
    /// Time to first token (TTFT).
    pub fn first_token_time(&self) -> Option<Span> {
        Some(self.first_token?.since(self.arrival))
    }
}

/// Engines behind routers.
#[derive(Debug)]
pub struct Fleet<E> {
    routers: Vec<Router>,
    engines: Vec<E>,
    /// When which engine joins and on which terms, in this order.
    joins: BTreeMap<(Time, usize), Terms>,
    views: Option<Span>,
    by_session: bool,
    /// Views that were taken and are heard then.
    on_their_way: BTreeMap<(Time, usize), View>,
    next_view: Time,
    now: Time,
    live: BTreeMap<RequestId, Live>,
    /// Requests to be sent again.
    again: BTreeMap<(Time, RequestId), (Live, Attempt)>,
}

#[derive(Clone, Debug)]
struct Live {
    routed: Arc<Routed>,
    router: usize,
    engine: usize,
    first_token: Option<Time>,
    attempts: u32,
}

impl<E: EngineModel> Fleet<E> {
    /// These engines, all of which have joined on the same terms, behind these routers.
    pub fn new(routers: Vec<Router>, engines: Vec<E>, terms: Terms) -> Self {
        let joins = (0..engines.len()).map(|engine| ((Time::ZERO, engine), terms));
        Self {
            routers,
            joins: joins.collect(),
            engines,
            views: None,
            by_session: false,
            on_their_way: BTreeMap::new(),
            next_view: Time::ZERO,
            now: Time::ZERO,
            live: BTreeMap::new(),
            again: BTreeMap::new(),
        }
    }

    /// Routers hear of each engine every so often what it had so long ago.
    #[must_use]
    pub fn with_views(mut self, every: Span) -> Self {
        self.views = Some(every.max(Span::from_nanos(1)));
        self
    }

    /// A conversation always goes to the same router.
    #[must_use]
    pub fn by_session(mut self) -> Self {
        self.by_session = true;
        self
    }

    /// The engine of this index joins at another time, or on other terms.
    #[must_use]
    pub fn joining(mut self, engine: usize, at: Time, terms: Terms) -> Self {
        self.joins.retain(|&(_, other), _| other != engine);
        self.joins.insert((at, engine), terms);
        self
    }

    /// The routers, to read what they have made of the engines.
    pub fn routers(&self) -> &[Router] {
        &self.routers
    }

    /// Runs requests, which come in the order of their arrival, until all have ended; gives each row out when its request
    /// ends. Requests in an engine that hangs for ever do not end; then it runs until nothing happens any more.
    pub fn run(
        &mut self,
        requests: impl IntoIterator<Item = Routed>,
        mut each_row: impl FnMut(&RoutedRow),
    ) {
        let mut requests = requests.into_iter().peekable();
        let mut count = 0_u64;
        loop {
            self.hear();
            self.settle(&mut each_row);
            if let Some(entry) = self.again.first_entry()
                && entry.key().0 <= self.now
            {
                let (live, attempt) = entry.remove();
                self.send(live, attempt, &mut each_row);
                continue;
            }
            let due = |routed: &Routed| routed.request.arrival() <= self.now;
            if let Some(routed) = requests.next_if(due) {
                let session = routed.session.filter(|_| self.by_session);
                let turn = session.unwrap_or(count) % self.routers.len().max(1) as u64;
                let live = Live {
                    routed: Arc::new(routed),
                    router: turn as usize,
                    engine: 0,
                    first_token: None,
                    attempts: 0,
                };
                count += 1;
                self.send(live, Attempt::default(), &mut each_row);
                continue;
            }
            let arrival = requests.peek().map(|routed| routed.request.arrival());
            let Some(next) = self.next_at(arrival) else {
                break;
            };
            self.now = next.max(self.now);
        }
    }

    fn next_at(&self, arrival: Option<Time>) -> Option<Time> {
        let engines = self.engines.iter().filter_map(EngineModel::next_at);
        let again = self.again.keys().next().map(|&(at, _)| at);
        let work = engines.chain(arrival).chain(again).min()?;
        // What is said and heard is of interest as long as there is work.
        let join = self.joins.keys().next().map(|&(at, _)| at);
        let heard = self.on_their_way.keys().next().map(|&(at, _)| at);
        let view = self.views.map(|_| self.next_view);
        [join, heard, view]
            .into_iter()
            .flatten()
            .chain([work])
            .min()
    }

    /// Upstreams join, say what they have, and are heard.
    fn hear(&mut self) {
        while let Some(entry) = self.joins.first_entry()
            && entry.key().0 <= self.now
        {
            let ((_, engine), terms) = entry.remove_entry();
            let routers = self.routers.iter_mut();
            routers.for_each(|router| router.join(upstream(engine), terms));
        }
        while let Some(entry) = self.on_their_way.first_entry()
            && entry.key().0 <= self.now
        {
            let ((_, engine), view) = entry.remove_entry();
            for router in &mut self.routers {
                router.report(self.now, upstream(engine), &view);
            }
        }
        let Some(every) = self.views.filter(|_| self.next_view <= self.now) else {
            return;
        };
        for engine in 0..self.engines.len() {
            let view = self.view(engine);
            self.on_their_way.insert((self.now + every, engine), view);
        }
        self.next_view = self.now + every;
    }

    fn view(&self, engine: usize) -> View {
        let mut view = View {
            at: self.now,
            ..View::default()
        };
        for live in self.live.values().filter(|live| live.engine == engine) {
            let request = &live.routed.request;
            let (prompt, output) = (request.prompt_tokens(), request.output_tokens_max());
            view.in_flight += 1;
            view.running_tokens += u64::from(prompt) + u64::from(output) / 2;
            if live.first_token.is_none() {
                view.waiting += 1;
                view.waiting_tokens += u64::from(prompt);
            }
        }
        view
    }

    fn send(&mut self, mut live: Live, attempt: Attempt, each_row: &mut impl FnMut(&RoutedRow)) {
        let routed = Arc::clone(&live.routed);
        let request = &routed.request;
        let work = Work {
            prefix: &routed.chain,
            block_tokens: routed.block_tokens,
            session: routed.session,
            class: request.class(),
            deadline: request.deadline(),
            attempt,
            ..Work::new(request.prompt_tokens(), request.output_tokens_max())
        };
        let Some(router) = self.routers.get_mut(live.router) else {
            return;
        };
        match router.send(self.now, request.id(), &work) {
            Ok(sent) => {
                live.engine = sent.upstream.get() as usize;
                live.attempts += 1;
                let engine = &mut self.engines[live.engine];
                engine.send(self.now, request);
                self.live.insert(request.id(), live);
            }
            Err(_) => each_row(&self.row(&live, None)),
        }
    }

    /// Lets everything happen that engines do now.
    fn settle(&mut self, each_row: &mut impl FnMut(&RoutedRow)) {
        for engine in 0..self.engines.len() {
            while let Some((id, reply)) = self.engines[engine].reply(self.now) {
                match reply {
                    Reply::Tokens(_) => self.first_token(id),
                    Reply::Done(outcome) => self.done(id, &outcome, each_row),
                }
            }
        }
    }

    fn first_token(&mut self, id: RequestId) {
        if let Some(live) = self.live.get_mut(&id) {
            live.first_token = live.first_token.or(Some(self.now));
            self.routers[live.router].first_token(self.now, id);
        }
    }

    fn done(&mut self, id: RequestId, outcome: &Outcome, each_row: &mut impl FnMut(&RoutedRow)) {
        let Some(live) = self.live.remove(&id) else {
            return;
        };
        let (end, usage) = match outcome {
            Outcome::Answered { usage, .. } => (End::Answered(*usage), Some(*usage)),
            Outcome::Ignored { .. } => (End::Ignored, None),
            Outcome::PutBack { retry_after, .. } => {
                let retry_after = *retry_after;
                (End::Busy { retry_after }, None)
            }
            Outcome::Overloaded { .. } => (End::Failed, None),
        };
        match self.routers[live.router].ended(self.now, id, end) {
            Some(retry) => {
                self.again.insert((retry.at, id), (live, retry.attempt));
            }
            None => each_row(&self.row(&live, usage)),
        }
    }

    fn row(&self, live: &Live, usage: Option<Usage>) -> RoutedRow {
        let request = &live.routed.request;
        RoutedRow {
            request: request.id(),
            upstream: (live.attempts > 0).then(|| upstream(live.engine)),
            arrival: request.arrival(),
            first_token: live.first_token,
            end: self.now,
            usage,
            attempts: live.attempts,
        }
    }
}

fn upstream(engine: usize) -> UpstreamId {
    UpstreamId::new(u32::try_from(engine).unwrap_or(u32::MAX))
}
