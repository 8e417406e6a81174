//! What the next step runs: those already running first, then those that may join.

use std::sync::Arc;

use serve_core::{CancelReason, EventKind, StepId, StepPlan, Time};

use super::fit::Fit;
use super::live::Stage;
use super::{FlightSegment, Scheduler};
use crate::admit::Watch;
use crate::batch::{BatchView, Join};
use crate::journal::{Decision, Deferral};
use crate::pace::Lacking;

/// What joining is limited to in this step.
#[derive(Clone, Copy, Debug)]
pub(super) struct Room {
    /// Requests that have joined in it.
    pub(super) joined: u32,
    /// Requests that may still join.
    pub(super) joins: u32,
    /// Whether they may join without a token of the step for their prompts.
    pub(super) beyond_budget: bool,
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
        self.sweep();
        self.refresh_prompts(now);
        self.hold_until = None;
        self.lacking = None;
        if room_for_more {
            self.join_waiting(now);
        } else if !self.gate.is_empty() {
            self.lacking = self.lacking_for(&Deferral::Blocks {
                needed: 1,
                available: 0,
            });
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
    /// preempting. False if a request was preempted: then none joins in this step.
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
        let mut room = match self.ask_batch(now, 0, 0) {
            Ok(room) => room,
            Err(reason) => {
                if let Deferral::Window { until } = reason {
                    self.hold_until = Some(until);
                }
                return self.defer(now, reason);
            }
        };
        // Of a crowd whose time is over, some may still be at the head: nobody starts before they have
        // been answered.
        while self.gate.head(now).is_some() {
            match self.fit_head(now, room) {
                Ok(_) if self.drop_head(now) => {}
                Ok(fit) => {
                    self.join_head(now, fit);
                    room.joins -= 1;
                    room.joined += 1;
                }
                Err(reason) => {
                    if !self.preempt_for_class(now, reason, room) {
                        return self.defer(now, reason);
                    }
                    room.joined += 1;
                    let again = self.ask_batch(now, room.joined, 0);
                    room.joins = again.map_or(0, |room| room.joins);
                }
            }
        }
    }

    /// Cancels the head of the queue, which could join, if it cannot be in time any more.
    fn drop_head(&mut self, now: Time) -> bool {
        if self.gate.watch() == Watch::Nobody {
            return false;
        }
        let Some(head) = self.gate.head(now) else {
            return false;
        };
        let (id, prompt) = (head.request.id(), head.request.prompt_tokens());
        let started = self.ids.get(id).map(|slot| &self.live[slot]);
        let (left, done) = started.map_or((prompt, 0), |live| (live.known, live.output_tokens()));
        if !self.gate.head_given_up(now, left, done) {
            return false;
        }
        self.cancel(now, id, CancelReason::DeadlineUnreachable)
    }

    /// Why the head of the queue cannot join; `None` if it can.
    pub(super) fn why_deferred(&mut self, now: Time) -> Option<Deferral> {
        match self.ask_batch(now, 0, 0) {
            Ok(room) => self.fit_head(now, room).err(),
            Err(reason) => Some(reason),
        }
    }

    /// How many more may join the step, of whom `joined` have, if `leaving` of the others gave their
    /// places up. The policy is asked about the batch as it was before anybody joined.
    pub(super) fn ask_batch(
        &mut self,
        now: Time,
        joined: u32,
        leaving: u32,
    ) -> Result<Room, Deferral> {
        let stay = self.gate.running() - leaving;
        let before = stay - joined;
        let join = self.batch.join(&BatchView {
            now,
            running: before,
            waiting: self.gate.len() + joined,
            oldest_since: self.gate.oldest_since().unwrap_or(now),
            sequences_max: self.sequences_max,
        });
        let (joins, beyond_budget) = match join {
            Join::UpTo(joins) => (joins, false),
            Join::Batch(joins) => (joins, true),
            Join::Hold { until } if until > now => return Err(Deferral::Window { until }),
            // What was waited for is here; nothing would wake the driver again.
            Join::Hold { .. } => (u32::MAX, false),
        };
        // Nor would anything if nobody ran and nobody could join.
        let joins = joins.max(u32::from(before == 0));
        Ok(Room {
            joined,
            joins: joins
                .saturating_sub(joined)
                .min(self.sequences_max.saturating_sub(stay)),
            beyond_budget,
        })
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
        if !room.beyond_budget && self.tokens_for_head(now, &[]) == 0 {
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

    /// Moves the head of the queue into the batch.
    pub(super) fn join_head(&mut self, now: Time, fit: Fit) {
        let Some(taken) = self.gate.take(now) else {
            return;
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
        live.ages_at = self.gate.ages_at(&taken.request);
        live.aged = live.ages_at <= now;
        live.joined_before = self.gate.next_sequence();
        live.preemptions = taken.preemptions;
        live.computed = fit.shared * self.limits.block_size;
        let first = live.preemptions == 0;
        if first {
            live.cached = live.computed;
            self.found_tokens += u64::from(live.computed);
        }
        live.prompt_served = live
            .prompt_served
            .max(live.computed.min(live.prompt_tokens));
        self.counters.cached_tokens += u64::from(live.computed);
        let running = self.gate.running();
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
        self.add_prompt(now, slot);
    }

    /// Gives every running request its part of the step: one token to each that samples next, and to
    /// each prompt what the budget says.
    fn push_segments(&mut self, now: Time, plan: &mut StepPlan) {
        self.share_prompt_tokens();
        let mut prompts = 0;
        for index in 0..self.running.len() {
            let slot = self.running[index];
            let mut tokens = 1;
            if self.live[slot].pending() > 1 {
                // Both lists are in the order of joining.
                tokens = self.prompt_share(prompts);
                prompts += 1;
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

    /// What is lacking by this reason, as predictions count it.
    fn lacking_for(&self, reason: &Deferral) -> Option<Lacking> {
        match reason {
            Deferral::Slots { .. } | Deferral::Batch { .. } => Some(Lacking::Slots),
            Deferral::StepTokens => Some(Lacking::StepTokens),
            Deferral::Blocks { .. } => Some(Lacking::Blocks {
                held: self.pool.stats().held,
            }),
            Deferral::Window { .. } => None,
        }
    }

    /// Records why the head of the queue waits, when the reason changes.
    pub(super) fn defer(&mut self, now: Time, reason: Deferral) {
        self.lacking = self.lacking_for(&reason);
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
