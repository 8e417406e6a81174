//! `Idempotency-Key`: a client that does not know whether its request has been served sends it again,
//! and the work is done once.
//!
//! The first request of a key does the work. A repetition while it runs waits for the same
//! answer, and a later one is given the stored answer, for a bounded time and from bounded
//! memory. The work belongs to all who wait for it: it goes on while one of them is there, and is
//! cancelled when the last client goes away. Only answers are stored. What was refused or failed is
//! told to those who wait, and then forgotten, so that a retry runs anew.

use std::collections::{HashMap, VecDeque};
use std::future::Future;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use axum::body::Bytes;
use axum::http::{HeaderMap, HeaderName, HeaderValue};
use axum::response::Response;
use futures::FutureExt;
use futures::future::{BoxFuture, Shared, WeakShared};
use serve_core::{CancelReason, Span, TenantId, Time};
use serve_sched::driver::{Clock, RealClock};
use sha2::{Digest, Sha256};

use crate::api::Endpoint;
use crate::error::Problem;
use crate::stream::json;

const KEY_HEADER: HeaderName = HeaderName::from_static("idempotency-key");
const REPLAYED_HEADER: HeaderName = HeaderName::from_static("idempotent-replayed");

/// The longest key.
const KEY_BYTES_MAX: usize = 255;

/// What a stored answer costs beside its own bytes and those of its key: its places in two
/// collections, generously. It also bounds how many short answers there can be.
const ENTRY_BYTES: usize = 512;

type Outcome = Result<Bytes, Problem>;
type Work = BoxFuture<'static, Outcome>;

/// A key within its tenant and endpoint: another one's is not there to be found.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Key {
    pub(crate) tenant: TenantId,
    pub(crate) endpoint: Endpoint,
    pub(crate) text: String,
}

/// Tells one body from another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct BodyHash([u8; 32]);

/// The answers of keys that are known, and the work on those that are not answered yet.
#[derive(Debug)]
pub(crate) struct Answers {
    clock: RealClock,
    table: Mutex<Table<WeakShared<Work>>>,
}

/// The key in the headers of a request.
///
/// # Errors
///
/// [`Problem::Value`] for more than one, and for one that is empty, too long or not visible ASCII.
pub(crate) fn key(headers: &HeaderMap) -> Result<Option<String>, Problem> {
    let mut values = headers.get_all(KEY_HEADER).iter();
    let Some(value) = values.next() else {
        return Ok(None);
    };
    let bytes = value.as_bytes();
    let given = if values.next().is_some() {
        "several of them".to_owned()
    } else if !(1..=KEY_BYTES_MAX).contains(&bytes.len()) {
        format!("{} bytes", bytes.len())
    } else {
        match value.to_str() {
            Ok(text) if bytes.iter().all(u8::is_ascii_graphic) => {
                return Ok(Some(text.to_owned()));
            }
            _ => "other characters".to_owned(),
        }
    };
    Err(Problem::Value {
        param: "Idempotency-Key".to_owned(),
        accepted: format!("1 to {KEY_BYTES_MAX} visible ASCII characters"),
        given,
    })
}

impl Answers {
    /// Keeps answers for `ttl`, and no more of them than fit into `bytes_max`.
    pub(crate) fn new(ttl: Span, bytes_max: usize) -> Arc<Self> {
        Arc::new(Self {
            clock: RealClock::start(),
            table: Mutex::new(Table::new(ttl, bytes_max)),
        })
    }

    /// The answer to a request: a stored one, that of the same request which is running, or the one
    /// that `work` makes. It is waited for at most for `patience`.
    ///
    /// # Errors
    ///
    /// [`Problem::KeyReused`] when the key belongs to another body, or what the work ran into.
    pub(crate) async fn answer(
        self: &Arc<Self>,
        key: Key,
        body: BodyHash,
        patience: Option<Span>,
        work: impl Future<Output = Outcome> + Send + 'static,
    ) -> Result<Response, Problem> {
        match self.claim(key, body, work) {
            Claimed::Own(work) => Ok(json(work.await?)),
            Claimed::Shared(work) => {
                // The work ends by the terms of the request that began it; these may be shorter.
                let bytes = match patience {
                    None => work.await?,
                    Some(patience) => tokio::time::timeout(patience.into(), work)
                        .await
                        .map_err(|_| Problem::Cancelled(CancelReason::Deadline))??,
                };
                Ok(replayed(bytes))
            }
            Claimed::Stored(bytes) => Ok(replayed(bytes)),
            Claimed::Reused => Err(Problem::KeyReused),
        }
    }

    fn claim(
        self: &Arc<Self>,
        key: Key,
        hash: BodyHash,
        work: impl Future<Output = Outcome> + Send + 'static,
    ) -> Claimed {
        let mut table = self.lock();
        match table.find(&key, hash, self.clock.now()) {
            Found::Stored(bytes) => return Claimed::Stored(bytes),
            Found::Reused => return Claimed::Reused,
            // Nobody waits for work that is gone: it is on its way out of the table.
            Found::Running(work) => {
                if let Some(work) = work.upgrade() {
                    return Claimed::Shared(work);
                }
            }
            Found::Nothing => {}
        }
        let run = table.next_run();
        let claim = Claim {
            answers: Arc::clone(self),
            key: key.clone(),
            run,
        };
        let work = async move {
            let bytes = work.await?;
            claim.finish(bytes.clone());
            Ok(bytes)
        };
        let work = work.boxed().shared();
        // It is there until the work has been waited for to its end.
        if let Some(weak) = work.downgrade() {
            table.begin(key, hash, run, weak);
        }
        Claimed::Own(work)
    }

    fn lock(&self) -> MutexGuard<'_, Table<WeakShared<Work>>> {
        // Nothing here panics half-way through a change, so a poisoned table is a sound one.
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What a request has to wait for.
enum Claimed {
    Own(Shared<Work>),
    Shared(Shared<Work>),
    Stored(Bytes),
    Reused,
}

/// Part of the work itself: however that ends, the table hears of it.
struct Claim {
    answers: Arc<Answers>,
    key: Key,
    run: Run,
}

impl Claim {
    fn finish(&self, answer: Bytes) {
        let now = self.answers.clock.now();
        self.answers.lock().finish(&self.key, self.run, answer, now);
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        self.answers.lock().abandon(&self.key, self.run);
    }
}

impl BodyHash {
    pub(crate) fn of(body: &[u8]) -> Self {
        Self(Sha256::digest(body).into())
    }
}

fn replayed(bytes: Bytes) -> Response {
    let mut response = json(bytes);
    let yes = HeaderValue::from_static("true");
    response.headers_mut().insert(REPLAYED_HEADER, yes);
    response
}

/// Tells the runs of one key apart, one after the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Run(u64);

/// What is known of keys. It is told the time, and `R` is how running work is found.
///
/// Stored answers leave when their time is up, which each look-up and each new answer sees to, and
/// the oldest leave early for a newer one that would not fit. Running work is not counted: there is
/// as much of it as there are requests in the server, which other limits bound.
#[derive(Debug)]
struct Table<R> {
    ttl: Span,
    bytes_max: usize,
    /// Those of stored answers.
    bytes: usize,
    entries: HashMap<Key, Entry<R>>,
    /// The stored ones and when each has to leave, the oldest first.
    stored: VecDeque<(Time, Key)>,
    runs: u64,
}

#[derive(Debug)]
struct Entry<R> {
    body: BodyHash,
    state: State<R>,
}

#[derive(Debug)]
enum State<R> {
    Running(Run, R),
    Stored(Bytes),
}

/// What is known of one key.
#[derive(Debug, PartialEq, Eq)]
enum Found<R> {
    Nothing,
    Running(R),
    Stored(Bytes),
    /// The key belongs to another body.
    Reused,
}

impl<R: Clone> Table<R> {
    fn new(ttl: Span, bytes_max: usize) -> Self {
        Self {
            ttl,
            bytes_max,
            bytes: 0,
            entries: HashMap::new(),
            stored: VecDeque::new(),
            runs: 0,
        }
    }

    fn find(&mut self, key: &Key, body: BodyHash, now: Time) -> Found<R> {
        self.expire(now);
        match self.entries.get(key) {
            None => Found::Nothing,
            Some(entry) if entry.body != body => Found::Reused,
            Some(entry) => match &entry.state {
                State::Running(_, work) => Found::Running(work.clone()),
                State::Stored(answer) => Found::Stored(answer.clone()),
            },
        }
    }

    fn next_run(&mut self) -> Run {
        self.runs += 1;
        Run(self.runs)
    }

    /// Enters work on a key that has no stored answer.
    fn begin(&mut self, key: Key, body: BodyHash, run: Run, work: R) {
        let state = State::Running(run, work);
        self.entries.insert(key, Entry { body, state });
    }

    /// Stores the answer of a run, if it is still the one that is entered.
    fn finish(&mut self, key: &Key, run: Run, answer: Bytes, now: Time) {
        self.expire(now);
        if !self.is_entered(key, run) {
            return;
        }
        let cost = cost(key, &answer);
        if cost > self.bytes_max {
            self.entries.remove(key);
            return;
        }
        while self.bytes + cost > self.bytes_max && self.forget_oldest() {}
        if let Some(entry) = self.entries.get_mut(key) {
            entry.state = State::Stored(answer);
            self.bytes += cost;
            self.stored.push_back((now + self.ttl, key.clone()));
        }
    }

    /// Forgets a run that has ended without an answer.
    fn abandon(&mut self, key: &Key, run: Run) {
        if self.is_entered(key, run) {
            self.entries.remove(key);
        }
    }

    fn is_entered(&self, key: &Key, run: Run) -> bool {
        let entry = self.entries.get(key);
        entry.is_some_and(
            |entry| matches!(entry.state, State::Running(entered, _) if entered == run),
        )
    }

    fn expire(&mut self, now: Time) {
        while self.stored.front().is_some_and(|(until, _)| *until <= now) {
            self.forget_oldest();
        }
    }

    /// Whether there was one.
    fn forget_oldest(&mut self) -> bool {
        let Some((_, key)) = self.stored.pop_front() else {
            return false;
        };
        if let Some(Entry {
            state: State::Stored(answer),
            ..
        }) = self.entries.remove(&key)
        {
            self.bytes -= cost(&key, &answer);
        }
        true
    }
}

fn cost(key: &Key, answer: &Bytes) -> usize {
    ENTRY_BYTES + 2 * key.text.len() + answer.len()
}

#[cfg(test)]
mod tests {
    use super::*;

    const TTL: Span = Span::from_secs(10);
    const ROOMY: usize = 1 << 20;

    fn key(text: &str) -> Key {
        Key {
            tenant: TenantId::new(1),
            endpoint: Endpoint::Chat,
            text: text.to_owned(),
        }
    }

    fn body() -> BodyHash {
        BodyHash::of(b"{}")
    }

    fn at(secs: u64) -> Time {
        Time::ZERO + Span::from_secs(secs)
    }

    /// Runs work on a key from its beginning to its answer.
    fn answered(table: &mut Table<u32>, text: &str, answer: &'static str, now: Time) {
        assert_eq!(table.find(&key(text), body(), now), Found::Nothing);
        let run = table.next_run();
        table.begin(key(text), body(), run, 0);
        table.finish(&key(text), run, Bytes::from_static(answer.as_bytes()), now);
    }

    #[test]
    fn a_key_runs_then_is_stored_then_is_forgotten() {
        let mut table = Table::new(TTL, ROOMY);
        assert_eq!(table.find(&key("a"), body(), at(0)), Found::Nothing);
        let run = table.next_run();
        table.begin(key("a"), body(), run, 7);
        // Work has no time limit here: it ends by its own.
        assert_eq!(table.find(&key("a"), body(), at(99)), Found::Running(7));
        table.finish(&key("a"), run, Bytes::from_static(b"yes"), at(100));
        let stored = Found::Stored(Bytes::from_static(b"yes"));
        assert_eq!(table.find(&key("a"), body(), at(109)), stored);
        assert_eq!(table.find(&key("a"), body(), at(110)), Found::Nothing);
        assert_eq!(
            (table.bytes, table.entries.len(), table.stored.len()),
            (0, 0, 0)
        );
    }

    #[test]
    fn a_key_belongs_to_its_body_tenant_and_endpoint() {
        let mut table = Table::new(TTL, ROOMY);
        let run = table.next_run();
        table.begin(key("a"), body(), run, 7);
        let other = BodyHash::of(b"{ }");
        assert_eq!(table.find(&key("a"), other, at(0)), Found::Reused);
        table.finish(&key("a"), run, Bytes::new(), at(0));
        assert_eq!(table.find(&key("a"), other, at(0)), Found::Reused);
        let tenant = Key {
            tenant: TenantId::new(2),
            ..key("a")
        };
        let endpoint = Key {
            endpoint: Endpoint::Completion,
            ..key("a")
        };
        for elsewhere in [tenant, endpoint, key("A")] {
            assert_eq!(table.find(&elsewhere, other, at(0)), Found::Nothing);
        }
        assert_eq!(table.find(&key("a"), other, at(10)), Found::Nothing);
    }

    #[test]
    fn what_ends_without_an_answer_is_forgotten_and_touches_no_later_run() {
        let mut table = Table::new(TTL, ROOMY);
        let first = table.next_run();
        table.begin(key("a"), body(), first, 1);
        table.abandon(&key("a"), first);
        assert_eq!(table.find(&key("a"), body(), at(0)), Found::Nothing);
        let second = table.next_run();
        table.begin(key("a"), body(), second, 2);
        table.abandon(&key("a"), first);
        table.finish(&key("a"), first, Bytes::new(), at(0));
        assert_eq!(table.find(&key("a"), body(), at(0)), Found::Running(2));
        table.finish(&key("a"), second, Bytes::new(), at(0));
        // The work drops its claim after it has finished.
        table.abandon(&key("a"), second);
        assert_eq!(
            table.find(&key("a"), body(), at(0)),
            Found::Stored(Bytes::new())
        );
    }

    #[test]
    fn the_oldest_answers_leave_for_one_that_would_not_fit() {
        let one = cost(&key("a"), &Bytes::from_static(b"xxxx"));
        let mut table = Table::new(TTL, 2 * one);
        for text in ["a", "b", "c"] {
            answered(&mut table, text, "xxxx", at(0));
            assert!(table.bytes <= table.bytes_max, "{}", table.bytes);
        }
        assert_eq!(table.bytes, 2 * one);
        assert_eq!(table.find(&key("a"), body(), at(0)), Found::Nothing);
        let stored = Found::Stored(Bytes::from_static(b"xxxx"));
        assert_eq!(table.find(&key("b"), body(), at(0)), stored);
        assert_eq!(table.find(&key("c"), body(), at(0)), stored);
    }

    #[test]
    fn an_answer_that_can_never_fit_is_not_stored_and_costs_no_other() {
        let mut table = Table::new(TTL, cost(&key("a"), &Bytes::new()));
        answered(&mut table, "a", "", at(0));
        answered(&mut table, "b", "x", at(0));
        assert_eq!(
            table.find(&key("a"), body(), at(0)),
            Found::Stored(Bytes::new())
        );
        assert_eq!(table.find(&key("b"), body(), at(0)), Found::Nothing);
    }

    #[test]
    fn memory_stays_bounded_and_old_answers_leave_unasked() {
        let mut table = Table::new(TTL, 64 * ENTRY_BYTES);
        for round in 0..10_000_u64 {
            answered(&mut table, &round.to_string(), "x", at(round / 1_000));
            assert!(table.entries.len() < 64, "{}", table.entries.len());
            assert_eq!(table.entries.len(), table.stored.len());
        }
        answered(&mut table, "last", "x", at(1_000));
        assert_eq!(table.entries.len(), 1);
    }

    #[test]
    fn a_key_is_short_visible_ascii() {
        let headers = |value: &[u8]| {
            let value = HeaderValue::from_bytes(value).unwrap();
            HeaderMap::from_iter([(KEY_HEADER, value)])
        };
        let longest = "k".repeat(KEY_BYTES_MAX);
        for good in ["a", "\"8e03978e-40d5-43dd-bc93-6894a57f9324\"", &longest] {
            assert_eq!(
                super::key(&headers(good.as_bytes())),
                Ok(Some(good.to_owned()))
            );
        }
        assert_eq!(super::key(&HeaderMap::new()), Ok(None));
        let too_long = "k".repeat(KEY_BYTES_MAX + 1);
        for bad in [b"".as_slice(), b"a b", b"\xc3\xa4", too_long.as_bytes()] {
            let message = super::key(&headers(bad)).unwrap_err().to_string();
            assert!(
                message.contains("1 to 255 visible ASCII characters"),
                "{message}"
            );
        }
        let mut twice = headers(b"a");
        twice.append(KEY_HEADER, HeaderValue::from_static("b"));
        assert!(super::key(&twice).is_err());
    }
}
