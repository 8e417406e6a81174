//! Looking ahead over steps whose batch does not change, for a driver that can foresee how long
//! they take.
//!
//! A batch in which everybody decodes, nobody is about to end, nobody can join and every block that
//! is needed is there will be the same batch in the next step. Booking many such steps at once comes
//! to the same state, to the bit, as planning and completing them one by one.

use serve_core::mock::StepLoad;
use serve_core::{Span, StepId, Time};

use super::{Scheduler, TokenEvents};
use crate::journal::Deferral;
use crate::order::Served;

/// Steps that will only decode, with the same requests in each.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Steady {
    /// The first of them.
    pub(crate) step: StepId,
    /// Its load. In each later step every request has one position more.
    pub(crate) load: StepLoad,
    /// How many there are at most.
    pub(crate) steps: u32,
    /// A step may not begin at or after this time.
    pub(crate) until: Time,
}

impl Scheduler {
    /// The steps from `now` on whose batch will not change, if no input comes; `None` if there are
    /// fewer than two. O(running).
    pub(crate) fn steady(&mut self, now: Time) -> Option<Steady> {
        let now = self.advance(now);
        let until = self.next_timeout().unwrap_or(Time::MAX);
        let is_quiet = self.flight.step.is_none() && self.releases.is_empty() && !self.unswept;
        // A prefix hash and a stop token depend on the tokens, which only a real step gives.
        if !is_quiet || self.kv.reuse_prefixes || self.token_events == TokenEvents::All {
            return None;
        }
        let (load, steps) = self.decoding_alone()?;
        let steps = self.steps_within_blocks(steps);
        if steps < 2 || until <= now || !self.nobody_can_join(now) {
            return None;
        }
        Some(Steady {
            step: self.next_step,
            load,
            steps,
            until,
        })
    }

    /// Tells how long one of the steady steps took. To be told of each, in order.
    pub(crate) fn skip_step(&mut self, elapsed: Span) {
        let output_tokens = self.running.len() as u32;
        let pace = self.gate.pace_mut();
        pace.stepped(0, output_tokens, elapsed);
        pace.finished(0, elapsed);
    }

    /// Books `steps` of the steady steps, the last of which ended at `now`.
    pub(crate) fn skip_steps(&mut self, now: Time, steps: u32) {
        self.advance(now);
        for index in 0..self.running.len() {
            let slot = self.running[index];
            let live = &mut self.live[slot];
            live.computed += steps;
            live.known += steps;
            let served = Served {
                prompt_tokens: 0,
                output_tokens: steps,
            };
            self.gate.served(&live.request, served);
            let missing = live.computed.saturating_sub(live.held);
            let missing = self.limits.blocks_for(missing) as usize;
            let fresh = std::iter::from_fn(|| self.pool.allocate());
            let fresh = fresh.take(missing);
            fresh.for_each(|block| live.push_block(block, self.limits.block_size));
        }
        let tokens = u64::from(steps) * self.running.len() as u64;
        self.counters.output_tokens += tokens;
        self.counters.steps += u64::from(steps);
        self.next_step = StepId::new(self.next_step.get() + u64::from(steps));
    }

    /// If everybody in the batch decodes: the load of the next step, and how many steps there are
    /// before the one in which somebody ends.
    fn decoding_alone(&self) -> Option<(StepLoad, u32)> {
        let mut load = StepLoad::default();
        let mut steps = u32::MAX;
        for &slot in &self.running {
            let live = &self.live[slot];
            if live.pending() != 1 || live.output_tokens() == 0 || live.stops {
                return None;
            }
            steps = steps.min(live.output_left() - 1);
            load.segments += 1;
            load.context_tokens += u64::from(live.known);
        }
        (load.segments > 0).then_some((load, steps))
    }

    /// As many of `steps` as the pool has blocks for, or somewhat fewer.
    fn steps_within_blocks(&self, mut steps: u32) -> u32 {
        let missing = |steps: u32| -> u64 {
            let missing = self.running.iter().map(|&slot| {
                let live = &self.live[slot];
                let missing = (live.computed + steps).saturating_sub(live.held);
                u64::from(self.limits.blocks_for(missing))
            });
            missing.sum()
        };
        while steps > 1 && missing(steps) > u64::from(self.pool.available()) {
            steps /= 2;
        }
        steps
    }

    /// Whether the queue stays as it is for as long as the batch does. Records the deferral that
    /// the next plan would have recorded.
    fn nobody_can_join(&mut self, now: Time) -> bool {
        let Some(head) = self.gate.head(now) else {
            return true;
        };
        let class = head.request.class();
        let head_is_stable = self.gate.head_is_stable();
        if !head_is_stable && self.gate.journal().is_on() {
            // Each step would record who is deferred in it.
            return false;
        }
        if self.preemption.by_class && (!head_is_stable || self.lower_class_runs(class)) {
            return false;
        }
        // As the next plan would: first those who run, then who waits. There are blocks enough.
        self.grow_running(now);
        let Some(reason) = self.why_deferred(now) else {
            return false;
        };
        let is_stable = match reason {
            Deferral::Slots { .. } | Deferral::Batch { .. } => true,
            // What the batch holds only grows, so the head does not come to fit.
            Deferral::Blocks { .. } => head_is_stable,
            Deferral::Window { .. } | Deferral::StepTokens => false,
        };
        if is_stable {
            self.defer(now, reason);
        }
        is_stable
    }
}
