//! What the next step runs: those already running first, then whoever may join.

use std::sync::Arc;

use serve_core::{EventKind, StepId, StepPlan, Time};

use super::fit::Fit;
use super::live::Stage;
use super::{FlightSegment, Scheduler};
use crate::batch::{BatchView, Join};
use crate::journal::{Decision, Deferral};

/// What joining is limited to in this step.
#[derive(Clone, Copy, Debug)]
struct Room {
    joins: u32,
    beyond_budget: bool,
    prefill_tokens: u32,
}

impl Scheduler {
    /// Plans the next step into `plan`, which is overwritten. False when there is nothing to run
    /// and nothing to forget, or while a step is in flight, whose plan is then left as it is.
    /// Allocates nothing once its buffers have grown to size.
    ///
    /// A plan without segments has only releases; it is executed and completed like any other.
    pub fn plan_into(&mut self, now: Time, plan: &mut StepPlan) -> bool {
        if self.flight.step.is_some() {
            return false;
        }
        plan.reset(self.next_step);
        self.handle_timeout(now);
        let now = self.now;
        self.sweep();
        let room_for_more = self.grow_running(now);
        self.hold_until = None;
        if room_for_more {
            self.join_waiting(now);
        }
        self.sweep();
        self.push_segments(now, plan);
        for id in self.releases.drain(..) {
            plan.push_release(id);
            self.flight.releases.push(id);
        }
        if plan.is_empty() {
            return false;
        }
        self.flight.step = Some(self.next_step);
        self.next_step = StepId::new(self.next_step.get() + 1);
        self.counters.steps += u64::from(!plan.segments().is_empty());
        true
    }

    /// Like [`plan_into`](Self::plan_into), with a plan of its own.
    pub fn plan(&mut self, now: Time) -> Option<StepPlan> {
        let mut plan = StepPlan::new();
        self.plan_into(now, &mut plan).then_some(plan)
    }

    /// Makes sure that everyone running has a block for its next position, if need be by
    /// preempting. False if somebody had to yield: then nobody joins in this step.
    pub(super) fn grow_running(&mut self, now: Time) -> bool {
        let mut pressed = false;
        for index in 0..self.running.len() {
            let slot = self.running[index];
            loop {
                let live = &self.live[slot];
                // A prompt was given all its blocks when it joined, so one is always enough.
                if live.stage != Stage::Running || live.known <= live.held {
                    break;
                }
                match self.pool.allocate() {
                    Some(block) => self.live[slot].push_block(block, self.limits.block_size),
                    None => {
                        pressed = true;
                        self.preempt_for_block(now, slot);
                    }
                }
            }
        }
        !pressed
    }

    /// Lets the head of the queue join for as long as it fits.
    fn join_waiting(&mut self, now: Time) {
        if self.gate.is_empty() {
            return;
        }
        let mut room = match self.ask_batch(now) {
            Ok(room) => room,
            Err(reason) => return self.defer(now, reason),
        };
        while !self.gate.is_empty() {
            match self.fit_head(now, room) {
                Ok(fit) => {
                    let pending = self.join_head(now, fit);
                    room.joins -= 1;
                    room.prefill_tokens = room.prefill_tokens.saturating_sub(pending);
                }
                Err(reason) => {
                    if !self.preempt_for_class(now, reason) {
                        return self.defer(now, reason);
                    }
                    room.joins = room.joins.saturating_sub(1);
                    room.prefill_tokens = self.prefill_tokens_left();
                }
            }
        }
    }

    /// Why the head of the queue cannot join; `None` if it can.
    pub(super) fn why_deferred(&mut self, now: Time) -> Option<Deferral> {
        match self.ask_batch(now) {
            Ok(room) => self.fit_head(now, room).err(),
            Err(reason) => Some(reason),
        }
    }

    fn ask_batch(&mut self, now: Time) -> Result<Room, Deferral> {
        let running = self.gate.running();
        let join = self.batch.join(&BatchView {
            now,
            running,
            waiting: self.gate.len(),
            oldest_since: self.gate.oldest_since().unwrap_or(now),
            sequences_max: self.sequences_max,
        });
        let (joins, beyond_budget) = match join {
            Join::UpTo(joins) => (joins, false),
            Join::Batch(joins) => (joins, true),
            Join::Hold { until } => {
                self.hold_until = Some(until).filter(|&until| until > now);
                return Err(Deferral::Window { until });
            }
        };
        let slots = self.sequences_max.saturating_sub(running);
        Ok(Room {
            joins: joins.min(slots),
            beyond_budget,
            // With every slot taken nobody looks at it.
            prefill_tokens: match slots {
                0 => 0,
                _ => self.prefill_tokens_left(),
            },
        })
    }

    /// Tokens of the step that are left when everyone running has been served.
    fn prefill_tokens_left(&self) -> u32 {
        let pending = self.running.iter().map(|&slot| match &self.live[slot] {
            live if live.stage == Stage::Running => u64::from(live.pending()),
            _ => 0,
        });
        let left = u64::from(self.step_tokens_max).saturating_sub(pending.sum());
        left as u32 // at most step_tokens_max
    }

    /// Whether the head of the queue can join now.
    fn fit_head(&mut self, now: Time, room: Room) -> Result<Fit, Deferral> {
        let running = self.gate.running();
        if running >= self.sequences_max {
            let max = self.sequences_max;
            return Err(Deferral::Slots { running, max });
        }
        if room.joins == 0 {
            return Err(Deferral::Batch { running });
        }
        if room.prefill_tokens == 0 && !room.beyond_budget {
            return Err(Deferral::StepTokens);
        }
        let (fit, available) = self.blocks_for_head(now);
        if fit.needed <= available {
            Ok(fit)
        } else {
            Err(Deferral::Blocks {
                needed: fit.needed,
                available,
            })
        }
    }

    /// Moves the head of the queue into the batch and returns how many positions it has to run.
    pub(super) fn join_head(&mut self, now: Time, fit: Fit) -> u32 {
        let Some(taken) = self.gate.take(now) else {
            return 0;
        };
        let slot = self.slot_for(now, &taken);
        let class = taken.request.class();
        self.class(class).running += 1;
        if let Some(deadline) = taken.request.deadline() {
            self.deadlines.insert((deadline, slot));
        }
        self.take_blocks(slot, fit);
        self.running.push(slot);
        let live = &mut self.live[slot];
        live.stage = Stage::Running;
        live.preemptions = taken.preemptions;
        live.computed = fit.shared * self.limits.block_size;
        let first = live.preemptions == 0;
        if first {
            live.cached = live.computed;
        }
        live.prompt_served = live
            .prompt_served
            .max(live.computed.min(live.prompt_tokens));
        self.counters.cached_tokens += u64::from(live.computed);
        let (pending, running) = (live.pending(), self.gate.running());
        let (positions, cached) = (live.known, live.computed);
        self.gate
            .journal()
            .write(now, taken.request.id(), || Decision::Joined {
                waited: now.since(taken.since),
                positions,
                cached,
                blocks: fit.shared + fit.needed,
                running,
                preemptions: taken.preemptions,
            });
        pending
    }

    /// How many of those running run one position and sample.
    fn decodes(&self) -> u32 {
        let decodes = |&&slot: &&usize| self.live[slot].pending() == 1;
        self.running.iter().filter(decodes).count() as u32
    }

    /// Gives every running request its part of the step: one token to whoever samples next, the
    /// rest of the budget to prompts in the order of joining.
    fn push_segments(&mut self, now: Time, plan: &mut StepPlan) {
        // Counted only where somebody has a prompt to run.
        let mut prefill_tokens = None;
        for index in 0..self.running.len() {
            let slot = self.running[index];
            let pending = self.live[slot].pending();
            let mut tokens = 1;
            if pending > 1 {
                let left =
                    prefill_tokens.get_or_insert_with(|| self.step_tokens_max - self.decodes());
                tokens = pending.min(*left);
                *left -= tokens;
            }
            if tokens == 0 {
                continue;
            }
            let live = &mut self.live[slot];
            live.in_flight = true;
            let (start, end) = (live.computed, live.computed + tokens);
            let sample = end == live.known;
            let kept = live.sent;
            plan.push_segment(live.id, start..end, sample, kept, live.fresh_blocks());
            self.flight.segments.push(FlightSegment {
                slot,
                start,
                end,
                sample,
            });
            if !live.announced {
                live.announced = true;
                live.started_at = now;
                let (id, request) = (live.id, Arc::clone(&live.request));
                plan.push_start(request);
                self.emit(now, id, EventKind::Started);
            }
        }
    }

    /// Records why the head of the queue waits, when the reason changes.
    pub(super) fn defer(&mut self, now: Time, reason: Deferral) {
        let Some(id) = self.gate.head(now).map(|head| head.request.id()) else {
            return;
        };
        let known = self.deferred.is_some_and(|(before, because)| {
            before == id && std::mem::discriminant(&because) == std::mem::discriminant(&reason)
        });
        if !known {
            self.deferred = Some((id, reason));
            self.gate
                .journal()
                .write(now, id, || Decision::Deferred { reason });
        }
    }
}
