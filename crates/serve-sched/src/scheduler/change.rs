//! Other settings while requests wait and run.

use std::collections::BTreeSet;
use std::num::NonZeroU32;
use std::sync::Arc;

use serve_core::{Request, Time};

use super::Scheduler;
use super::live::Stage;
use crate::budget::{BUDGET, BUDGETS};
use crate::settings::{Change, ChangeError, MAX_BATCH, Named, Row, Setting};
use crate::victim::{PREEMPTION, Preemption, VICTIM, VICTIMS};

impl Scheduler {
    /// Goes on with other settings. What waits stays queued and stands where the order now has it; what runs
    /// goes on; what was counted of tenants, rates and lengths stays counted. It is one entry of the journal,
    /// from which a replay can make it again.
    ///
    /// | what | what becomes of it |
    /// |---|---|
    /// | weights, groups, tenants | as from now on: who was given how much so far stays as it is |
    /// | rates, caps, budgets, in-flight limits, also on and off | hold for who comes from now on; nobody is put out |
    /// | ages of orders | hold for who waits, too |
    /// | `budget`, `victim`, preemption | from the next step on |
    /// | `max_batch` | up to what the scheduler was made with; what runs beyond it runs to its end |
    ///
    /// The settings say everything of the policies that they concern: one that was made by hand and
    /// otherwise than by settings is as they say afterwards. Costs O(n log n) in the requests in flight.
    ///
    /// # Errors
    ///
    /// [`ChangeError`] where one of the settings cannot change; then nothing has changed.
    pub fn change(&mut self, now: Time, change: &Change) -> Result<(), ChangeError> {
        let now = self.advance(now);
        let sequences_max = self.check_change(change)?;
        if change.is_empty() {
            return Ok(());
        }
        self.change_policies(change);
        self.sequences_max = sequences_max;
        self.gate.set_slots(sequences_max);
        // One that was preempted and runs again may stand there twice until it is swept.
        let slots: BTreeSet<usize> = self.running.iter().copied().collect();
        let live = slots.iter().filter_map(|&slot| self.live.get(slot));
        let running = live.filter(|live| live.stage == Stage::Running);
        let running: Vec<Arc<Request>> = running.map(|live| Arc::clone(&live.request)).collect();
        self.gate.change(now, change, &running);
        Ok(())
    }

    /// Those that keep nothing from step to step are made anew.
    fn change_policies(&mut self, change: &Change) {
        let settings = change.settings();
        if (change.concerns(&BUDGET.row) || concerns_one_of(change, BUDGETS))
            && let Some(budget) = Named::of(BUDGETS, settings.get(&BUDGET))
        {
            self.budget = (budget.build)(settings);
        }
        let ours = Named::of(VICTIMS, self.victim.name()).is_some();
        let shares = ours && change.concerns_tenants();
        if (change.concerns(&VICTIM.row) || concerns_one_of(change, VICTIMS) || shares)
            && let Some(victim) = Named::of(VICTIMS, settings.get(&VICTIM))
        {
            self.victim = (victim.build)(settings);
        }
        if PREEMPTION.iter().any(|row| change.concerns(row)) {
            self.preemption = Preemption::of(settings);
        }
    }

    /// Whether everything in the change can be; and how many sequences there are then.
    fn check_change(&self, change: &Change) -> Result<u32, ChangeError> {
        let mut sequences_max = self.sequences_max;
        for row in change.rows() {
            if row.name == MAX_BATCH.row.name {
                sequences_max = self.slots_of(change, &MAX_BATCH)?;
                continue;
            }
            let here = [&BUDGET.row, &VICTIM.row]
                .into_iter()
                .chain(PREEMPTION.iter().copied());
            let here = here.chain(BUDGETS.iter().flat_map(|it| it.settings).copied());
            let mut here = here.chain(VICTIMS.iter().flat_map(|it| it.settings).copied());
            if !here.any(|it: &Row| it.name == row.name) && !self.gate.takes(row) {
                return Err(ChangeError::fixed(row));
            }
        }
        Ok(sequences_max)
    }

    fn slots_of(&self, change: &Change, of: &Setting<NonZeroU32>) -> Result<u32, ChangeError> {
        // A batch of a size of its own is made for it.
        if self.batch.sequences_max().is_some() {
            return Err(ChangeError::fixed(&of.row));
        }
        let (asked, max) = (change.settings().get(of).get(), self.limits.sequences_max);
        match asked <= max {
            true => Ok(asked),
            false => Err(ChangeError::TooMuch {
                setting: of.row.flag(),
                max,
            }),
        }
    }
}

fn concerns_one_of<T: ?Sized>(change: &Change, family: &[Named<T>]) -> bool {
    let mut rows = family.iter().flat_map(|policy| policy.settings);
    rows.any(|row| change.concerns(row))
}
