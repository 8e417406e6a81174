//! Making room: a request gives its blocks up, waits again in its old place and is recomputed.
//!
//! What keeps two requests from taking turns for ever: a request is preempted at most
//! [`Preemption::times_max`](crate::victim::Preemption::times_max) times. When it starts after the
//! last of them, it is given the blocks for its whole life at once, so it never needs one that
//! another holds and none of its own can be taken.
//!
//! What holds whatever the victim policy says: a request gives its place up to a strictly higher
//! class only, and only to one that came after it had joined, so that nothing is taken back of what
//! the order has decided; a request that had aged when it joined gives it up to none; and each that
//! gives it up is needed for the other to fit.

use serve_core::{BlockId, TenantId, Time};

use super::Scheduler;
use super::live::{Live, Stage};
use super::plan::Room;
use crate::gate::Taken;
use crate::journal::{Decision, Deferral, PreemptCause};
use crate::victim::Candidate;

/// A running request that may be preempted, the last of a sorted list first.
type Choice = (bool, [u64; 2], u64, usize);

impl Scheduler {
    /// Preempts the victim policy's choice, so that the request in `needy` can grow. The choice is
    /// among those of its class or a lower one, itself included. A request that had aged when it
    /// joined goes before all classes here too, and is chosen after all that had not.
    pub(super) fn preempt_for_block(&mut self, now: Time, needy: usize) {
        let live = &self.live[needy];
        let (by, class, sequence, aged) = (live.id, live.request.class(), live.sequence, live.aged);
        let may_take_from = |other: &Live| {
            let is_behind = match (aged, other.aged) {
                (false, false) => other.request.class() >= class,
                (true, true) => other.sequence > sequence,
                (aged, _) => aged,
            };
            is_behind || other.id == by
        };
        let choices = self.choices(may_take_from);
        // The needy one is among them: a request that may not be preempted holds all that it can
        // need.
        let victim = choices.last().map_or(needy, |&(.., slot)| slot);
        let victim = self.take_back(now, victim, PreemptCause::KvPressure { by });
        self.gate.put_back(now, victim);
    }

    /// Lets the head of the queue join in the place of running requests of lower classes, if that
    /// is allowed, can succeed, and is why it does not fit.
    pub(super) fn preempt_for_class(&mut self, now: Time, reason: Deferral, room: Room) -> bool {
        match reason {
            Deferral::Slots { .. } | Deferral::Blocks { .. } => {}
            Deferral::Batch { .. } | Deferral::Window { .. } | Deferral::StepTokens => {
                return false;
            }
        }
        if !self.preemption.by_class || !self.batch.joins_running() {
            return false;
        }
        let Some(head) = self.gate.head(now) else {
            return false;
        };
        let (by, class, sequence) = (head.request.id(), head.request.class(), head.sequence);
        if !self.lower_class_runs(class) {
            return false;
        }
        let may_take_from = |other: &Live| {
            other.request.class() > class && !other.aged && other.joined_before <= sequence
        };
        let choices = self.choices(may_take_from);
        let slots: Vec<usize> = choices.iter().rev().map(|&(.., slot)| slot).collect();
        let Some(chosen) = self.fewest_that_make_room(now, room, slots) else {
            return false;
        };
        // The victims go back once the head has left: one of them may be ahead of it in the queue.
        let cause = PreemptCause::HigherClass { by, class };
        let victims: Vec<Taken> = chosen
            .into_iter()
            .map(|slot| self.take_back(now, slot, cause))
            .collect();
        let (fit, available) = self.blocks_for_head(now);
        let fits = fit.needed <= available;
        debug_assert!(fits, "that they make room has been seen");
        if fits {
            self.join_head(now, fit);
        }
        for victim in victims {
            self.gate.put_back(now, victim);
        }
        // A victim may be the next to join: it must not be in the batch twice.
        self.sweep();
        fits
    }

    /// Of `slots`, in the order of the victim policy, those that have to go for the head of the
    /// queue to fit; `None` if it would not fit without all of them.
    fn fewest_that_make_room(
        &mut self,
        now: Time,
        room: Room,
        mut slots: Vec<usize>,
    ) -> Option<Vec<usize>> {
        if slots.is_empty() || !self.makes_room(now, room, &slots) {
            return None;
        }
        let (mut few, mut enough) = (0, slots.len());
        while few + 1 < enough {
            let half = few.midpoint(enough);
            match self.makes_room(now, room, &slots[..half]) {
                true => enough = half,
                false => few = half,
            }
        }
        slots.truncate(enough);
        // The last one is needed. Of those before it, some may free nothing of use.
        let mut index = 0;
        while index + 1 < slots.len() {
            let spared = slots.remove(index);
            if !self.makes_room(now, room, &slots) {
                slots.insert(index, spared);
                index += 1;
            }
        }
        Some(slots)
    }

    /// Whether the head of the queue would fit if the `leaving` gave up all that they hold. O(blocks
    /// that they hold).
    fn makes_room(&mut self, now: Time, room: Room, leaving: &[usize]) -> bool {
        let leave = leaving.len() as u32;
        let Ok(again) = self.ask_batch(now, room.joined, leave) else {
            return false;
        };
        if again.joins == 0 || (!again.beyond_budget && self.tokens_for_head(now, leaving) == 0) {
            return false;
        }
        let (fit, withheld) = self.need_of_head(now, leave);
        let missing = (fit.needed + withheld).saturating_sub(self.pool.available());
        if missing == 0 {
            return true;
        }
        let held = |&slot: &usize| self.live[slot].blocks.table.len() as u64;
        if leaving.iter().map(held).sum::<u64>() < u64::from(missing) {
            return false;
        }
        let reused = self.blocks_reused_by_head(now);
        self.blocks_freed(leaving, &reused) >= missing
    }

    /// Blocks that nobody would hold any more, without those in `keep`, which is sorted.
    fn blocks_freed(&self, leaving: &[usize], keep: &[BlockId]) -> u32 {
        let mut shared = Vec::new();
        let mut freed = 0;
        let held = leaving
            .iter()
            .flat_map(|&slot| &self.live[slot].blocks.table);
        for &block in held.filter(|block| keep.binary_search(block).is_err()) {
            match self.pool.holders(block) {
                1 => freed += 1,
                _ => shared.push(block),
            }
        }
        // A block that several hold is free once it was let go as often.
        shared.sort_unstable();
        let groups = shared.chunk_by(|one, other| one == other);
        let all = groups.filter(|group| group.len() as u32 == self.pool.holders(group[0]));
        freed + all.count() as u32
    }

    /// Whether somebody of a lower class than `class` runs.
    pub(super) fn lower_class_runs(&self, class: serve_core::Class) -> bool {
        let lower = self.by_class.get(usize::from(class.rank()) + 1..);
        lower.is_some_and(|counts| counts.iter().any(|counts| counts.running > 0))
    }

    fn blocks_gained(&self, live: &Live) -> u32 {
        let alone = live
            .blocks
            .table
            .iter()
            .filter(|&&block| self.pool.is_held_once(block));
        alone.count() as u32
    }

    /// Running requests that may be preempted, the one that goes first last.
    fn choices(&self, may_take_from: impl Fn(&Live) -> bool) -> Vec<Choice> {
        let running = || {
            let live = self.running.iter().map(|&slot| (slot, &self.live[slot]));
            live.filter(|(_, live)| live.stage == Stage::Running)
        };
        let mut by_tenant: Vec<(TenantId, u32)> = running()
            .map(|(_, live)| (live.request.tenant(), live.blocks.table.len() as u32))
            .collect();
        by_tenant.sort_unstable();
        let blocks_of = |tenant: TenantId| -> u32 {
            let from = by_tenant.partition_point(|&(other, _)| other < tenant);
            let own = by_tenant[from..].iter();
            let own = own.take_while(|&&(other, _)| other == tenant);
            own.map(|&(_, blocks)| blocks).sum()
        };
        let choices = running().filter(|(_, live)| {
            live.preemptions < self.preemption.times_max && may_take_from(live)
        });
        let choices = choices.map(|(slot, live)| {
            let candidate = Candidate {
                request: &live.request,
                sequence: live.sequence,
                computed: live.computed,
                output_left: live.output_left(),
                blocks: self.blocks_gained(live),
                tenant_blocks: blocks_of(live.request.tenant()),
            };
            let rank = self.victim.rank(&candidate);
            (!live.aged, rank, live.sequence, slot)
        });
        let mut choices: Vec<Choice> = choices.collect();
        choices.sort_unstable();
        choices
    }

    /// Takes everything back that a running request holds. It is for the caller to let it wait.
    fn take_back(&mut self, now: Time, slot: usize, cause: PreemptCause) -> Taken {
        let blocks = self.blocks_gained(&self.live[slot]);
        self.release_blocks(slot);
        self.prompts.remove(slot);
        let live = &mut self.live[slot];
        live.stage = Stage::Waiting;
        live.preemptions += 1;
        let computed = std::mem::take(&mut live.computed);
        let (id, times, class) = (live.id, live.preemptions, live.request.class());
        let taken = Taken {
            request: live.request.clone(),
            sequence: live.sequence,
            since: now,
            // The gate counts this one when it is put back.
            preemptions: times - 1,
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
