//! Take this request, or refuse it, and when may it come back?
//!
//! Policies compose in order: the first that refuses decides, and only when all have agreed does any
//! of them count the request.

mod concurrency_limit;
mod deadline_prediction;
mod latency_budget;
mod queue_cap;
mod token_backlog;
mod token_bucket;

pub use concurrency_limit::ConcurrencyLimit;
pub use deadline_prediction::DeadlinePrediction;
pub use latency_budget::LatencyBudget;
pub use queue_cap::{QUEUE_CAP, QueueCap};
pub use token_backlog::TokenBacklog;
pub use token_bucket::{Cost, Quota, TokenBucket};

use serve_core::{CancelReason, Class, Refusal, Request, RequestId, Span, Time, Usage};

use crate::Pace;
use crate::settings::{Row, Settings};

/// Every admission policy with its settings, in the order in which they are asked: cheap and certain
/// limits first, predictions last, as the first that refuses names the reason.
pub const ADMISSIONS: &[Admission] = &[
    queue_cap::POLICY,
    concurrency_limit::POLICY,
    token_bucket::POLICY,
    deadline_prediction::POLICY,
    token_backlog::POLICY,
    latency_budget::POLICY,
];

/// One admission policy. Unlike those of other families, any number of them hold at once.
pub struct Admission {
    /// The name, in the spelling of journals.
    pub name: &'static str,
    /// The settings that it owns. With their defaults it may be off.
    pub settings: &'static [&'static Row],
    /// Makes the policies that the settings ask for, in the order in which they are asked; none where
    /// it is off.
    pub build: fn(&Settings) -> Vec<Box<dyn Admit>>,
    /// Makes the policy with its default parameters, as library users have it.
    pub by_default: fn() -> Box<dyn Admit>,
}

/// A rule for taking requests in. The one method that matters is [`admit`](Self::admit).
///
/// A request that was preempted is not asked about again: it has been admitted.
pub trait Admit: Send {
    /// The name in the journal.
    fn name(&self) -> &'static str;

    /// Takes the request or refuses it. Counts nothing: a later policy may still refuse.
    ///
    /// # Errors
    ///
    /// The [`Refusal`]: *later*, with a time where one is known, or *never*.
    fn admit(&mut self, request: &Request, load: &Load<'_>) -> Result<(), Refusal>;

    /// Every policy took the request: now it counts.
    fn admitted(&mut self, request: &Request, load: &Load<'_>) {
        let _ = (request, load);
    }

    /// A request that was [admitted](Self::admitted) has ended, however it did: said once of each.
    fn ended(&mut self, ended: &Ended<'_>, load: &Load<'_>) {
        let _ = (ended, load);
    }
}

/// How an admitted request has ended.
#[derive(Clone, Copy, Debug)]
pub struct Ended<'a> {
    /// The request.
    pub request: &'a Request,
    /// Why it is over.
    pub cause: Cause,
    /// What it used.
    pub usage: Usage,
    /// How long after its first start; `None` if it never started.
    pub ran: Option<Span>,
}

/// Why an admitted request is over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cause {
    /// It ended by itself.
    Finished,
    /// It was cancelled, by its client, by a time limit or by a drain.
    Cancelled(CancelReason),
    /// The engine failed under it.
    Failed,
    /// It was displaced from a full queue.
    Displaced,
}

/// What a policy may know of the moment.
#[derive(Clone, Copy, Debug)]
pub struct Load<'a> {
    /// The time.
    pub now: Time,
    /// Requests waiting.
    pub waiting: u32,
    /// Prompt tokens of the requests that wait.
    pub waiting_prompt_tokens: u64,
    /// Requests started and not ended.
    pub running: u32,
    /// Requests that can run side by side at most.
    pub slots: u32,
    /// Whether a waiting request may join what runs; not in a static batch.
    pub joinable: bool,
    /// How fast the engine has been.
    pub pace: &'a Pace,
    /// When each running request started, the longest-running first.
    pub(crate) started: &'a [(Time, RequestId)],
    pub(crate) waiting_by_class: &'a [u32],
    /// Requests waiting that go after the one that is asked about.
    pub(crate) behind: u32,
}

impl<'a> Load<'a> {
    /// The load of an idle engine at the origin of time, to start from in a test of a policy.
    pub const fn idle(slots: u32, pace: &'a Pace) -> Self {
        Self {
            now: Time::ZERO,
            waiting: 0,
            waiting_prompt_tokens: 0,
            running: 0,
            slots,
            joinable: true,
            pace,
            started: &[],
            waiting_by_class: &[],
            behind: 0,
        }
    }

    /// Requests of `class` waiting.
    pub fn waiting_of(&self, class: Class) -> u32 {
        let rank = usize::from(class.rank());
        self.waiting_by_class.get(rank).copied().unwrap_or(0)
    }

    /// Requests waiting that go before the one that is asked about, as far as the order says so on
    /// its arrival ([`Order::lane_on_arrival`](crate::order::Order::lane_on_arrival)); all that
    /// wait, where it does not.
    pub fn ahead(&self) -> u32 {
        self.waiting.saturating_sub(self.behind)
    }

    /// Slots that waiting requests will be given as soon as the engine looks.
    pub fn slots_free(&self) -> u32 {
        match self.joinable || self.running == 0 {
            true => self.slots.saturating_sub(self.running),
            false => 0,
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

    /// How long a request that comes now waits until it starts, behind those that are
    /// [`ahead`](Self::ahead); `None` while it would have to wait and no request has ended yet.
    ///
    /// A slot ends a request every `service time`, counted from when its present one started. So
    /// with `k` requests queued ahead on `n` slots,
    ///
    /// ```text
    /// wait = floor(k / n) x service time + what the (k mod n)-th of those running has left
    /// ```
    ///
    /// In a static batch all have the same left, in a continuous one each its own. The mean service
    /// time stands for every request's: lengths that vary widely make it a guess about the mean.
    ///
    /// In tiers a request waits for its own class and those above it. Under every other order it is
    /// taken to go last, as in first come, first served: one that will overtake others, because it
    /// is due sooner, shorter or of a tenant that has had less, is predicted to start too late. Who
    /// comes afterwards and overtakes *it* is not foreseen.
    pub fn time_to_start(&self) -> Option<Span> {
        let free = self.slots_free();
        if self.ahead() < free {
            return Some(Span::ZERO);
        }
        let (ahead, slots) = (self.ahead() - free, self.slots.max(1));
        let service = self.pace.service_time()?;
        let rounds = service * u64::from(ahead / slots);
        Some(rounds + self.left_of_running((ahead % slots) as usize, service))
    }

    /// How long this request takes from its start to its end: as long as others have taken of
    /// late, or what its own prompt and output limit take at the present speed if that is less.
    /// `None` while neither is known.
    pub fn time_to_serve(&self, request: &Request) -> Option<Span> {
        let usual = self.pace.service_time();
        let at_most = self.pace.prefill_rate().zip(self.pace.step_time());
        let at_most = at_most.map(|(rate, step)| {
            let prefill = Span::from_secs_f64(f64::from(request.prompt_tokens()) / rate);
            prefill + step * u64::from(request.output_tokens_max() - 1)
        });
        match (usual, at_most) {
            (Some(usual), Some(at_most)) => Some(usual.min(at_most)),
            (one, other) => one.or(other),
        }
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

#[cfg(test)]
mod tests {
    use super::*;

    /// Two slots, each taking 100 ms for a request; the time is 1,000 ms.
    fn wait_ms(waiting: u32, started_ms: &[u64], joinable: bool) -> Option<u64> {
        let mut pace = Pace::default();
        pace.served(Span::from_millis(100));
        let started: Vec<_> = started_ms
            .iter()
            .map(|&at| (Time::from_millis(at), RequestId::new(at)))
            .collect();
        let load = Load {
            now: Time::from_millis(1_000),
            waiting,
            running: started.len() as u32,
            started: &started,
            joinable,
            ..Load::idle(2, &pace)
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
        assert_eq!(Load { waiting: 1, ..load }.time_to_start(), None);
    }

    #[test]
    fn a_short_request_takes_no_longer_than_its_limit_allows() {
        let mut pace = Pace::default();
        pace.served(Span::from_secs(10));
        pace.stepped(100, 1, Span::from_millis(10));
        let load = Load::idle(1, &pace);
        let serve = |prompt: usize, output| {
            let prompt = vec![serve_core::TokenId::new(1); prompt];
            let request = Request::new(RequestId::new(1), Time::ZERO, prompt, output).unwrap();
            load.time_to_serve(&request).map(Span::as_millis)
        };
        assert_eq!(serve(200, 11), Some(20 + 100));
        assert_eq!(serve(200, 100_000), Some(10_000));
    }
}
