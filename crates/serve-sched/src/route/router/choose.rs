//! Which upstream gets a request: one on probation, one on trial whose turn it is, or the cheapest by the policy.

use serve_core::Span;
use serve_core::rng::mix2;

use super::Router;
use super::told::{NoUpstream, Sent, Why};
use super::trial::Trial;
use super::upstream::Upstream;
use crate::route::parts::{Candidate, Speed};
use crate::route::{UpstreamId, Work};

/// One that is slower than the fastest by less is as fast: noise is no reason to send everything to one of equals.
const ALIKE: f64 = 1.25;

/// How much of what was given is forgotten with each request.
const FORGET: f64 = 1.0 / 1024.0;

impl Router {
    /// Where the request goes, which counts as given.
    pub(super) fn choose(&mut self, work: &Work<'_>) -> Result<Sent, NoUpstream> {
        let all = self.learned_of(|_| true).read();
        let alone = |speed: &Speed| speed.service_secs(work.prompt_tokens, work.output_tokens, 0);
        let speeds = self.candidates(work);
        let speeds = speeds.filter_map(|(_, upstream)| upstream.speed(self.now));
        let fastest = speeds.min_by(|one, other| alone(one).total_cmp(&alone(other)));
        let known = Known {
            fastest: fastest.unwrap_or(all),
            least: self.given_least(work),
            whole_secs: alone(&all),
        };
        let (id, why) = self
            .probe(work)
            .or_else(|| self.trial(work))
            .or_else(|| self.cheapest(work, &known))
            .ok_or_else(|| self.nobody(work))?;
        let Some(upstream) = self.upstreams.get(&id) else {
            return Err(NoUpstream::Down);
        };
        let candidate = self.candidate(id, upstream, work, &known);
        let cached_tokens = candidate.cached_tokens;
        let uncached = u64::from(work.prompt_tokens - cached_tokens);
        let wait = candidate.wait_secs;
        let first_token = wait + candidate.speed.prefill_secs(1, uncached);
        let end = wait + candidate.service_secs(work, cached_tokens);
        self.give(id, known.least, known.whole_secs);
        Ok(Sent {
            upstream: id,
            why,
            cached_tokens,
            first_token: Span::from_secs_f64(first_token),
            end: Span::from_secs_f64(end),
        })
    }

    /// One that was ejected and shows with this request whether it works again. A request that has failed before is no probe.
    fn probe(&mut self, work: &Work<'_>) -> Option<(UpstreamId, Why)> {
        if work.attempt.failed > 0 {
            return None;
        }
        let now = self.now;
        let mut known = self.upstreams.iter_mut();
        let (&id, upstream) = known
            .find(|(_, upstream)| upstream.is_open(now) && upstream.health.wants_probe(now))?;
        upstream.health.probe();
        Some((id, Why::Probe))
    }

    /// One on trial whose turn it is, of several the one that was given the least, so that shares of more than all there is
    /// are cut alike. Each request counts, so that a share is a share of all.
    fn trial(&mut self, work: &Work<'_>) -> Option<(UpstreamId, Why)> {
        let mut due: Option<(UpstreamId, &mut Upstream)> = None;
        for (&id, upstream) in &mut self.upstreams {
            let is_open = upstream.is_open(self.now) && work.attempt.failed_at != Some(id);
            let trial = upstream.trial.as_mut().filter(|_| is_open);
            let is_due = trial.is_some_and(Trial::is_due);
            let given = upstream.given_secs;
            if is_due
                && due
                    .as_ref()
                    .is_none_or(|(_, least)| given < least.given_secs)
            {
                due = Some((id, upstream));
            }
        }
        let (id, upstream) = due?;
        upstream.trial.as_mut()?.given();
        Some((id, Why::Trial))
    }

    /// The cheapest by the policy, of equals the one that was given the least.
    fn cheapest(&self, work: &Work<'_>, known: &Known) -> Option<(UpstreamId, Why)> {
        let candidates = self.candidates(work);
        let priced = candidates.map(|(id, upstream)| {
            let candidate = self.candidate(id, upstream, work, known);
            let cost = ranked(self.policy.cost(work, &candidate));
            let draw = mix2(self.settings.seed, u64::from(id.get()));
            (cost, upstream.given_secs, draw, id)
        });
        let cheapest = priced.min_by(|one, other| {
            let by_cost = one.0.total_cmp(&other.0);
            let by_given = by_cost.then(one.1.total_cmp(&other.1));
            by_given.then(one.2.cmp(&other.2))
        });
        cheapest.map(|(_, _, _, id)| (id, Why::Policy))
    }

    fn nobody(&self, work: &Work<'_>) -> NoUpstream {
        let untils = self.upstreams.iter().filter_map(|(id, upstream)| {
            let (until, failed_at) = (upstream.busy_until, work.attempt.failed_at);
            let opens = upstream.is_open(until) && failed_at != Some(*id);
            opens.then_some(until)
        });
        match untils.min() {
            Some(until) => NoUpstream::Busy {
                retry_after: until.since(self.now),
            },
            None => NoUpstream::Down,
        }
    }

    /// Those that the policy chooses from; where there is none, those on trial out of their turn and those that are ejected.
    fn candidates(&self, work: &Work<'_>) -> impl Iterator<Item = (UpstreamId, &Upstream)> {
        let (now, failed_at) = (self.now, work.attempt.failed_at);
        let known = self.upstreams.iter().map(|(&id, upstream)| (id, upstream));
        let open =
            known.filter(move |(id, upstream)| upstream.is_open(now) && failed_at != Some(*id));
        let is_last_resort = !open.clone().any(|(_, upstream)| upstream.is_candidate(now));
        open.filter(move |(_, upstream)| is_last_resort || upstream.is_candidate(now))
    }

    fn candidate(
        &self,
        id: UpstreamId,
        upstream: &Upstream,
        work: &Work<'_>,
        known: &Known,
    ) -> Candidate {
        let held = upstream.held(self.now);
        let running = held.running_tokens.saturating_add(work.held_tokens());
        let secs =
            |speed: &Speed| speed.service_secs(work.prompt_tokens, work.output_tokens, running);
        let own = upstream.speed(self.now);
        let own = own.filter(|own| secs(own) > ALIKE * secs(&known.fastest));
        let speed = own.unwrap_or(known.fastest);
        Candidate {
            upstream: id,
            in_flight: held.in_flight,
            waiting: held.waiting,
            waiting_tokens: held.waiting_tokens,
            wait_secs: upstream.wait_secs(self.now, &speed),
            running_tokens: held.running_tokens,
            cached_tokens: self.cached_tokens(id, upstream, work),
            whole_secs: known.whole_secs,
            given_secs: upstream.given_secs,
            given_least_secs: known.least,
            speed,
        }
    }

    /// By the chain of the prompt, or by its conversation. The last token is run in any case.
    fn cached_tokens(&self, id: UpstreamId, upstream: &Upstream, work: &Work<'_>) -> u32 {
        let by_chain = upstream.cached_tokens(work.prefix, work.block_tokens);
        let session = work.session.and_then(|session| self.sessions.get(session));
        let session =
            session.filter(|session| session.upstream == id && upstream.keeps(session.turn));
        let by_session = session.map_or(0, |session| session.tokens);
        let most = work.prompt_tokens.saturating_sub(1);
        by_chain.max(by_session).min(most)
    }

    /// What the candidate has been given that was given the least.
    fn given_least(&self, work: &Work<'_>) -> f64 {
        let given = self
            .candidates(work)
            .map(|(_, upstream)| upstream.given_secs);
        given.min_by(f64::total_cmp).unwrap_or(0.0)
    }

    /// Counts a request as given. Who could not be given any does not come back with a claim on what it has missed.
    fn give(&mut self, id: UpstreamId, least: f64, whole_secs: f64) {
        let now = self.now;
        for (&other, upstream) in &mut self.upstreams {
            if !upstream.is_candidate(now) {
                upstream.given_secs = upstream.given_secs.max(least);
            }
            upstream.given_secs *= 1.0 - FORGET;
            if other == id {
                upstream.given_secs += whole_secs;
            }
        }
    }
}

/// The cost as `total_cmp` ranks it: that tells two zeros apart, and has some that are no number below all that are.
fn ranked(cost: f64) -> f64 {
    match cost.is_nan() {
        true => f64::NAN.abs(),
        false => cost + 0.0,
    }
}

/// What is the same for all candidates of a request.
struct Known {
    /// The speed of the one that is fastest with such a request.
    fastest: Speed,
    least: f64,
    whole_secs: f64,
}
