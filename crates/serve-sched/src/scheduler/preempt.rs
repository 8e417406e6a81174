//! Making room: somebody gives its blocks up, waits again in its old place and is recomputed.
//!
//! What keeps two requests from taking turns for ever: a request is preempted at most
//! [`Preemption::times_max`](crate::victim::Preemption::times_max) times. When it starts after the
//! last of them, it is given the blocks for its whole life at once, so it never needs one that
//! somebody else holds and nobody may take its own.

use serve_core::{Class, Time};

use super::Scheduler;
use super::live::{Live, Stage};
use crate::gate::Taken;
use crate::journal::{Decision, Deferral, PreemptCause};
use crate::victim::Candidate;

impl Scheduler {
    /// Makes the victim policy's choice yield, so that the request in `needy` can grow. The choice
    /// is among those of its class or a lower one, itself included.
    pub(super) fn preempt_for_block(&mut self, now: Time, needy: usize) {
        let class = self.live[needy].request.class();
        let by = self.live[needy].id;
        // The needy one is a candidate: whoever may not yield holds all that it can need.
        let victim = self.choose(|other| other >= class).unwrap_or(needy);
        let victim = self.take_back(now, victim, PreemptCause::KvPressure { by });
        self.gate.put_back(now, victim);
    }

    /// Lets the head of the queue join in the place of running requests of lower classes, if that
    /// is allowed, can succeed, and is why it does not fit.
    pub(super) fn preempt_for_class(&mut self, now: Time, reason: Deferral) -> bool {
        let missing_slot = match reason {
            Deferral::Slots { .. } => true,
            Deferral::Blocks { .. } => false,
            Deferral::Batch { .. } | Deferral::Window { .. } | Deferral::StepTokens => {
                return false;
            }
        };
        if !self.preemption.by_class {
            return false;
        }
        let Some(head) = self.gate.head(now) else {
            return false;
        };
        let (by, class) = (head.request.id(), head.request.class());
        if !self.can_make_room(now, class, missing_slot) {
            return false;
        }
        // The victims go back once the head has left: one of them may be ahead of it in the queue.
        let mut victims = Vec::new();
        let cause = PreemptCause::HigherClass { by, class };
        let mut fit = None;
        while let Some(victim) = self.choose(|other| other > class) {
            victims.push(self.take_back(now, victim, cause));
            let (needs, available) = self.blocks_for_head(now);
            if needs.needed <= available {
                fit = Some(needs);
                break;
            }
        }
        if let Some(fit) = fit {
            self.join_head(now, fit);
        }
        for victim in victims {
            self.gate.put_back(now, victim);
        }
        // A victim may be the next to join: it must not be in the batch twice.
        self.sweep();
        fit.is_some()
    }

    /// Whether the head of the queue, of `class`, would fit if every lower class yielded.
    fn can_make_room(&mut self, now: Time, class: Class, missing_slot: bool) -> bool {
        if !self.lower_class_runs(class) {
            return false;
        }
        let (fit, available) = self.blocks_for_head(now);
        let mut gained = 0;
        let mut yielding = 0;
        for &slot in &self.running {
            let live = &self.live[slot];
            if self.may_yield(live) && live.request.class() > class {
                gained += self.blocks_gained(live);
                yielding += 1;
            }
        }
        let enough = u64::from(fit.needed) <= u64::from(available) + u64::from(gained);
        enough && (!missing_slot || yielding > 0)
    }

    /// Whether somebody of a lower class than `class` runs.
    pub(super) fn lower_class_runs(&self, class: Class) -> bool {
        let lower = self.by_class.get(usize::from(class.rank()) + 1..);
        lower.is_some_and(|counts| counts.iter().any(|counts| counts.running > 0))
    }

    fn may_yield(&self, live: &Live) -> bool {
        live.stage == Stage::Running && live.preemptions < self.preemption.times_max
    }

    fn blocks_gained(&self, live: &Live) -> u32 {
        let alone = live
            .blocks
            .table
            .iter()
            .filter(|&&block| self.pool.is_held_once(block));
        alone.count() as u32
    }

    fn choose(&self, class: impl Fn(Class) -> bool) -> Option<usize> {
        let candidates = self.running.iter().filter(|&&slot| {
            let live = &self.live[slot];
            self.may_yield(live) && class(live.request.class())
        });
        let yields = |slot: usize| {
            let live = &self.live[slot];
            let candidate = Candidate {
                request: &live.request,
                sequence: live.sequence,
                computed: live.computed,
                blocks: self.blocks_gained(live),
            };
            (self.victim.yields(&candidate), live.sequence)
        };
        candidates.copied().max_by_key(|&slot| yields(slot))
    }

    /// Takes everything back that a running request holds. It is for the caller to let it wait.
    fn take_back(&mut self, now: Time, slot: usize, cause: PreemptCause) -> Taken {
        let blocks = self.blocks_gained(&self.live[slot]);
        self.release_blocks(slot);
        let live = &mut self.live[slot];
        live.stage = Stage::Waiting;
        live.preemptions += 1;
        let computed = std::mem::take(&mut live.computed);
        let (id, times, class) = (live.id, live.preemptions, live.request.class());
        let taken = Taken {
            request: live.request.clone(),
            sequence: live.sequence,
            since: now,
            preemptions: times,
        };
        if let Some(deadline) = taken.request.deadline() {
            self.deadlines.remove(&(deadline, slot));
        }
        self.unswept = true;
        self.class(class).running -= 1;
        self.count(class, |counters| counters.preempted += 1);
        self.gate.journal().write(now, id, || Decision::Preempted {
            cause,
            computed,
            blocks,
            times,
        });
        self.gate.stopped(id);
        taken
    }
}
