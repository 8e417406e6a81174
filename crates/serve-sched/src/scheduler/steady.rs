//! Looking ahead over steps whose batch does not change, for a driver that can foresee how long
//! they take.
//!
//! A batch in which everybody decodes, nobody is about to end, nobody can join and every block that
//! is needed is there will be the same batch in the next step. Booking many such steps at once comes
//! to the same state, to the bit, as planning and completing them one by one. Where prefixes are
//! reused the blocks that fill on the way get their names, in the order in which they fill: for that
//! the driver must foresee tokens.

use serve_core::{RequestId, Span, StepId, StepLoad, Time, TokenId};

use super::{Scheduler, TokenEvents};
use crate::admit::Watch;
use crate::journal::Deferral;
use crate::lengths;
use crate::order::Served;
use crate::pace::StepDone;

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
    /// A request whose tokens must be known, and with them those of all others; `None` if no tokens
    /// are needed.
    pub(crate) foreseen: Option<RequestId>,
}

impl Scheduler {
    /// The steps from `now` on whose batch will not change, if no input comes; `None` if there are
    /// fewer than two. O(running).
    pub(crate) fn steady(&mut self, now: Time) -> Option<Steady> {
        let now = self.advance(now);
        let until = self.next_timeout().unwrap_or(Time::MAX);
        let is_quiet = self.flight.step.is_none() && self.releases.is_empty() && !self.unswept;
        if !is_quiet || until <= now || self.token_events == TokenEvents::All {
            return None;
        }
        let (load, steps) = self.decoding_alone()?;
        let steps = self.steps_within_blocks(steps);
        if steps < 2 {
            return None;
        }
        let steps = self.steps_without_joins(now, steps);
        if steps < 2 {
            return None;
        }
        let first = self.running.first().map(|&slot| self.live[slot].id);
        Some(Steady {
            step: self.next_step,
            load,
            steps,
            until,
            foreseen: first.filter(|_| self.kv.reuse_prefixes),
        })
    }

    /// Tells how long one of the steady steps took. To be told of each, in order.
    pub(crate) fn skip_step(&mut self, elapsed: Span) {
        let output_tokens = self.running.len() as u32;
        self.gate.stepped(&StepDone {
            running: output_tokens,
            output_tokens,
            elapsed,
            step_tokens: self.step_tokens_max,
            lacking: self.lacking,
            ..StepDone::default()
        });
        self.step_cost.stepped(0, elapsed);
    }

    /// Books `steps` of the steady steps, the last of which ended at `now`. `token` is what is
    /// sampled for a request at a position; it is asked only for what names blocks.
    pub(crate) fn skip_steps(
        &mut self,
        now: Time,
        steps: u32,
        token: impl Fn(RequestId, u32) -> Option<TokenId>,
    ) {
        self.advance(now);
        // Step by step, as a block that is taken may be the one whose name another one would get.
        for _ in 0..steps {
            self.grow_steady();
            self.run_steady(&token);
        }
        for index in 0..self.running.len() {
            let slot = self.running[index];
            let end = self.live[slot].computed + 1;
            self.know(slot, end, &token);
            let served = Served {
                prompt_tokens: 0,
                output_tokens: steps,
            };
            self.gate.served(&self.live[slot].request, served);
        }
        let tokens = u64::from(steps) * self.running.len() as u64;
        self.counters.output_tokens += tokens;
        self.counters.steps += u64::from(steps);
        self.next_step = StepId::new(self.next_step.get() + u64::from(steps));
    }

    /// A block for everybody who needs one for the next position; there are enough.
    fn grow_steady(&mut self) {
        for &slot in &self.running {
            let live = &mut self.live[slot];
            if live.computed >= live.held
                && let Some(block) = self.pool.allocate()
            {
                live.push_block(block, self.limits.block_size);
            }
        }
    }

    /// Everybody runs a position.
    fn run_steady(&mut self, token: &impl Fn(RequestId, u32) -> Option<TokenId>) {
        for index in 0..self.running.len() {
            let slot = self.running[index];
            let live = &mut self.live[slot];
            live.computed += 1;
            if live.computed >= live.publish_at {
                let end = live.computed;
                self.know(slot, end, token);
                self.publish_blocks(slot);
            }
        }
    }

    /// The tokens of a request up to position `end` are known.
    fn know(&mut self, slot: usize, end: u32, token: &impl Fn(RequestId, u32) -> Option<TokenId>) {
        let live = &mut self.live[slot];
        if live.tail_from != u32::MAX {
            for position in live.known..end {
                match token(live.id, position) {
                    Some(token) => self.tails.set(slot, position - live.tail_from, token),
                    None => {
                        live.stop_naming();
                        break;
                    }
                }
            }
        }
        live.known = end;
    }

    /// If everybody in the batch decodes: the load of the next step, and how many steps there are
    /// before the one in which somebody ends or may be given up.
    fn decoding_alone(&self) -> Option<(StepLoad, u32)> {
        let mut load = StepLoad::default();
        let mut steps = u32::MAX;
        let watches = self.gate.watch() == Watch::Running;
        for &slot in &self.running {
            let live = &self.live[slot];
            if live.pending() != 1 || live.output_tokens() == 0 || live.stops {
                return None;
            }
            steps = steps.min(live.output_left() - 1);
            if watches && live.request.deadline().is_some() {
                // Then it is asked whether it goes on.
                let done = live.output_tokens();
                steps = steps.min(lengths::next_milestone(done) - done - 1);
            }
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

    /// Of `steps`, for how many the queue stays as it is. Records the deferral that the next plan
    /// would have recorded.
    fn steps_without_joins(&mut self, now: Time, steps: u32) -> u32 {
        let Some(head) = self.gate.head(now) else {
            self.lacking = None;
            return steps;
        };
        let class = head.request.class();
        let head_is_stable = self.gate.head_is_stable();
        if !head_is_stable && self.gate.journal().is_on() {
            // Each step would record who is deferred in it.
            return 0;
        }
        if self.preemption.by_class && (!head_is_stable || self.lower_class_runs(class)) {
            return 0;
        }
        // As the next plan would: first those who run, then who waits. There are blocks enough.
        self.grow_running(now);
        self.refresh_prompts(now);
        let Some(reason) = self.why_deferred(now) else {
            return 0;
        };
        let steps = match reason {
            Deferral::Slots { .. } | Deferral::Batch { .. } => steps,
            // What the batch holds only grows, so the head does not come to fit, unless the next
            // block to get a name is one that it shares.
            Deferral::Blocks { .. } if head_is_stable => steps.min(self.steps_to_name()),
            Deferral::Blocks { .. } | Deferral::Window { .. } | Deferral::StepTokens => 0,
        };
        if steps > 0 {
            self.defer(now, reason);
        }
        steps
    }

    /// The steps up to and with the first in which a block gets a name.
    fn steps_to_name(&self) -> u32 {
        let steps = self.running.iter().map(|&slot| {
            let live = &self.live[slot];
            live.publish_at - live.computed
        });
        steps.min().unwrap_or(u32::MAX)
    }
}
