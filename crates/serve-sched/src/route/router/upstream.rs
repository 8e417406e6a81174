//! One upstream in a router's book: what is in flight there, how fast it has been, what is cached there.

use std::collections::BTreeMap;

use serve_core::{Span, Time};

use super::health::Health;
use super::history::{Held, History, KEPT};
use super::told::{Terms, View};
use super::trial::Trial;
use crate::route::parts::{Learned, Lru, Speed};

/// What a router knows of an upstream.
#[derive(Debug)]
pub(super) struct Upstream {
    pub(super) trial: Option<Trial>,
    pub(super) draining: bool,
    pub(super) down: bool,
    pub(super) busy_until: Time,
    pub(super) health: Health,
    /// Names of blocks that are cached there.
    pub(super) cache: Lru<()>,
    pub(super) learned: Learned,
    pub(super) given_secs: f64,
    /// The first turn after it has joined.
    pub(super) first_turn: u64,
    /// The first turn of which something may be cached there.
    cached_turn: u64,
    learned_at: Time,
    own: Held,
    /// What waits for its first token, in the order of sending.
    queue: BTreeMap<u64, Waiting>,
    /// When a first token came last.
    progressed: Time,
    together: Option<Together>,
    history: History,
    others: Option<(Time, Held)>,
}

#[derive(Clone, Copy, Debug)]
struct Waiting {
    sent: Time,
    tokens: u32,
}

/// First tokens that came at one time: of one step.
#[derive(Clone, Copy, Debug)]
struct Together {
    at: Time,
    requests: u32,
    tokens: u64,
    secs: f64,
}

/// A request as its upstream's book has it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Place {
    /// Counted up by each request that is sent.
    pub(super) turn: u64,
    /// Prompt tokens to run.
    pub(super) tokens: u32,
    /// KV positions held.
    pub(super) held_tokens: u64,
}

/// For how long a speed of its own is believed that nothing confirms.
const BELIEVED: Span = Span::from_secs(30);

impl Upstream {
    pub(super) fn new(terms: &Terms) -> Self {
        Self {
            trial: terms.trial_percent.map(Trial::new),
            draining: false,
            down: false,
            busy_until: Time::ZERO,
            health: Health::default(),
            cache: Lru::new(terms.cache_blocks),
            learned: Learned::default(),
            given_secs: 0.0,
            first_turn: 0,
            cached_turn: 0,
            learned_at: Time::ZERO,
            own: Held::default(),
            queue: BTreeMap::new(),
            progressed: Time::ZERO,
            together: None,
            history: History::default(),
            others: None,
        }
    }

    /// Whether a request may be sent there at all, its health aside.
    pub(super) fn is_open(&self, now: Time) -> bool {
        let worse = self.trial.is_some_and(|trial| trial.worse().is_some());
        !self.draining && !self.down && !worse && self.busy_until <= now
    }

    /// Whether it is one of those that a policy chooses from.
    pub(super) fn is_candidate(&self, now: Time) -> bool {
        self.is_open(now) && self.trial.is_none() && self.health.serves()
    }

    /// How fast it has been, where that is known and not long ago: what was found slow is sent nothing, and nothing is learned
    /// of it then, so that after a while it is taken for one of all again.
    pub(super) fn speed(&self, now: Time) -> Option<Speed> {
        let is_known = self.learned.is_enough() && now.since(self.learned_at) <= BELIEVED;
        is_known.then(|| self.learned.read())
    }

    /// What this router has in flight there.
    pub(super) fn own(&self) -> &Held {
        &self.own
    }

    /// What anybody has in flight there.
    pub(super) fn held(&self, now: Time) -> Held {
        self.own.plus(self.others(now).1)
    }

    /// How long ago others were looked at, and what they had then.
    fn others(&self, now: Time) -> (Span, Held) {
        let others = self.others.map(|(at, held)| (now.since(at), held));
        others.filter(|&(age, _)| age <= KEPT).unwrap_or_default()
    }

    /// Seconds until everything that waits has its first token. What others had waiting has been worked at since.
    pub(super) fn wait_secs(&self, now: Time, speed: &Speed) -> f64 {
        let secs = |held: &Held| speed.prefill_secs(held.waiting, held.waiting_tokens);
        let (age, others) = self.others(now);
        let others = (secs(&others) - age.as_secs_f64()).max(0.0);
        let Some(head) = self.queue.values().next() else {
            return others;
        };
        let worked = now.since(self.progressed.max(head.sent)).as_secs_f64();
        let worked = worked.min(speed.prefill_secs(1, u64::from(head.tokens)));
        others + (secs(&self.own) - worked).max(0.0)
    }

    pub(super) fn sent(&mut self, now: Time, place: Place) {
        self.learn(now);
        let waiting = Waiting {
            sent: now,
            tokens: place.tokens,
        };
        self.queue.insert(place.turn, waiting);
        self.own = self.own.plus(Held {
            in_flight: 1,
            waiting: 1,
            waiting_tokens: u64::from(place.tokens),
            running_tokens: place.held_tokens,
        });
        self.history.note(now, self.own);
    }

    /// A request has its first token: the seconds that its turn took. `at` may lie in the past, where nobody has said so in
    /// time.
    pub(super) fn first_token(&mut self, now: Time, at: Time, place: Place) -> f64 {
        let Some(waiting) = self.queue.remove(&place.turn) else {
            return 0.0;
        };
        let turn = at.since(self.progressed.max(waiting.sent)).as_secs_f64();
        self.progressed = self.progressed.max(at);
        let tokens = u64::from(place.tokens);
        match &mut self.together {
            Some(together) if together.at == at => {
                together.requests += 1;
                together.tokens += tokens;
            }
            _ => {
                self.learn(at);
                self.together = Some(Together {
                    at,
                    requests: 1,
                    tokens,
                    secs: turn,
                });
            }
        }
        self.waits_no_more(now, place);
        turn
    }

    /// A request has ended, be it before its first token.
    pub(super) fn ended(&mut self, now: Time, place: Place) {
        self.learn(now);
        if self.queue.remove(&place.turn).is_some() {
            self.waits_no_more(now, place);
        }
        self.own = self.own.less(Held {
            in_flight: 1,
            running_tokens: place.held_tokens,
            ..Held::default()
        });
        self.history.note(now, self.own);
    }

    /// What others had there is what it says that it had, less what this router had there then.
    pub(super) fn report(&mut self, now: Time, view: &View) {
        let is_newer = self.others.is_none_or(|(at, _)| at <= view.at);
        if is_newer && view.at <= now && now.since(view.at) <= KEPT {
            let there = Held {
                in_flight: view.in_flight,
                waiting: view.waiting,
                waiting_tokens: view.waiting_tokens,
                running_tokens: view.running_tokens,
            };
            self.others = Some((view.at, there.less(self.history.at(view.at))));
        }
    }

    /// Tokens at the start of a chain that are cached there: up to the first block that is not known, whatever is known after it,
    /// as an upstream may evict any. O(blocks that are).
    pub(super) fn cached_tokens(&self, chain: &[u64], block_tokens: u32) -> u32 {
        let blocks = chain
            .iter()
            .take_while(|&&block| self.cache.get(block).is_some())
            .count();
        u32::try_from(blocks).map_or(u32::MAX, |blocks| blocks.saturating_mul(block_tokens))
    }

    /// Whether what was sent in a turn may still be cached there.
    pub(super) fn keeps(&self, turn: u64) -> bool {
        self.cache.capacity() > 0 && turn >= self.cached_turn
    }

    /// Nothing of before this turn is cached there any more.
    pub(super) fn empty(&mut self, turn: u64) {
        self.cache.clear();
        self.cached_turn = turn;
    }

    /// A prompt is run there, and cached then.
    pub(super) fn caches(&mut self, chain: &[u64]) {
        for &block in chain.iter().rev() {
            self.cache.put(block, ());
        }
    }

    fn waits_no_more(&mut self, now: Time, place: Place) {
        self.own = self.own.less(Held {
            waiting: 1,
            waiting_tokens: u64::from(place.tokens),
            ..Held::default()
        });
        self.history.note(now, self.own);
    }

    /// No more first tokens come of a step that is over.
    fn learn(&mut self, now: Time) {
        if let Some(step) = self.together.take_if(|together| together.at < now) {
            if step.at.since(self.learned_at) > BELIEVED {
                self.learned = Learned::default();
            }
            self.learned_at = step.at;
            self.learned
                .prefilled(step.requests, step.tokens, step.secs);
        }
    }
}
