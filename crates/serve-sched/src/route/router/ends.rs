//! First tokens and ends: what they teach of an upstream's speed, whether they are held against it, and whether what failed is
//! sent again.

use std::collections::BTreeMap;

use serve_core::{Span, Time, Usage};

use super::told::{End, Retry};
use super::upstream::Upstream;
use super::{First, Flight, Router};
use crate::retry_budget::FailedAttempt;
use crate::route::parts::Learned;
use crate::route::{Attempt, UpstreamId};

/// An answer that took so many times as long as the other upstreams would have taken is as bad as a failure.
const AWAY: f64 = 4.0;

impl Router {
    pub(super) fn take_first_token(&mut self, slot: usize, at: Time) {
        let flight = &mut self.flights[slot];
        if flight.first.is_some() {
            return;
        }
        let mut first = First {
            at,
            secs: 0.0,
            running_tokens: 0,
        };
        if let Some(upstream) = of(&mut self.upstreams, flight) {
            first.secs = upstream.first_token(self.now, at, flight.place);
            first.running_tokens = upstream.held(self.now).running_tokens;
        }
        flight.first = Some(first);
    }

    /// Of an answer that came whole, the time of its first token is told from how fast tokens come there.
    pub(super) fn answered_whole(&mut self, slot: usize, usage: Usage) {
        let flight = &self.flights[slot];
        if let Some(upstream) = of(&mut self.upstreams, flight) {
            let running = upstream.held(self.now).running_tokens;
            let speed = upstream.learned.read();
            let rest = speed.decode_secs(usage.output_tokens, running);
            let at = (self.now - Span::from_secs_f64(rest)).max(flight.sent);
            self.take_first_token(slot, at);
        }
    }

    /// Learns from an answer how fast its upstream is: how many times as long it took as at the others, where that is known.
    pub(super) fn learn(&mut self, flight: &Flight, usage: Usage) -> Option<f64> {
        let (first, output) = (flight.first?, usage.output_tokens);
        let rest = self.now.since(first.at).as_secs_f64();
        let upstream = of(&mut self.upstreams, flight)?;
        let after = upstream.held(self.now).running_tokens;
        let running = u64::midpoint(first.running_tokens, after);
        if output > 1 {
            let apart = rest / f64::from(output - 1);
            upstream.learned.decoded(running, apart);
        }
        let others = self.learned_of(|id| id != flight.upstream);
        let speed = others.is_enough().then(|| others.read())?;
        let expected = speed.service_secs(flight.place.tokens, output, running);
        (expected > 0.0).then(|| (first.secs + rest) / expected)
    }

    /// What upstreams that are not on trial have taught, those that `of` wants.
    pub(super) fn learned_of(&self, of: impl Fn(UpstreamId) -> bool) -> Learned {
        let known = self.upstreams.iter();
        let known = known.filter(|(id, upstream)| upstream.trial.is_none() && of(**id));
        known.fold(Learned::default(), |all, (_, upstream)| {
            all.plus(&upstream.learned)
        })
    }

    /// Holds an end for or against its upstream.
    pub(super) fn judge(&mut self, flight: &Flight, end: End, ratio: Option<f64>) {
        let failed = end == End::Failed;
        let says_something = failed || matches!(end, End::Answered(_));
        let may_eject = self.may_eject();
        let Some(upstream) = of(&mut self.upstreams, flight) else {
            return;
        };
        if let Some(trial) = upstream.trial.as_mut().filter(|_| says_something) {
            trial.ended(failed, self.others.failure_rate());
            if let (Some(ratio), Some(slow)) = (ratio, self.others.slow_ratio()) {
                trial.answered(ratio > slow);
            }
            return;
        }
        if says_something {
            self.others.ended(failed);
        }
        if let Some(ratio) = ratio {
            self.others.answered(ratio);
        }
        let good = says_something.then(|| !failed && ratio.is_none_or(|ratio| ratio < AWAY));
        let health = &mut upstream.health;
        health.ended(self.now, good, flight.is_probe, may_eject, &self.settings);
    }

    /// Whether one more upstream may be ejected.
    fn may_eject(&self) -> bool {
        let judged = || {
            self.upstreams
                .values()
                .filter(|known| known.trial.is_none())
        };
        let ejected = judged().filter(|known| !known.health.serves()).count();
        let most = judged().count() * self.settings.ejected_percent_max as usize / 100;
        ejected < most
    }

    pub(super) fn retry(&mut self, flight: &Flight, end: End) -> Option<Retry> {
        let may_pass = matches!(end, End::Failed | End::Busy { .. });
        if !may_pass || flight.first.is_some() {
            return None;
        }
        let failed = flight.attempt.failed + 1;
        let attempt = FailedAttempt {
            number: failed,
            deadline: flight.deadline,
            refusal: None,
        };
        let at = self.retries.retry(self.now, &attempt)?;
        let attempt = Attempt {
            failed,
            failed_at: Some(flight.upstream),
        };
        Some(Retry { at, attempt })
    }
}

/// The upstream that a request was sent to; not another that has joined under its id since.
pub(super) fn of<'a>(
    upstreams: &'a mut BTreeMap<UpstreamId, Upstream>,
    flight: &Flight,
) -> Option<&'a mut Upstream> {
    let upstream = upstreams.get_mut(&flight.upstream);
    upstream.filter(|upstream| upstream.first_turn <= flight.place.turn)
}
