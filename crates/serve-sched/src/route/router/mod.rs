//! The router: the book of what is in flight where, from which the policy is shown its candidates.
//!
//! `choose.rs` decides, `ends.rs` learns from what comes back and holds it for or against its upstream, `upstream.rs` is one upstream's part of the book, `health.rs` ejects, `trial.rs` accuses what is on trial,
//! `history.rs` takes one's own requests off what an upstream reports, `told.rs` is what is said in and out.

mod choose;
mod ends;
mod health;
mod history;
mod told;
mod trial;
mod upstream;

pub use told::{Doubt, End, NoUpstream, Retry, RouterSettings, Sent, Standing, Terms, View, Why};

use std::collections::BTreeMap;
use std::fmt;

use serve_core::{RequestId, Span, Time};
use slab::Slab;

use crate::ids::IdTable;
use crate::retry_budget::RetryBudget;
use crate::route::parts::Lru;
use crate::route::{Attempt, Route, UpstreamId, Work};
use trial::Others;
use upstream::{Place, Upstream};

/// Sends each request to one of several upstreams. Does no I/O, reads no clock: every input carries `now`, which never goes back
/// (an earlier `now` counts as the latest one).
///
/// - **Upstreams**: [`join`](Self::join), [`leave`](Self::leave), [`drain`](Self::drain), [`down`](Self::down), [`up`](Self::up),
///   [`report`](Self::report), [`stored`](Self::stored), [`evicted`](Self::evicted), [`emptied`](Self::emptied).
/// - **Requests**: [`send`](Self::send) chooses and books at once, so that a burst is not sent by one picture of the load; then
///   [`first_token`](Self::first_token), and [`ended`](Self::ended) once for each that was sent.
/// - **Readings**: [`standing`](Self::standing), [`in_flight`](Self::in_flight).
///
/// `send` takes O(blocks of the chain) for each upstream that has them cached and for one more, everything else O(log requests in flight) but for
/// the end of an answer, O(upstreams). Remembered are the requests in flight, [`Terms::cache_blocks`] names for each upstream
/// and [`RouterSettings::sessions_max`] conversations.
///
/// ```
/// use serve_sched::route::{End, PredictedEnd, Router, RouterSettings, Terms, UpstreamId, Work};
/// use serve_sched::serve_core::{RequestId, Time, Usage};
///
/// let mut router = Router::new(Box::new(PredictedEnd), RouterSettings::default());
/// router.join(UpstreamId::new(0), Terms::default());
/// router.join(UpstreamId::new(1), Terms::default());
/// let (first, second) = (RequestId::new(1), RequestId::new(2));
/// let now = Time::ZERO;
/// let one = router.send(now, first, &Work::new(4_000, 100))?;
/// let other = router.send(now, second, &Work::new(4_000, 100))?;
/// assert_ne!(one.upstream, other.upstream);
///
/// let now = Time::from_millis(400);
/// router.first_token(now, first);
/// let now = Time::from_secs(2);
/// let usage = Usage { prompt_tokens: 4_000, output_tokens: 100, ..Usage::default() };
/// assert_eq!(router.ended(now, first, End::Answered(usage)), None);
/// let retry = router.ended(now, second, End::Failed).expect("there is a budget");
/// let again = Work { attempt: retry.attempt, ..Work::new(4_000, 100) };
/// assert_eq!(router.send(retry.at, second, &again)?.upstream, one.upstream);
/// # Ok::<(), serve_sched::route::NoUpstream>(())
/// ```
pub struct Router {
    policy: Box<dyn Route>,
    settings: RouterSettings,
    retries: RetryBudget,
    now: Time,
    turns: u64,
    upstreams: BTreeMap<UpstreamId, Upstream>,
    sessions: Lru<Session>,
    flights: Slab<Flight>,
    ids: IdTable,
    /// What upstreams that are not on trial do.
    others: Others,
}

/// Where a conversation was last, and how many tokens of it lie there.
#[derive(Clone, Copy, Debug)]
struct Session {
    upstream: UpstreamId,
    turn: u64,
    tokens: u32,
}

/// A request that was sent and has not ended.
#[derive(Clone, Copy, Debug)]
struct Flight {
    upstream: UpstreamId,
    place: Place,
    deadline: Option<Time>,
    attempt: Attempt,
    is_probe: bool,
    sent: Time,
    first: Option<First>,
}

/// The first token of a request.
#[derive(Clone, Copy, Debug)]
struct First {
    at: Time,
    /// What its turn took.
    secs: f64,
    /// KV positions that were held beside it.
    running_tokens: u64,
}

/// How long a busy upstream is left alone that does not say for how long, and the most that it may say.
const PAUSE: Span = Span::from_millis(100);
const PAUSE_MAX: Span = Span::from_secs(60);

impl Router {
    /// A router without upstreams.
    pub fn new(policy: Box<dyn Route>, settings: RouterSettings) -> Self {
        Self {
            policy,
            settings,
            retries: RetryBudget::new(settings.retries, settings.seed),
            now: Time::ZERO,
            turns: 0,
            upstreams: BTreeMap::new(),
            sessions: Lru::new(settings.sessions_max),
            flights: Slab::new(),
            ids: IdTable::default(),
            others: Others::default(),
        }
    }

    /// An upstream is there and may be sent requests. One that is known begins anew, with these terms; what it has in flight
    /// and how fast it was stays, and what is cached there as long as there is room for as much.
    pub fn join(&mut self, id: UpstreamId, terms: Terms) {
        let given = self.upstreams.values().map(|upstream| upstream.given_secs);
        let least = given.min_by(f64::total_cmp).unwrap_or(0.0);
        let fresh = Upstream::new(&terms);
        match self.upstreams.get_mut(&id) {
            Some(known) => {
                (known.trial, known.health) = (fresh.trial, fresh.health);
                (known.draining, known.down) = (false, false);
                known.busy_until = fresh.busy_until;
                if known.cache.capacity() != fresh.cache.capacity() {
                    known.cache = fresh.cache;
                    known.empty(self.turns);
                }
            }
            None => {
                let mut joined = fresh;
                joined.given_secs = least;
                joined.first_turn = self.turns;
                joined.empty(self.turns);
                self.upstreams.insert(id, joined);
            }
        }
    }

    /// An upstream is gone, and what was known of it. What it had in flight is still to be [ended](Self::ended).
    pub fn leave(&mut self, id: UpstreamId) {
        self.upstreams.remove(&id);
    }

    /// Nothing is sent to an upstream any more until it [joins](Self::join) again; what it has goes on.
    pub fn drain(&mut self, id: UpstreamId) {
        if let Some(upstream) = self.upstreams.get_mut(&id) {
            upstream.draining = true;
        }
    }

    /// An upstream is known to be down, as by a health check: nothing is sent to it until it is [up](Self::up).
    pub fn down(&mut self, id: UpstreamId) {
        if let Some(upstream) = self.upstreams.get_mut(&id) {
            upstream.down = true;
        }
    }

    /// An upstream is up again. One that was ejected stays so: a health check answers long before requests do.
    pub fn up(&mut self, id: UpstreamId) {
        if let Some(upstream) = self.upstreams.get_mut(&id) {
            upstream.down = false;
        }
    }

    /// What an upstream has said that it has in flight. What this router had there at that time is taken off; the rest is what
    /// others have. A view of more than two seconds ago says nothing, and no view is no load.
    pub fn report(&mut self, now: Time, id: UpstreamId, view: &View) {
        let now = self.advance(now);
        if let Some(upstream) = self.upstreams.get_mut(&id) {
            upstream.report(now, view);
        }
    }

    /// An upstream has said that these blocks are cached there, the earlier ones of a chain first.
    pub fn stored(&mut self, id: UpstreamId, blocks: &[u64]) {
        if let Some(upstream) = self.upstreams.get_mut(&id) {
            upstream.caches(blocks);
        }
    }

    /// An upstream has said that it has lost these blocks.
    pub fn evicted(&mut self, id: UpstreamId, blocks: &[u64]) {
        if let Some(upstream) = self.upstreams.get_mut(&id) {
            blocks
                .iter()
                .for_each(|&block| upstream.cache.remove(block));
        }
    }

    /// An upstream has lost all that it had cached, as when it was started anew.
    pub fn emptied(&mut self, id: UpstreamId) {
        if let Some(upstream) = self.upstreams.get_mut(&id) {
            upstream.empty(self.turns);
        }
    }

    /// Chooses an upstream for a request and counts the request as sent. One of the same id that is in flight is taken to have
    /// ended without a word.
    ///
    /// # Errors
    ///
    /// [`NoUpstream`]: nothing was counted, and the request may be sent later.
    pub fn send(
        &mut self,
        now: Time,
        request: RequestId,
        work: &Work<'_>,
    ) -> Result<Sent, NoUpstream> {
        let now = self.advance(now);
        self.ended(now, request, End::Ignored);
        let sent = self.choose(work)?;
        if work.attempt.failed == 0 {
            self.retries.original();
        }
        let place = Place {
            turn: self.turns,
            tokens: work.prompt_tokens.saturating_sub(sent.cached_tokens),
            held_tokens: work.held_tokens(),
        };
        self.turns += 1;
        let flight = Flight {
            upstream: sent.upstream,
            place,
            deadline: work.deadline,
            attempt: work.attempt,
            is_probe: sent.why == Why::Probe,
            sent: now,
            first: None,
        };
        let slot = self.flights.insert(flight);
        self.ids.insert(request, slot);
        if let Some(upstream) = self.upstreams.get_mut(&sent.upstream) {
            upstream.sent(now, place);
            upstream.caches(work.prefix);
        }
        if let Some(session) = work.session {
            let tokens = work.prompt_tokens.saturating_add(work.output_tokens);
            let (upstream, turn) = (sent.upstream, place.turn);
            let session_at = Session {
                upstream,
                turn,
                tokens,
            };
            self.sessions.put(session, session_at);
        }
        Ok(sent)
    }

    /// The first token of a request has come. Without effect the second time.
    pub fn first_token(&mut self, now: Time, request: RequestId) {
        let now = self.advance(now);
        if let Some(slot) = self.ids.get(request) {
            self.take_first_token(slot, now);
        }
    }

    /// A request has ended at its upstream: when it may be sent again, if it failed before its first token, the budget has a
    /// retry left and its deadline allows. Without effect on one that is not in flight.
    pub fn ended(&mut self, now: Time, request: RequestId, end: End) -> Option<Retry> {
        let now = self.advance(now);
        let slot = self.ids.get(request)?;
        if let End::Answered(usage) = end {
            self.answered_whole(slot, usage);
        }
        self.ids.remove(request);
        let flight = self.flights.remove(slot);
        let ratio = match end {
            End::Answered(usage) => self.learn(&flight, usage),
            _ => None,
        };
        self.judge(&flight, end, ratio);
        if let Some(upstream) = ends::of(&mut self.upstreams, &flight) {
            upstream.ended(now, flight.place);
            if let End::Busy { retry_after } = end {
                upstream.busy_until = now + retry_after.unwrap_or(PAUSE).min(PAUSE_MAX);
            }
        }
        self.retry(&flight, end)
    }

    /// What the router makes of an upstream; `None` if it has not joined.
    pub fn standing(&self, id: UpstreamId) -> Option<Standing> {
        let upstream = self.upstreams.get(&id)?;
        let ejected = upstream.health.ejected_until();
        Some(if upstream.down {
            Standing::Down
        } else if upstream.draining {
            Standing::Draining
        } else if let Some(doubt) = upstream.trial.and_then(|trial| trial.worse()) {
            Standing::Worse(doubt)
        } else if upstream.trial.is_some() {
            Standing::OnTrial
        } else if let Some(until) = ejected.filter(|&until| until > self.now) {
            Standing::Ejected { until }
        } else if ejected.is_some() {
            Standing::Probation
        } else if upstream.busy_until > self.now {
            Standing::Busy {
                until: upstream.busy_until,
            }
        } else {
            Standing::Serving
        })
    }

    /// Requests that this router has in flight at an upstream.
    pub fn in_flight(&self, id: UpstreamId) -> u32 {
        let upstream = self.upstreams.get(&id);
        upstream.map_or(0, |upstream| upstream.own().in_flight)
    }

    fn advance(&mut self, now: Time) -> Time {
        self.now = self.now.max(now);
        self.now
    }
}

impl fmt::Debug for Router {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let standing = self.upstreams.keys().map(|&id| (id, self.standing(id)));
        let mut debug = f.debug_struct("Router");
        debug.field("policy", &self.policy);
        debug.field("upstreams", &standing.collect::<BTreeMap<_, _>>());
        debug.field("in_flight", &self.flights.len());
        debug.finish_non_exhaustive()
    }
}
